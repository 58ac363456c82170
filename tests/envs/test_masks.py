"""Action masks: wrappers that make the mask a part of the state."""

import numpy as np
import pytest
from gymnasium import spaces

import fakes
from lib.envs import vector_env
from lib.envs.checked_env import CheckedEnv
from lib.envs.masks import MaskedBox
from lib.envs.single_env import make_env
from lib.envs.states import States
from lib.errors import Fault


def with_mask(**options):
    """Return an environment with five actions, and the wrapper that makes states with masks."""
    env = fakes.Shape(spaces.Box(0.0, 1.0, (2,)), **options)
    return env, States(CheckedEnv(env, "Shape"))


def test_a_mask_that_allows_no_action_is_replaced_at_the_end_of_an_episode_and_refused_before():
    env, masked = with_mask(mask="info", length=2)
    masked.reset()
    masked.step(1)
    allowed = env._mask
    env._mask = lambda: allowed() * (env.t < 2)
    assert masked.step(2)[0][2:].tolist() == [1.0] * 5
    env._mask = lambda: np.zeros(5, np.int8)
    with pytest.raises(Fault, match="no action is allowed, but its episode goes on"):
        masked.reset()


@pytest.mark.parametrize("wrong", [[1] * 4, [np.nan, 1, 1, 0, 0], [2, 1, 1, 0, 0]])
def test_a_wrong_mask_is_refused(wrong):
    env, masked = with_mask(mask="info")
    env._mask = lambda: wrong
    with pytest.raises(Fault, match=r"reports the action mask .*; it has to have 5 numbers, 1 for each allowed action"):
        masked.reset()


def test_a_mask_at_some_steps_only_is_refused_unless_a_method_reports_it_too():
    for first, later in (("info", None), (None, "info"), ("method", "info")):
        env, masked = with_mask(mask=first)
        masked.reset()
        env.mask = later
        if first == "method":
            assert masked.step(1)[0][2:].tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]
            continue
        with pytest.raises(Fault, match=r"info\['action_mask'\] at some resets and steps only"):
            masked.step(1)


def test_a_mask_in_the_observation_is_taken_out_of_it():
    """PettingZoo's games report it so. The rest of the observation is a board here, not a vector."""
    env = make_env("fakes:Board-observation-v0")
    assert isinstance(env.observation_space, MaskedBox)
    assert env.observation_space.plain.shape == (1, 9, 8)
    state, _ = env.reset(seed=1)
    masks = [state[1, 0, :5].tolist()] + [env.step(1 if step != 1 else 2)[0][1, 0, :5].tolist() for step in range(3)]
    assert masks == [[float(action != step) for action in range(5)] for step in range(4)]


def test_infos_other_than_the_mask_are_removed():
    """gymnasium cannot combine arrays of different lengths, and it uses the name "episode" itself."""
    envs = vector_env.make_vector_env("fakes:Talkative-v0", 2)
    envs.reset(seed=1)
    for _ in range(6):
        *_, infos = envs.step(np.array([0, 1]))
    assert infos["final_info"]["episode"]["l"].tolist() == [6, 6]
    env = make_env("fakes:Talkative-v0")
    env.reset(seed=1)
    assert [set(env.step(0)[4]) for _ in range(6)] == [set()] * 5 + [{"episode"}]
