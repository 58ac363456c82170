import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch

from fakes import Bandit, Chain
from lib.hyperparameters import PPO_HYPERPARAMS
from lib.ppo.fast import FastModel, FastSettings
from lib.ppo.model import Model
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.update import UpdateSettings
from ppo_setup import (
    assert_updates_agree_with_the_slow_twin,
    settings_of,
    trainer_of,
    vectorised,
)


def test_settings_are_copied_from_hyperparameters():
    params = dataclasses.replace(PPO_HYPERPARAMS["pong"], minibatch=64, entropy=0.07)
    settings = UpdateSettings.of(params)
    assert dataclasses.asdict(settings).items() <= dataclasses.asdict(params).items()
    assert (settings.minibatch, settings.entropy) == (64, 0.07)
    with pytest.raises(AttributeError, match="kl_target"):  # never replaced by a default
        FastSettings.of(params)


def test_updates_agree_with_the_slow_twin():
    torch.manual_seed(1)
    settings = settings_of(minibatch=18, epochs=3, clip=0.15, entropy=0.03, gradient_norm=0.7)
    assert_updates_agree_with_the_slow_twin(Model, settings, [12, 6])


def train(make, n, steps, updates, rate=3e-3, kind=Model, **changes):
    """Train on n environments; return the episodes' returns and the model."""
    torch.manual_seed(0)
    envs = vectorised(make, n)
    model = kind(envs.single_observation_space, int(envs.single_action_space.n))
    sampler = Sampler(envs, Agent(model), steps, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    trainer = trainer_of(model, optimizer, **{"minibatch": n * steps // 4, "epochs": 4, "lam": 0.95} | changes)
    returns = []
    for _, rollout in zip(range(updates), sampler, strict=False):
        trainer.update(rollout)
        returns += [episode.total for episode in sampler.pop_episodes()]
    return returns, model


def test_a_bandit_is_solved():
    returns, model = train(Bandit, 8, 16, 15)
    assert np.mean(returns[-100:]) > 0.95
    assert np.mean(returns[:100]) < 0.6
    policy = model(torch.eye(3))[0].argmax(1)
    assert policy.tolist() == [2, 0, 1]


@pytest.mark.parametrize("kind", [Model, FastModel])
def test_the_chain_is_solved_with_its_known_values(kind):
    returns, model = train(lambda: Chain(4), 8, 32, 20, gamma=0.5, entropy=0.01, kind=kind)
    assert np.mean(returns[-100:]) > 0.9
    values = model(torch.eye(4))[1]
    assert values.tolist() == pytest.approx([0.125, 0.25, 0.5, 1.0], abs=0.1)


@pytest.mark.long
def test_cart_pole_is_solved():
    returns, _ = train(lambda: gym.make("CartPole-v1"), 8, 128, 60, gamma=0.99, epochs=6, minibatch=256)
    assert max(np.mean(returns[end - 20 : end]) for end in range(20, len(returns))) >= 475
