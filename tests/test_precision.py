import pytest
import torch

from lib import precision


@pytest.mark.parametrize(
    ("flags", "dtype"), [("fpu avx512_bf16 sse", torch.bfloat16), ("fpu sse avx512f", torch.float32)]
)
def test_bfloat16_is_used_where_the_processor_has_it_and_else_a_line_says_so(monkeypatch, caplog, flags, dtype):
    monkeypatch.setattr(precision.Path, "read_text", lambda self: f"flags : {flags}\n")
    assert precision.fast_dtype(torch.device("cpu")) == dtype
    assert ("No bfloat16 on this cpu" in caplog.text) == (dtype == torch.float32)
