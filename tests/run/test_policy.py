"""Random, greedy, sampled and epsilon-greedy policies."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lib import dqn_extra, dqn_model
from lib.envs.masks import MaskedBox
from lib.errors import UsageError
from lib.nets.masking import INVALID
from lib.ppo.model import Model
from lib.run.policy import EpsilonGreedyPolicy, GreedyPolicy, RandomPolicy, SampledPolicy

STATES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
MANY = np.zeros((20_000, 3), np.float32)


class ConstantValues(nn.Module):
    """The same Q-values in every state."""

    def __init__(self, *values):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, states):
        return self.values.expand(len(states), len(self.values))


def randoms(number):
    return [np.random.default_rng([2, row]) for row in range(number)]


def test_greedy_play_uses_no_noise_and_leaves_every_layer_in_its_own_mode():
    torch.manual_seed(1)
    net = dqn_model.DQN((3,), 6, sigma=0.5)
    frozen = next(module for module in net.modules() if not list(module.children()))
    frozen.eval()
    before = torch.get_rng_state()
    policy = GreedyPolicy(net)
    scores = policy.scores(STATES)
    assert np.array_equal(policy.scores(STATES), scores)
    assert policy(STATES).tolist() == scores.argmax(1).tolist()
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError):
        policy.scores(np.zeros((1, 4), np.float32))
    assert [module for module in net.modules() if not module.training] == [frozen]


def test_scores_are_expected_values_of_distributions_and_probabilities_of_ppo():
    net = dqn_extra.DistributionalDQN((3,), 6)
    assert np.array_equal(GreedyPolicy(net).scores(STATES), net.qvals(torch.from_numpy(STATES)).detach().numpy())
    model = Model(spaces.Box(-1.0, 1.0, (3,), np.float32), 6)
    probabilities = model(torch.from_numpy(STATES))[0].detach().softmax(1).numpy()
    assert np.allclose(GreedyPolicy(model).scores(STATES), probabilities, atol=1e-6)


def test_random_actions_have_their_share_respect_the_mask_and_depend_on_their_episode_only():
    space = MaskedBox(spaces.Box(-1.0, 1.0, (3,), np.float32), 5)
    env = SimpleNamespace(observation_space=space, action_space=spaces.Discrete(5))
    greedy = GreedyPolicy(ConstantValues(INVALID, 1.0, 2.0, INVALID, 0.0))
    policy = EpsilonGreedyPolicy(greedy, RandomPolicy(env), 0.6)
    states = np.tile(np.float32([0, 0, 0, 0, 1, 1, 0, 1]), (20_000, 1))
    actions = policy(states, randoms(len(states)))
    assert np.bincount(actions, minlength=5) / len(states) == pytest.approx([0.0, 0.2, 0.6, 0.0, 0.2], abs=0.02)
    assert actions[:50].tolist() == [policy(states[:1], [random])[0] for random in randoms(50)]


def test_a_sampled_policy_draws_actions_by_their_probabilities():
    model = Model(spaces.Box(-1.0, 1.0, (3,), np.float32), 3)
    with torch.no_grad():
        model.policy.weight.zero_()
        model.policy.bias.copy_(torch.tensor([0.0, -1e9, 1.0]))
    shares = np.bincount(SampledPolicy(model)(MANY, randoms(len(MANY))), minlength=3) / len(MANY)
    assert shares == pytest.approx([0.269, 0.0, 0.731], abs=0.02)
    with pytest.raises(UsageError, match="action values"):
        SampledPolicy(ConstantValues(0.0))
