"""The book's networks, replay and projection of chapter 8."""

import numpy as np
import pytest
import torch

from lib import dqn_extra
from oracles import distribution

IMAGES = torch.randint(0, 256, (5, 2, 36, 36), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("dtype", [bool, np.uint8])
def test_the_books_projection_equals_the_slow_twin(dtype):
    rng = np.random.default_rng(0)
    next_distr = rng.dirichlet(np.ones(dqn_extra.N_ATOMS), 40).astype(np.float32)
    rewards = rng.choice([-1.0, 0.0, 1.0, 0.37, 30.0, -30.0], 40).astype(np.float32)
    dones = rng.random(40) < 0.3
    projected = dqn_extra.distr_projection(next_distr, rewards, dones.astype(dtype), 0.97)
    expected = [
        distribution.project(probs, reward, 0.0 if done else 0.97, int(dqn_extra.Vmin), int(dqn_extra.Vmax))
        for probs, reward, done in zip(next_distr.tolist(), rewards.tolist(), dones, strict=True)
    ]
    assert np.allclose(projected, expected, atol=1e-5)


def test_the_books_distributional_network_returns_logits():
    net = dqn_extra.DistributionalDQN((2, 36, 36), 4)
    logits, values = net.both(IMAGES)
    assert logits.shape == (5, 4, dqn_extra.N_ATOMS)
    probs = torch.softmax(logits, dim=2)
    assert torch.allclose(net.apply_softmax(logits), probs)
    assert torch.allclose(values, (probs * net.supports).sum(dim=2), atol=1e-5)
    assert torch.allclose(net.qvals(IMAGES), values)
    assert torch.equal(net.supports, torch.linspace(-10.0, 10.0, 51))


def test_the_books_dueling_and_noisy_network():
    net = dqn_extra.RainbowDQN((2, 36, 36), 4)
    assert not torch.allclose(net(IMAGES), net(IMAGES))  # new noise in every training pass
    net.reset_noise()
    assert all(ratio == pytest.approx(1 / (0.1 * 3**0.5), rel=0.2) for ratio in net.noisy_layers_sigma_snr())
    net.eval()
    adv, val = net.adv_val(IMAGES)
    assert (adv.shape, val.shape) == ((5, 4), (5, 1))
    assert torch.allclose(net(IMAGES), val + adv - adv.mean(dim=1, keepdim=True), atol=1e-6)
    assert dqn_extra.NoisyDQN((2, 36, 36), 4, True).value is not None  # the third argument is dueling


def test_the_books_noisy_layers():
    for layer, noise, sigma in (
        (dqn_extra.NoisyLinear(400, 50), "factorised", 0.1 / 20),
        (dqn_extra.NoisyLinear(400, 50, 0.017), "independent", 0.017),  # as the second edition calls it
        (dqn_extra.NoisyFactorizedLinear(400, 50), "factorised", 0.4 / 20),
    ):
        assert layer.noise == noise
        assert torch.allclose(layer.weight_sigma, torch.tensor(sigma))


def test_transitions_are_drawn_in_proportion_to_priority_to_the_power_of_alpha_and_weighted_by_beta():
    buffer = dqn_extra.PrioReplayBuffer(iter(range(4)), 4, 0.5)
    buffer.populate(4)
    buffer.update_priorities([0, 1, 2, 3], [1.0, 4.0, 9.0, 16.0])
    assert buffer.update_beta(50_000) == pytest.approx(0.7)
    _, indices, weights = buffer.sample(40_000)
    assert np.bincount(indices) / 40_000 == pytest.approx(np.array([1, 2, 3, 4]) / 10, abs=0.01)
    assert weights == pytest.approx((np.array(indices) + 1.0) ** -0.7, rel=1e-5)
    assert buffer.update_beta(200_000) == 1.0
