import pytest
import torch
from torch import nn

from lib.errors import UsageError
from lib.nets import precision


@pytest.mark.parametrize(
    ("flags", "dtype"), [("fpu avx512_bf16 sse", torch.bfloat16), ("fpu sse avx512f", torch.float32)]
)
def test_bfloat16_is_used_where_the_processor_has_it_and_else_a_line_says_so(monkeypatch, caplog, flags, dtype):
    monkeypatch.setattr(precision.Path, "read_text", lambda self: f"flags : {flags}\n")
    precision.fast_dtype.cache_clear()
    for _ in range(2):
        assert precision.fast_dtype(torch.device("cpu")) == dtype
    precision.fast_dtype.cache_clear()
    assert caplog.text.count("No bfloat16 on this cpu") == (dtype == torch.float32)


def test_compiling_without_a_compiler_names_the_way_out(monkeypatch):
    monkeypatch.setattr(precision.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match=r"there is none; install g\+\+, or leave --compile out"):
        precision.compile_networks(nn.Linear(2, 2))


@pytest.mark.skipif(not precision.shutil.which("g++"), reason="needs a C++ compiler")
def test_a_compiled_network_gives_the_same_values():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    states = torch.rand(5, 3)
    expected = net(states)
    precision.compile_networks(net)
    assert net._compiled_call_impl is not None
    assert torch.allclose(net(states), expected, atol=1e-6)
