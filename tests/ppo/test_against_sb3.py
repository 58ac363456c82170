"""The textbook update against an independent implementation: PPO.train of stable-baselines3."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from lib.ppo.model import Model
from lib.ppo.rollout import Rollout
from lib.ppo.update import Trainer
from ppo_setup import settings_of

STEPS, ENVS = 12, 4
ACTIONS = spaces.Discrete(6)
NUMBERS = spaces.Box(-1.0, 1.0, (3,), np.float32)
IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)
VECTORS = spaces.Box(-1.0, 1.0, (5,), np.float32)
# SB3 rounds gamma * lam to float32. Here it is exact.
SETTINGS = settings_of(minibatch=16, epochs=4, gamma=31 / 32, lam=15 / 16, clip=0.1, entropy=0.01, gradient_norm=0.5)


class Spaces(gym.Env):
    """An environment that has spaces, and is never played."""

    def __init__(self, space, actions):
        self.observation_space, self.action_space = space, actions


def sb3_of(space, actions):
    """SB3's PPO with SETTINGS."""
    algorithm = PPO(
        "CnnPolicy" if space is IMAGES else "MlpPolicy",
        DummyVecEnv([lambda: Spaces(space, actions)] * ENVS),
        learning_rate=2.5e-3,
        n_steps=STEPS,
        batch_size=SETTINGS.minibatch,
        n_epochs=SETTINGS.epochs,
        gamma=SETTINGS.gamma,
        gae_lambda=SETTINGS.lam,
        clip_range=SETTINGS.clip,
        ent_coef=SETTINGS.entropy,
        vf_coef=0.5,
        max_grad_norm=SETTINGS.gradient_norm,
        device="cpu",
    )
    algorithm.set_logger(Logger(None, []))
    return algorithm


def parameters_of(algorithm, space):
    """SB3's parameters in the order of those of our model."""
    policy = algorithm.policy
    layers = [*policy.mlp_extractor.policy_net, *policy.mlp_extractor.value_net]
    if space is IMAGES:
        layers = [*policy.features_extractor.cnn, *policy.features_extractor.linear]
    body, policy_head, value_head = (
        [weights for layer in part for weights in layer.parameters()]
        for part in (layers, [policy.action_net], [policy.value_net])
    )
    log_std = [policy.log_std] if isinstance(algorithm.action_space, spaces.Box) else []
    return [*body, *policy_head, *log_std, *value_head]


def model_like(algorithm, space):
    """Our model with SB3's weights."""
    model = Model(space, algorithm.action_space)
    with torch.no_grad():
        for ours, theirs in zip(model.parameters(), parameters_of(algorithm, space), strict=True):
            ours.copy_(theirs)
    return model


def fill(algorithm, model, space):
    """Fill SB3's buffer with random transitions that the model could have played; return them as a Rollout."""
    rng = np.random.default_rng(5)
    shape = (STEPS, ENVS)
    high = 256 if space is IMAGES else 1
    states = torch.as_tensor((rng.random((*shape, *space.shape)) * high).astype(space.dtype))
    is_box = isinstance(algorithm.action_space, spaces.Box)
    actions = torch.as_tensor(
        rng.normal(size=(*shape, 3)).astype(np.float32) if is_box else rng.integers(6, size=shape)
    )
    rewards = rng.normal(size=shape).astype(np.float32)
    terminated = rng.random(shape) < 0.2
    with torch.no_grad():
        parameters, values = model(states.flatten(0, 1))
        values = values.view(shape)
        last_values = model(states[0])[1]
        chosen = model.distribution.evaluate(parameters, actions.flatten(0, 1))[0].view(shape)
    # The ratios start on both sides of the clipping range.
    log_probs = chosen + torch.as_tensor(rng.normal(0.0, 0.15, shape).astype(np.float32))
    starts = np.vstack([np.ones(ENVS, bool), terminated[:-1]])
    buffer = algorithm.rollout_buffer
    buffer.reset()
    for name in ("rewards", "values", "log_probs", "advantages", "returns"):
        setattr(buffer, name, getattr(buffer, name).astype(np.float64))
    for t in range(STEPS):
        buffer.add(states[t].numpy(), actions[t].numpy(), rewards[t], starts[t], values[t], log_probs[t])
    buffer.compute_returns_and_advantage(last_values, terminated[-1])
    return Rollout(
        states=states.movedim(2, -1),
        actions=actions,
        log_probs=log_probs,
        values=values,
        next_values=torch.cat([values[1:], last_values[None]]),
        rewards=torch.as_tensor(rewards),
        terminated=torch.as_tensor(terminated),
        ended=torch.as_tensor(terminated),
    )


CASES = {"images": (IMAGES, ACTIONS), "vectors": (VECTORS, ACTIONS), "numbers": (VECTORS, NUMBERS)}


@pytest.mark.parametrize(("space", "actions"), CASES.values(), ids=CASES)
def test_an_update_equals_that_of_stable_baselines3(monkeypatch, space, actions):
    torch.manual_seed(4)
    algorithm = sb3_of(space, actions)
    model = model_like(algorithm, space).double()
    if space is IMAGES:
        model.body[0].dtype = torch.float64  # type: ignore[index,union-attr]
    algorithm.policy.double()
    # In float32, a unit whose input is rounded to the other side of zero would change its weights' steps.
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    optimizer = torch.optim.Adam(model.parameters(), algorithm.learning_rate, eps=1e-5)
    rollout = fill(algorithm, model, space)
    before = [weights.clone() for weights in model.parameters()]
    generator_state = torch.get_rng_state()
    metrics = Trainer(model, optimizer, SETTINGS).update(rollout)
    torch.set_rng_state(generator_state)

    def permutation(size):
        # SB3 counts transitions environment by environment, and we step by step.
        order = torch.randperm(size).numpy()
        return order % ENVS * STEPS + order // ENVS

    monkeypatch.setattr(np.random, "permutation", permutation)
    algorithm.train()
    theirs = parameters_of(algorithm, space)
    for weights, expected, first in zip(model.parameters(), theirs, before, strict=True):
        assert (weights - expected).abs().max() < 1e-9
        assert (weights - first).abs().max() > 1e-3
    for name, logged, factor in (
        ("clipped", "clip_fraction", 1.0),
        ("policy_loss", "policy_gradient_loss", 1.0),
        ("value_loss", "value_loss", 1.0),
        ("entropy", "entropy_loss", -1.0),
    ):
        assert metrics[name] == pytest.approx(factor * algorithm.logger.name_to_value[f"train/{logged}"], abs=1e-6)
    assert metrics["clipped"] > 0.1


@pytest.mark.parametrize(("space", "actions"), CASES.values(), ids=CASES)
def test_the_first_weights_have_the_scale_of_stable_baselines3(space, actions):
    torch.manual_seed(4)
    theirs = parameters_of(sb3_of(space, actions), space)
    for weights, expected in zip(Model(space, actions).parameters(), theirs, strict=True):
        assert weights.norm().item() == pytest.approx(expected.norm().item(), rel=1e-3)
