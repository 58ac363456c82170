import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import fakes
from lib.envs import border
from lib.envs.border import CHECKED_EVERY, Border
from lib.envs.single_env import make_env
from lib.errors import Fault

GOOD = np.zeros(3, np.float32)


class Scripted(gym.Env):
    """Return (observation, reward) pairs in turn, or raise them; then harmless ones."""

    observation_space = spaces.Box(-1.0, 1.0, (3,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, *turns):
        self.turns = list(turns)

    def reset(self, *, seed=None, options=None):
        return GOOD, {}

    def step(self, action):
        turn = self.turns.pop(0) if self.turns else (GOOD, 0.0)
        if isinstance(turn, BaseException):
            raise turn
        return *turn, False, False, {}


def message_of(*turns, error=Fault):
    env = Border(Scripted((GOOD, 1.0), *turns), "Odd-v0")
    env.reset(seed=1)
    env.reset(seed=7)
    env.reset()
    env.step(0)
    with pytest.raises(error) as raised:
        env.step(0)
    assert str(raised.value).startswith("Odd-v0 (seed 7, at step 2 of episode 2 since then): it")
    return str(raised.value)


@pytest.mark.parametrize(
    ("observation", "reward", "problem"),
    [
        (None, 0.0, "its observation is None"),
        (np.zeros(4, np.float32), 0.0, r"has the shape \(4,\); its space says \(3,\)"),
        (np.zeros(3, complex), 0.0, "is complex128; its space says float32"),
        ([[1.0], [1.0, 2.0], 3.0], 0.0, "its observation is no array"),
        (np.array([0.0, np.nan, 0.0], np.float32), 0.0, r"has nan at \[1\]"),
        (np.array([0.0, 0.0, np.inf], np.float32), 0.0, r"has inf at \[2\]"),
        (GOOD, float("nan"), "its reward is nan"),
        (GOOD, -float("inf"), "its reward is -inf"),
        (GOOD, 1e30, r"its reward is 1e\+30"),
        (GOOD, None, "its reward is None, which is no number"),
    ],
)
def test_a_wrong_observation_or_reward_is_named_with_its_place(observation, reward, problem):
    assert re.search(problem, message_of((observation, reward)))


def test_numbers_are_checked_in_every_hundredth_step_later_on():
    bad = np.full(3, np.nan, np.float32)
    env = Border(Scripted(*[(GOOD, 0.0)] * (2 * CHECKED_EVERY), *[(bad, 0.0)] * CHECKED_EVERY), "Odd-v0")
    env.reset()
    for _ in range(3 * CHECKED_EVERY - 1):
        env.step(0)
    with pytest.raises(Fault, match=f"without a seed, at step {3 * CHECKED_EVERY} of episode 1"):
        env.step(0)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(3)])
def test_an_error_of_the_environment_is_not_taken_for_ours(error):
    message = message_of(error, error=RuntimeError)
    assert f"it raised {error!r}" in message


def test_other_errors_stay_what_they_are():
    env = Border(Scripted(ZeroDivisionError("mine")), "Odd-v0")
    env.reset()
    with pytest.raises(ZeroDivisionError, match="mine"):
        env.step(0)


def test_integers_and_wider_floats_are_accepted():
    env = Border(Scripted((np.zeros(3, np.int64), 1), (np.zeros(3), np.float64(0.5)), ([0, 0, 0], True)), "Odd-v0")
    env.reset()
    assert [env.step(0)[1] for _ in range(3)] == [1, 0.5, True]


def test_every_environment_but_atari_has_a_border():
    assert "<Border<" in str(make_env("CartPole-v1"))
    assert "<Border<" in str(make_env("fakes:Catch-v0"))
    assert "<Border<" not in str(make_env("PongNoFrameskip-v4"))


def test_an_episode_that_does_not_end_is_named(monkeypatch, caplog):
    monkeypatch.setattr(border, "LONG_EPISODE", 30)
    env = Border(fakes.Counting(length=200), "fakes:Endless-v0")
    env.reset(seed=5)
    for _ in range(100):
        env.step(0)
    [record] = caplog.records
    assert "fakes:Endless-v0 (seed 5, at step 30 of episode 1 since then): the episode does not end" in record.message
