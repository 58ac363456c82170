"""Wrong actions, observations and rewards are reported in one line; other errors of an environment carry its name."""

import re
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from lib.envs.checked_env import CheckedEnv
from lib.envs.states import States
from lib.errors import EnvironmentFailed, Fault

GOOD = np.zeros(3, np.float32)
BOX = spaces.Box(-1.0, 1.0, (3,), np.float32)
DICT = spaces.Dict({"a": BOX, "b": spaces.Discrete(5, start=2)})


class Scripted(gym.Env):
    """Return (observation, reward) pairs in turn, or raise them."""

    action_space = spaces.Discrete(2)

    def __init__(self, *turns, space=BOX):
        self.turns = list(turns)
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}

    def step(self, action):
        turn = self.turns.pop(0)
        if isinstance(turn, BaseException):
            raise turn
        return *turn, False, False, {}


def checked(*turns, space=BOX):
    env = CheckedEnv(Scripted(*turns, space=space), "Odd-v0")
    env.reset(seed=7)
    return env


@pytest.mark.parametrize(
    ("space", "observation", "problem"),
    [
        (BOX, None, " has the shape () and the type object; its space says (3,) and float32"),
        (BOX, np.array([0.0, 0.0, 1e300]), " has 1e+300 at [2]; all numbers have to be finite and fit into float32"),
        (spaces.Box(0, 255, (2,), np.uint8), [0, 256], " has 256 at [1]"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), " is array([1, 3]); its space is MultiDiscrete"),
        (DICT, {"a": GOOD, "b": 7}, "['b'] is 7; its space is Discrete"),
        (spaces.Tuple([BOX]), (GOOD + np.inf,), "[0] has inf at [0]"),
    ],
)
def test_a_wrong_observation_is_reported_with_its_place(space, observation, problem):
    good = space.sample()
    env = checked((good, 0.0), (observation, 0.0), space=space)
    env.step(0)
    env.reset()
    env.unwrapped.turns.insert(0, (good, 0.0))
    env.step(0)
    with pytest.raises(Fault, match=re.escape(f"Odd-v0 (episode 2 from seed 7, at step 2): its observation{problem}")):
        env.step(0)


@pytest.mark.parametrize(("space", "action"), [(spaces.Discrete(2), -1), (spaces.MultiDiscrete([2, 3]), [0, 3])])
def test_an_action_out_of_range_is_refused(space, action):
    plain, action = Scripted((GOOD, 0.0)), np.array(action)
    plain.action_space = space
    env = CheckedEnv(plain, "Odd-v0")
    env.reset(seed=7)
    with pytest.raises(Fault, match=re.escape(f"Odd-v0 (episode 1 from seed 7, at step 1): the action {action} is")):
        env.step(action)


def test_observations_and_rewards_are_converted_and_copied():
    shared = GOOD.copy()
    env = checked((shared, np.float32(0.5)), (np.zeros(3, np.int64), True), ([0, 0, 0], np.ones(1)))
    steps = [env.step(0) for _ in range(3)]
    shared += 0.5  # an environment may use its array again
    for observation, reward, *_ in steps:
        assert observation in BOX
        assert np.array_equal(observation, GOOD)
        assert type(reward) is float


def test_an_error_of_the_environment_gets_its_name_as_a_note_and_shows_only_its_frames(capsys):
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        checked(ZeroDivisionError("mine")).step(0)
    assert raised.value.__notes__ == ["Raised by Odd-v0 (episode 1 from seed 7, at step 1)"]
    sys.excepthook(raised.type, raised.value, raised.tb)
    errors = capsys.readouterr().err
    assert errors.startswith("Traceback")
    assert (errors.count("  File "), "lib/envs" in errors) == (1, False)


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), SystemExit(3)])
def test_an_error_that_looks_like_one_of_this_program_is_attributed_to_the_environment(monkeypatch, error):
    def fail(env):
        raise error

    for name in ("render", "action_masks"):
        monkeypatch.setattr(Scripted, name, fail, raising=False)
    env = checked(error)
    with pytest.raises(
        EnvironmentFailed, match=re.escape(f"Odd-v0 (episode 1 from seed 7, at step 1): it raised {error!r}")
    ):
        env.step(0)
    for call in (env.render, States(env).reset):
        with pytest.raises(EnvironmentFailed, match=r"^Odd-v0 \(.*: it raised"):
            call()
