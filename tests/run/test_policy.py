"""Greedy and epsilon-greedy policies."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from lib import dqn_extra
from lib.errors import UsageError
from lib.nets.masking import INVALID
from lib.ppo.model import Model
from lib.run.policy import EpsilonGreedyPolicy, GreedyPolicy, SampledPolicy

VECTOR = spaces.Box(-1.0, 1.0, (3,), np.float32)
STATES = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


class ConstantValues(nn.Module):
    """The same Q-values in every state."""

    def __init__(self, *values):
        super().__init__()
        self.values = torch.tensor(values)

    def forward(self, states):
        return self.values.expand(len(states), len(self.values))

    def split(self, states):
        return states, (self.values != INVALID).expand(len(states), len(self.values))


def test_the_greedy_policy_takes_the_values_of_the_book_s_distributional_network():
    net = dqn_extra.DistributionalDQN((3,), 6)
    assert np.array_equal(GreedyPolicy(net).scores(STATES), net.qvals(torch.from_numpy(STATES)).detach().numpy())


def test_the_greedy_policy_uses_no_noise_and_leaves_the_network_in_training_mode():
    torch.manual_seed(1)
    net = dqn_extra.ExtendedDQN((3,), 6, sigma=0.5)
    before = torch.get_rng_state()
    policy = GreedyPolicy(net)
    first, second = policy.scores(STATES), policy.scores(STATES)
    assert np.array_equal(first, second)
    assert policy(STATES).tolist() == first.argmax(1).tolist()
    assert torch.equal(torch.get_rng_state(), before)
    assert net.training
    assert policy.score_name == "Q"


def test_frozen_layers_stay_in_evaluation_mode():
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))
    net[1].eval()
    GreedyPolicy(net).scores(STATES)
    assert [module.training for module in net] == [True, False, True]


def test_an_error_of_the_network_leaves_it_in_training_mode():
    net = dqn_extra.ExtendedDQN((3,), 2, sigma=0.5)
    with pytest.raises(RuntimeError):
        GreedyPolicy(net).scores(np.zeros((1, 4), np.float32))
    assert net.training


def test_a_ppo_model_is_scored_by_its_probabilities():
    model = Model(VECTOR, 6)
    policy = GreedyPolicy(model)
    logits = model(torch.from_numpy(STATES))[0].detach()
    assert policy.score_name == "probability"
    assert np.allclose(policy.scores(STATES), logits.softmax(1).numpy(), atol=1e-6)
    assert policy(STATES).tolist() == logits.argmax(1).tolist()


def test_without_a_mask_all_actions_are_allowed():
    assert GreedyPolicy(Model(VECTOR, 6)).action_mask(STATES).tolist() == [[True]] * 5


def randoms(number):
    return [np.random.default_rng([2, row]) for row in range(number)]


def test_random_actions_are_taken_with_probability_epsilon():
    best = GreedyPolicy(ConstantValues(0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
    actions = EpsilonGreedyPolicy(best, 6, 0.3)(np.zeros((10_000, 1)), randoms(10_000))
    assert (actions != 5).mean() == pytest.approx(0.3 * 5 / 6, abs=0.02)
    assert (EpsilonGreedyPolicy(best, 6, 0.0)(np.zeros((100, 1)), randoms(100)) == 5).all()


def test_random_actions_respect_the_mask():
    policy = EpsilonGreedyPolicy(GreedyPolicy(ConstantValues(INVALID, 1.0, 2.0, INVALID, 0.0)), 5, 0.6)
    shares = np.bincount(policy(np.zeros((20_000, 1)), randoms(20_000)), minlength=5) / 20_000
    assert shares == pytest.approx([0.0, 0.2, 0.6, 0.0, 0.2], abs=0.02)


def test_random_actions_depend_only_on_the_generator_of_the_episode():
    policy = EpsilonGreedyPolicy(GreedyPolicy(ConstantValues(0.0, 1.0, 2.0)), 3, 0.5)
    together = policy(np.zeros((50, 1)), randoms(50))
    assert together.tolist() == [policy(np.zeros((1, 1)), [random])[0] for random in randoms(50)]
    assert len(set(together)) == 3


def test_a_sampled_policy_draws_actions_by_their_probabilities_and_respects_the_mask():
    model = Model(VECTOR, 3)
    with torch.no_grad():
        model.policy.weight.zero_()
        model.policy.bias.copy_(torch.tensor([0.0, -1e9, 1.0]))
    shares = np.bincount(SampledPolicy(model)(np.zeros((20_000, 3), np.float32), randoms(20_000)), minlength=3) / 20_000
    assert shares == pytest.approx([0.269, 0.0, 0.731], abs=0.02)
    with pytest.raises(UsageError, match="action values"):
        SampledPolicy(ConstantValues(0.0))
