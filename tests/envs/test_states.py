"""States of several parts: nothing is lost, and every part is converted and encoded as it would be alone."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

import fakes
from lib.dqn_model import DQN
from lib.envs import observations
from lib.envs.masks import CompositeBox
from lib.envs.observations import prepare
from lib.envs.single_env import conversions, make_env
from lib.envs.vector_env import make_vector_env
from lib.ppo.fast import FastModel
from lib.ppo.model import Model

SPACE = spaces.Dict(
    screen=spaces.Box(0, 255, (60, 80, 3), np.uint8),
    cells=spaces.Box(0, 10, (7, 7, 3), np.uint8),
    pair=spaces.Tuple([spaces.Discrete(3), spaces.Box(-np.inf, np.inf, (2,), np.float32)]),
    text=spaces.Text(4),
)


@pytest.fixture
def played(register):
    """The space of composite states, the states of one episode, and those of each part: (steps, ...)."""
    register("Random-v0", fakes.Shape, kwargs={"space": SPACE})
    env, plain = make_env("Random-v0"), fakes.Shape(SPACE)
    states = [env.reset(seed=3)[0], *(env.step(1)[0] for _ in range(6))]
    observations = [plain.reset(seed=3)[0], *(plain.step(1)[0] for _ in range(6))]
    screens, cells, pairs = (
        [conversion(observation[name]) for observation in observations]
        for name in ("screen", "cells", "pair")
        for conversion in prepare(SPACE[name], name)
    )
    stacks = np.array([[screens[max(0, step - back)] for back in (3, 2, 1, 0)] for step in range(7)])
    return env.observation_space, np.stack(states), [stacks, np.array(cells), np.array(pairs)]


def test_a_composite_state_has_the_states_of_its_parts(played, caplog):
    space, states, parts = played
    assert isinstance(space, CompositeBox)
    assert states.dtype == space.dtype == np.float32
    assert all(space.contains(state) for state in states)
    assert np.array_equal(states, np.concatenate([part.reshape(7, -1) for part in parts], 1))
    assert [part.shape for part in space.parts] == [part.shape[1:] for part in parts]
    observations.log_once.cache_clear()
    notes = " ".join(conversions(make_env("Random-v0")))
    for fact in (
        "image (4, 84, 84) from ['screen']; axis 2, ",
        "; grey",
        "resized to 84 x 84",
        "divided by 10",
        "one-hot",
    ):
        assert fact in notes
    assert "left out, because no network here can use them: ['text']" in caplog.text


@pytest.mark.parametrize("make", [FastModel, Model, DQN])
def test_parts_are_encoded_as_they_are_alone(make, played):
    space, states, parts = played
    net = make(space, 5)
    body = net.conv if make is DQN else net.body
    if make is FastModel:
        net.normalise_by(torch.from_numpy(states))
    alone = [encoder(torch.from_numpy(part)) for encoder, part in zip(body.parts, parts, strict=True)]
    assert torch.allclose(body(torch.from_numpy(states)), torch.cat(alone, 1), atol=1e-6)


def test_masks_and_vector_environments_take_composite_states(register):
    register("RandomMasked-v0", fakes.Shape, kwargs={"space": SPACE, "mask": "info"})
    envs = make_vector_env("RandomMasked-v0", 3)
    states, _ = envs.reset(seed=1)
    assert states.shape == (3, *envs.single_observation_space.shape)
    logits, _ = FastModel(envs.single_observation_space, 5)(torch.from_numpy(states))
    assert (logits[:, 0] < -1e20).all()
    assert (logits[:, 1:] > -1e20).all()
