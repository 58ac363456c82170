"""Composite observations: nothing is lost, and every part is converted as it would be alone."""

import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from lib.dqn_model import DQN
from lib.envs import observations
from lib.envs.composite import CompositeBox
from lib.envs.single_env import make_env
from lib.envs.vector_env import make_vector_env
from lib.nets.encoders import CompositeEncoder
from lib.ppo.fast import FastModel
from lib.ppo.model import Model

SPACE = spaces.Dict(
    screen=spaces.Box(0, 255, (60, 80, 3), np.uint8),
    cells=spaces.Box(0, 10, (7, 7, 3), np.uint8),
    pair=spaces.Tuple([spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (2,), np.float32)]),
    text=spaces.Text(4),
)


class Random(gym.Env):
    """Random observations of one part of SPACE, or of all of it, the same for the same seed."""

    action_space = spaces.Discrete(5)

    def __init__(self, part=None, masked=False):
        self.part, self.masked = part, masked
        self.observation_space = SPACE if part is None else SPACE[part]

    def _next(self):
        SPACE.seed(int(self.np_random.integers(2**31)))
        observation = SPACE.sample()
        info = {"action_mask": np.arange(5) > 0} if self.masked else {}
        return observation if self.part is None else observation[self.part], info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._next()

    def step(self, action):
        observation, info = self._next()
        return observation, 0.0, False, False, info


@pytest.fixture(autouse=True)
def _registered(register):
    register("Random-v0", Random)
    register("RandomMasked-v0", Random, kwargs={"masked": True})
    for part in SPACE:
        register(f"Random-{part}-v0", Random, kwargs={"part": part})


def states_of(env_id, steps=6):
    env = make_env(env_id)
    states = [np.array(env.reset(seed=3)[0]), *(np.array(env.step(1)[0]) for _ in range(steps))]
    return env.observation_space, np.stack(states)


def slices_of(space):
    """Return the columns of each part of a composite state."""
    ends = np.cumsum([math.prod(part.shape) for part in space.parts]).tolist()
    return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]


def test_a_composite_state_has_the_states_of_its_parts(caplog):
    space, states = states_of("Random-v0")
    assert isinstance(space, CompositeBox)
    assert states.dtype == space.dtype == np.float32
    assert all(space.contains(state) for state in states)
    conversions = " ".join(observations.conversions(make_env("Random-v0")))
    for fact in ("['screen'], image (4, 84, 84): grey", "resized to 84 x 84", "divided by 10", "one-hot"):
        assert fact in conversions
    assert "left out, because no network here can use them: ['text']" in caplog.text
    expected = [states_of(f"Random-{name}-v0")[1].reshape(len(states), -1) for name in ("screen", "cells", "pair")]
    assert np.array_equal(states, np.concatenate(expected, 1))
    assert [part.shape for part in space.parts[:2]] == [(4, 84, 84), (3, 7, 7)]


@pytest.mark.parametrize("make", [Model, DQN], ids=["Model", "DQN"])
def test_every_part_changes_what_a_network_computes(make):
    torch.manual_seed(0)
    space, states = states_of("Random-v0")
    net = make(space, 5)
    for columns in slices_of(space):
        changed = states.copy()
        changed[0, columns] = states[1, columns]
        before, after = (net(torch.from_numpy(each)) for each in (states, changed))
        if make is Model:
            before, after = before[0], after[0]
        assert not torch.equal(before[0], after[0])


def test_parts_are_encoded_as_they_are_alone():
    torch.manual_seed(0)
    space, states = states_of("Random-v0")
    model = FastModel(space, 5)
    model.normalise_by(torch.from_numpy(states))
    assert isinstance(model.body, CompositeEncoder)
    parts = zip(model.body.parts, ("screen", "cells", "pair"), strict=True)
    alone = [encoder(torch.from_numpy(states_of(f"Random-{name}-v0")[1])) for encoder, name in parts]
    assert torch.allclose(model.body(torch.from_numpy(states)), torch.cat(alone, 1), atol=1e-6)


def test_masks_and_vector_environments_take_composite_states():
    envs = make_vector_env("RandomMasked-v0", 3)
    states, _ = envs.reset(seed=1)
    assert states.shape == (3, *envs.single_observation_space.shape)
    logits, _ = FastModel(envs.single_observation_space, 5)(torch.from_numpy(states))
    assert (logits[:, 0] < -1e20).all()
    assert (logits[:, 1:] > -1e20).all()
