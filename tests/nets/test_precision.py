"""bfloat16 and torch.compile: when they are used, and how close their results are to float32."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from lib import common, dqn_model
from lib.experience.ring import Batch
from lib.nets import encoders


@pytest.mark.parametrize(
    ("cpuinfo", "dtype"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx512_bf16 sse", torch.bfloat16),
        ("vendor_id : GenuineIntel\nflags : fpu avx512_bf16 sse", torch.float32),
    ],
)
def test_bfloat16_is_used_if_the_processor_is_faster_with_it_and_otherwise_a_warning_is_logged_once(
    monkeypatch, caplog, cpuinfo, dtype
):
    monkeypatch.setattr(Path, "read_text", lambda self: f"{cpuinfo}\n")
    encoders.fast_dtype.cache_clear()
    for _ in range(2):
        assert encoders.fast_dtype(torch.device("cpu")) == dtype
    encoders.fast_dtype.cache_clear()
    assert caplog.text.count("float32 is used") == (dtype == torch.float32)


def test_a_compiled_network_gives_the_same_values():
    net = dqn_model.DQN((2, 36, 36), np.int64(6), normalise=True, dueling=True, support=(-2.0, 2.0, 5))  # Discrete.n
    states = torch.randint(0, 256, (5, 2, 36, 36), dtype=torch.uint8)
    net.normalise_by(states)
    expected = net(states)
    net.compile(fullgraph=True, backend="aot_eager")  # which needs no C++ compiler
    assert torch.allclose(net(states), expected, atol=1e-5)


def test_a_gradient_in_bfloat16_is_close_to_that_in_float32():
    generator = torch.manual_seed(1)
    # Coarse blocks of grey, like the frames of a game.
    blocks = torch.randint(0, 256, (2, 16, 4, 4, 4), dtype=torch.uint8, generator=generator)
    states, next_states = blocks.repeat_interleave(21, 2).repeat_interleave(21, 3)
    actions = torch.randint(0, 6, (16,), generator=generator)
    rewards, weights = torch.randn(16, generator=generator), torch.ones(16)
    batch = Batch(states, actions, rewards, next_states, 0.99 * weights, actions, weights)
    net, fast = dqn_model.DQN((4, 84, 84), 6), dqn_model.DQN((4, 84, 84), 6, dtype=torch.bfloat16)
    fast.load_state_dict(net.state_dict())
    gradients = []
    for each in (net, fast):
        common.calc_loss_dqn(batch, each, copy.deepcopy(each), gamma=0.99).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in each.parameters()]))
    exact, rounded = gradients
    assert rounded.dtype == torch.float32
    assert 0.0 < (rounded - exact).norm() < 0.1 * exact.norm()
