"""Threads of torch."""

import pytest
import torch
from torch import nn

from lib.system.machine import choose_threads, torch_threads


@pytest.mark.parametrize(
    ("layer", "chosen", "expected"), [("Linear", None, 1), ("Conv2d", None, 3), ("Linear", "3", 3)]
)
def test_a_network_without_convolutions_gets_one_thread(monkeypatch, layer, chosen, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if chosen is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", chosen)
    net = nn.Sequential(getattr(nn, layer)(1, 1, *([1] * (layer == "Conv2d"))))
    with torch_threads(3):
        choose_threads(net)
        assert torch.get_num_threads() == expected
