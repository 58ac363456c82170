import copy
import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes import Chain
from lib.hyperparameters import PPO_HYPERPARAMS
from lib.ppo.fast import FastModel, FastSettings
from lib.ppo.model import Model
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.update import UpdateSettings
from oracles import ppo_update
from ppo_setup import random_rollout, trainer_of, vectorised


def test_settings_are_copied_from_hyperparameters():
    params = dataclasses.replace(PPO_HYPERPARAMS["pong"], minibatch=64, entropy=0.07)
    settings = UpdateSettings.of(params)
    assert dataclasses.asdict(settings).items() <= dataclasses.asdict(params).items()
    assert (settings.minibatch, settings.entropy) == (64, 0.07)
    with pytest.raises(AttributeError, match="kl_target"):  # never replaced by a default
        FastSettings.of(params)


@pytest.mark.parametrize(("kind", "changes"), [(Model, {}), (FastModel, {}), (FastModel, {"kl_target": 0.1})])
def test_updates_agree_with_the_slow_twin(kind, changes):
    torch.manual_seed(1)
    model = kind(spaces.Box(-1.0, 1.0, (5,)), 4)
    if kind is FastModel:
        model.normalise_by(torch.randn(8, 5))
    twin = copy.deepcopy(model)
    optimizer, twin_optimizer = (torch.optim.Adam(each.parameters(), lr=3e-3, eps=1e-5) for each in (model, twin))
    trainer = trainer_of(
        model, optimizer, minibatch=18, epochs=3, clip=0.15, entropy=0.03, gradient_norm=0.7, **changes
    )
    for steps in (12, 6):
        rollout = random_rollout(steps, 6)
        generator_state = torch.get_rng_state()
        metrics = trainer.update(rollout)
        torch.set_rng_state(generator_state)
        expected = ppo_update.update(twin, twin_optimizer, rollout, trainer.settings)
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-5)
        if kind is FastModel:
            twin.normalise_by(rollout.some_states())
        for (name, weights), others in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
            assert torch.allclose(weights, others, atol=1e-5), name


def train(make, n, steps, updates, rate=3e-3, kind=Model, **changes):
    """Train on n environments; return the episodes' returns and the model."""
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
