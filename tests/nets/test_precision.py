"""bfloat16 and torch.compile: when they are used, and how close their results are to float32."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from lib import common, dqn_model
from lib.experience.batch import Batch
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


def random_batch(generator, number):
    """Transitions of states that are coarse blocks of grey, like the frames of a game."""
    blocks = torch.randint(0, 256, (2, number, 4, 4, 4), dtype=torch.uint8, generator=generator)
    states, next_states = blocks.repeat_interleave(21, 2).repeat_interleave(21, 3)
    rewards, ends = torch.randint(-1, 2, (2, number), generator=generator)
    actions = torch.randint(0, 6, (number,), generator=generator)
    return Batch(states, actions, rewards.float(), next_states, 0.99 * (ends < 1), actions, torch.ones(number))


def learn(weights, dtype):
    """Learn as 05_native_envs.py (float32) or 06_fast_learner.py (bfloat16).

    Return the first gradient, the losses, and values after the last update.
    """
    fast, generator = dtype == torch.bfloat16, torch.manual_seed(2)
    net = dqn_model.DQN((4, 84, 84), 6, dtype=dtype)
    net.load_state_dict(weights)
    if fast:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    target, optimizer = copy.deepcopy(net), torch.optim.Adam(net.parameters(), lr=1e-4, fused=fast)
    gradients, losses = [], []
    for update in range(16):
        optimizer.zero_grad()
        loss = common.calc_loss_dqn(random_batch(generator, 16), net, target, gamma=0.99)
        loss.backward()
        gradients.append(torch.cat([weights.grad.flatten() for weights in net.parameters()]))
        optimizer.step()
        losses.append(loss.item())
        if update == 7:
            target.load_state_dict(net.state_dict())
    with torch.no_grad():
        return gradients[0], np.array(losses), net(random_batch(generator, 64).for_net("cpu").states)


@pytest.mark.slow
def test_updates_in_bfloat16_stay_close_to_float32():
    torch.manual_seed(1)
    weights = dqn_model.DQN((4, 84, 84), 6).state_dict()
    gradient, losses, values = learn(weights, torch.float32)
    fast_gradient, fast_losses, fast_values = learn(weights, torch.bfloat16)
    assert fast_gradient.dtype == torch.float32
    assert 0.0 < (fast_gradient - gradient).norm() < 0.1 * gradient.norm()
    assert np.abs(fast_losses - losses).mean() < 0.02 * losses.mean()
    assert 0.0 < (fast_values - values).abs().max() < 0.05  # of a reward
