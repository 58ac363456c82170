"""bfloat16 and torch.compile: when they are used, and how close their results are to float32."""

import contextlib
import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import pong_ring
from lib import common, dqn_model
from lib.nets import encoders
from lib.system.machine import has_fast_bfloat16


@pytest.mark.parametrize(
    ("cpuinfo", "dtype"),
    [
        ("vendor_id : AuthenticAMD\nflags : fpu avx512_bf16 sse", torch.bfloat16),
        ("vendor_id : GenuineIntel\nflags : fpu avx512_bf16 amx_bf16", torch.bfloat16),
        ("Features : fp asimd bf16", torch.bfloat16),
        ("vendor_id : GenuineIntel\nflags : fpu avx512_bf16 sse", torch.float32),
        ("vendor_id : AuthenticAMD\nflags : fpu sse avx512f", torch.float32),
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


def test_each_of_two_different_gpus_is_asked_for_its_own_precision(monkeypatch):
    current = ["cuda:0"]

    @contextlib.contextmanager
    def use(device):
        current.append(str(device))
        yield
        current.pop()

    monkeypatch.setattr(torch.cuda, "device", use)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: current[-1] == "cuda:1")
    assert [has_fast_bfloat16(torch.device("cuda", index)) for index in range(2)] == [False, True]


@pytest.mark.parametrize("options", [{"normalise": True}, {"dueling": True, "support": (-2.0, 2.0, 5)}], ids=str)
def test_a_compiled_network_gives_the_same_values(options):
    torch.manual_seed(0)
    net = dqn_model.DQN((2, 36, 36), np.int64(6), **options)  # as Discrete.n
    states = torch.randint(0, 256, (5, 2, 36, 36), dtype=torch.uint8)
    net.normalise_by(states)
    expected = net(states)
    net.compile(fullgraph=True, backend="aot_eager")  # which needs no C++ compiler
    assert torch.allclose(net(states), expected, atol=1e-5)


class Learner:
    """Network, target network and optimizer as in 05_native_envs.py (float32) or 06_fast_learner.py (bfloat16)."""

    def __init__(self, weights, dtype):
        fast = dtype == torch.bfloat16
        self.net = dqn_model.DQN((4, 84, 84), 6, dtype=dtype)
        self.net.load_state_dict(weights)
        if fast:
            self.net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-4, fused=fast)

    def learn(self, batch):
        self.optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, self.net, self.target, gamma=0.99)
        loss.backward()
        self.optimizer.step()
        return loss.item()


@pytest.fixture(scope="module")
def replay():
    return pong_ring()


@pytest.fixture
def learners():
    """A float32 and a bfloat16 learner with the same initial weights."""
    torch.manual_seed(1)
    weights = dqn_model.DQN((4, 84, 84), 6).state_dict()
    return Learner(weights, torch.float32), Learner(weights, torch.bfloat16)


def test_the_gradient_in_bfloat16_is_close_to_float32(learners, replay):
    plain, fast = learners
    batch = replay.sample(64)
    assert fast.learn(batch) == pytest.approx(plain.learn(batch), rel=5e-3)
    assert all(weights.grad.dtype == torch.float32 for weights in fast.net.parameters())
    expected, gradient = (
        torch.cat([weights.grad.flatten() for weights in learner.net.parameters()]) for learner in (plain, fast)
    )
    assert 0.0 < (gradient - expected).norm() < 0.1 * expected.norm()


@pytest.mark.slow
def test_updates_in_bfloat16_stay_close_to_float32(learners, replay):
    """The bounds are 0.05 of a reward for values and 2 % for losses."""
    plain, fast = learners
    losses = []
    for update in range(16):
        batch = replay.sample(8)
        losses.append((plain.learn(batch), fast.learn(batch)))
        if update == 7:
            for learner in (plain, fast):
                learner.target.load_state_dict(learner.net.state_dict())
    plain_losses, fast_losses = np.array(losses).T
    states = replay.sample(64).for_net("cpu").states
    with torch.no_grad():
        assert 0.0 < (fast.net(states) - plain.net(states)).abs().max() < 0.05
    assert np.abs(fast_losses - plain_losses).mean() < 0.02 * plain_losses.mean()
