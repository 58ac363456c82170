"""Distributions of actions against torch.distributions, and what environments are given."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as reference

from lib.errors import UsageError
from lib.nets.distributions import distribution_of
from lib.nets.masking import mask_invalid

INF = np.inf
SPACES = {
    "discrete": spaces.Discrete(5),
    "choices": spaces.MultiDiscrete([3, 1, 4]),
    "grid of choices": spaces.MultiDiscrete(np.array([[2, 3], [4, 2]])),
    "bits": spaces.MultiBinary([2, 2]),
    "floats": spaces.Box(-2.0, 3.0, (2,)),
    "box": spaces.Box(np.array([[-3.0, 0.0, -INF]]), np.array([[1.0, INF, INF]]), dtype=np.float64),
}
N = 64


def drawn(space, scale=2.0):
    """A distribution, random parameters, and sampled actions with their log-probabilities."""
    torch.manual_seed(3)
    distribution = distribution_of(space)
    parameters = scale * torch.randn(N, distribution.parameters, dtype=torch.float64)
    noise = torch.from_numpy(distribution.noise(np.random.default_rng(4), N)).double()
    return distribution, parameters, *distribution.sample(parameters, noise)


def references(space, parameters):
    """torch's distributions of the independent parts of an action."""
    if isinstance(space, spaces.MultiBinary):
        return [reference.Bernoulli(logits=logit) for logit in parameters.unbind(1)]
    if isinstance(space, spaces.Box):
        mean, log_std = parameters.chunk(2, 1)
        return [reference.Normal(*each) for each in zip(mean.unbind(1), log_std.exp().unbind(1), strict=True)]
    sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.ravel()
    return [reference.Categorical(logits=part) for part in parameters.split([int(size) for size in sizes], 1)]


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_log_probabilities_and_entropies_are_those_of_torch(space):
    distribution, parameters, actions, sampled = drawn(space)
    log_probs, entropies = distribution.evaluate(parameters, actions)
    assert torch.allclose(sampled, log_probs, atol=1e-9)
    parts = actions.reshape(N, -1).unbind(1)
    expected = references(space, parameters)
    torch.testing.assert_close(
        log_probs,
        sum(each.log_prob(part.double()) for each, part in zip(expected, parts, strict=True)),
        atol=1e-6,
        rtol=0,
    )
    torch.testing.assert_close(entropies, sum(each.entropy() for each in expected), atol=1e-6, rtol=0)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_samples_have_their_probabilities(space):
    """The mean log-probability of many samples is the negated entropy, and their parts have torch's means."""
    number = 40_000
    distribution = distribution_of(space)
    parameters = torch.linspace(-1.0, 1.0, distribution.parameters).repeat(number, 1).double()
    noise = torch.from_numpy(distribution.noise(np.random.default_rng(4), number))
    actions, log_probs = distribution.sample(parameters, noise)
    _, entropies = distribution.evaluate(parameters, actions)
    assert log_probs.mean() == pytest.approx(-entropies[0].item(), abs=0.05)
    for part, expected in zip(actions.reshape(number, -1).unbind(1), references(space, parameters), strict=True):
        if isinstance(expected, reference.Categorical):
            shares = torch.bincount(part, minlength=expected.probs.shape[1]) / number
            assert torch.allclose(shares.double(), expected.probs[0], atol=0.01)
        else:
            assert part.double().mean() == pytest.approx(expected.mean[0].item(), abs=0.05)
            assert part.double().std() == pytest.approx(expected.stddev[0].item(), abs=0.05)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_the_mode_is_the_most_probable_action_and_environments_are_given_actions_of_their_space(space):
    distribution, parameters, actions, log_probs = drawn(space, scale=4.0)
    modes = distribution.mode(parameters)
    best, _ = distribution.evaluate(parameters, modes)
    assert (best >= log_probs - 1e-9).all()
    assert (best > log_probs + 1e-9).any()
    for action in torch.cat([distribution.played(actions), distribution.played(modes)]).numpy():
        assert space.contains(action)


def test_numbers_are_clipped_only_at_a_border_of_the_space():
    space = spaces.Box(np.array([-3.0, 5.0, -INF, 10.0]), np.array([1.0, INF, INF, 30.0]), dtype=np.float64)
    distribution = distribution_of(space)
    for sampled, played in (
        ([0.0, 0.5, 2.0, -0.5], [-1.0, 5.5, 2.0, 15.0]),  # -1 and 1 are the bounds, where there are two
        ([1.5, -1.0, -99.0, -1.0], [1.0, 5.0, -99.0, 10.0]),
    ):
        assert distribution.played(torch.tensor([sampled])).tolist() == [played]
    whole = distribution_of(spaces.Box(0, 10, (1,), np.int32))
    assert whole.played(torch.tensor([[0.13], [-7.0]])).tolist() == [[6.0], [0.0]]


def test_forbidden_choices_are_never_drawn():
    space, number = spaces.MultiDiscrete([3, 4]), 100_000
    distribution = distribution_of(space)
    generator = np.random.default_rng(2)
    allowed = torch.from_numpy(generator.random((number, 7)) < 0.5)
    allowed[:, 1], allowed[:, 5] = True, True  # at least one option of each choice
    noise = torch.from_numpy(distribution.noise(generator, number))
    noise[::7] = 0.0
    parameters = mask_invalid(5.0 * torch.randn(number, 7), allowed)
    for actions in (distribution.sample(parameters, noise)[0], distribution.mode(parameters)):
        assert allowed.gather(1, actions + torch.tensor([0, 3])).all()


@pytest.mark.parametrize("space", [spaces.Box(1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, ())], ids=str)
def test_numbers_that_cannot_change_are_refused(space):
    with pytest.raises(UsageError, match="the action space is"):
        distribution_of(space)
