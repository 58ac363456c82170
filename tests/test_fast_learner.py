"""What 06_fast_learner.py calls close, held to numbers."""

import copy

import numpy as np
import pytest
import torch

from fakes import pong_ring
from lib import common, dqn_model


class Learner:
    """A network, its target network and its optimizer, as the scripts wire them."""

    def __init__(self, weights, dtype=torch.float32, **options):
        self.net = dqn_model.DQN((4, 84, 84), 6, dtype)
        self.net.load_state_dict(weights)
        if dtype == torch.bfloat16:
            self.net.to(memory_format=torch.channels_last)
        self.target = copy.deepcopy(self.net)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-4, **options)

    def learn(self, batch):
        self.optimizer.zero_grad()
        loss = common.calc_loss_dqn(batch, self.net, self.target, gamma=0.99)
        loss.backward()
        self.optimizer.step()
        return loss.item()


def test_the_gradient_is_that_of_the_plain_learner_up_to_rounding():
    torch.manual_seed(1)
    weights = dqn_model.DQN((4, 84, 84), 6).state_dict()
    plain, fast = Learner(weights), Learner(weights, torch.bfloat16, fused=True)
    batch = pong_ring().sample(64)
    assert fast.learn(batch) == pytest.approx(plain.learn(batch), rel=5e-3)
    assert all(weights.grad.dtype == torch.float32 for weights in fast.net.parameters())
    expected, got = (
        torch.cat([weights.grad.flatten() for weights in learner.net.parameters()]) for learner in (plain, fast)
    )
    assert 0.0 < (got - expected).norm() < 0.1 * expected.norm()


def test_two_hundred_updates_stay_close_to_the_plain_learner():
    """Closer than 0.05 of a reward and 2 % of the loss; a millionth of the weights, changed, makes 0.004 and 0.1 %."""
    torch.manual_seed(1)
    weights = dqn_model.DQN((4, 84, 84), 6).state_dict()
    plain, fast = Learner(weights), Learner(weights, torch.bfloat16, fused=True)
    buffer = pong_ring()
    losses = []
    for update in range(200):
        batch = buffer.sample(8)
        losses.append((plain.learn(batch), fast.learn(batch)))
        if update % 50 == 49:
            for learner in (plain, fast):
                learner.target.load_state_dict(learner.net.state_dict())
    of_plain, of_fast = np.array(losses).T
    states = buffer.sample(256).states.movedim(-1, 1)
    with torch.no_grad():
        assert 0.0 < (fast.net(states) - plain.net(states)).abs().max() < 0.05
    assert np.abs(of_fast - of_plain).mean() < 0.02 * of_plain.mean()
