import copy
import pickle
import re

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.classic_control import CartPoleEnv

import fakes
from lib.envs import checked_env, single_env
from lib.envs.checked_env import CHECKED_EVERY, CheckedEnv
from lib.envs.masks import AppendMask
from lib.envs.observation_checks import SMALL
from lib.envs.single_env import make_env
from lib.envs.vector_env import make_vector_env
from lib.errors import EnvironmentFailed, Fault, UsageError
from lib.system import memory

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
    env = CheckedEnv(Scripted((GOOD, 1.0), *turns), "Odd-v0")
    env.reset(seed=1)
    env.reset(seed=7)
    env.reset()
    env.step(0)
    with pytest.raises(error) as raised:
        env.step(0)
    assert str(raised.value).startswith("Odd-v0 (episode 2 from seed 7, at step 2): it")
    return str(raised.value)


def test_an_environment_that_replaces_its_space_is_checked_against_the_first_one():
    scripted = Scripted((np.zeros(5, np.float32), 0.0))
    env = CheckedEnv(scripted, "Odd-v0")
    env.reset(seed=1)
    scripted.observation_space = spaces.Box(-1.0, 1.0, (5,), np.float32)
    with pytest.raises(Fault, match=r"has the shape \(5,\); its space says \(3,\)"):
        env.step(0)


@pytest.mark.parametrize(
    ("observation", "reward", "problem"),
    [
        (None, 0.0, "its observation is None"),
        (np.zeros(4, np.float32), 0.0, r"has the shape \(4,\); its space says \(3,\)"),
        (np.zeros(3, complex), 0.0, "is complex128; its space says float32"),
        ([[1.0], [1.0, 2.0], 3.0], 0.0, "its observation is not an array"),
        (np.array([0.0, np.nan, 0.0], np.float32), 0.0, r"has nan at \[1\]"),
        (np.array([0.0, 0.0, np.inf], np.float32), 0.0, r"has inf at \[2\]"),
        (np.array([0.0, -1e30, 0.0], np.float32), 0.0, r"has -1e\+30 at \[1\]"),
        (GOOD, float("nan"), "its reward is nan"),
        (GOOD, -float("inf"), "its reward is -inf"),
        (GOOD, 1e30, r"its reward is 1e\+30"),
        (GOOD, None, "its reward is None, which is not a number"),
        (GOOD, "1.0", "its reward is '1.0', which is not a number"),
        (GOOD, 10**400, "its reward is inf"),
    ],
)
def test_a_wrong_observation_or_reward_is_reported_with_its_place(observation, reward, problem):
    assert re.search(problem, message_of((observation, reward)))


@pytest.mark.parametrize(
    ("turn", "problem"),
    [(None, "its step returned None; it has to return"), ((GOOD, 0.0, False, {}), "its step returned (array(")],
)
def test_a_step_that_returns_something_else_is_reported(monkeypatch, turn, problem):
    env = CheckedEnv(Scripted(), "Odd-v0")
    env.reset(seed=7)
    monkeypatch.setattr(env.env, "step", lambda action: turn)
    with pytest.raises(Fault) as raised:
        env.step(0)
    assert str(raised.value).startswith(f"Odd-v0 (episode 1 from seed 7, at step 1): {problem}")


@pytest.mark.parametrize(
    ("turn", "problem"),
    [
        ((GOOD, 0.0, None, False, {}), "terminated is None; it has to be True or False"),
        ((GOOD, 0.0, False, "no", {}), "truncated is 'no'; it has to be True or False"),
        ((GOOD, 0.0, False, False, None), "its info is None; it has to be a dictionary"),
    ],
)
def test_flags_and_infos_of_another_type_are_reported(monkeypatch, turn, problem):
    env = CheckedEnv(Scripted(), "Odd-v0")
    env.reset(seed=7)
    monkeypatch.setattr(env.env, "step", lambda action: turn)
    with pytest.raises(Fault, match=re.escape(f"at step 1): {problem}")):
        env.step(0)


def test_flags_may_be_numbers_of_numpy(monkeypatch):
    env = CheckedEnv(Scripted(), "Odd-v0")
    env.reset(seed=7)
    monkeypatch.setattr(env.env, "step", lambda action: (GOOD, 0.0, np.int64(1), np.bool_(False), {}))
    assert env.step(0)[2:4] == (True, False)


def test_an_observation_does_not_change_when_the_environment_uses_its_array_again(monkeypatch):
    shared = np.zeros_like(GOOD)
    env = CheckedEnv(Scripted((shared, 0.0), (shared, 0.0)), "Odd-v0")
    env.reset(seed=7)
    first = env.step(0)[0]
    shared += 0.5
    assert np.array_equal(first, np.zeros_like(GOOD))
    assert np.array_equal(env.step(0)[0], shared)


def test_numbers_of_large_observations_are_checked_in_every_hundredth_step_later_on(monkeypatch):
    large = spaces.Box(-1.0, 1.0, (SMALL + 1,))
    monkeypatch.setattr(Scripted, "observation_space", large)
    good, bad = np.zeros(large.shape, np.float32), np.full(large.shape, np.nan, np.float32)
    monkeypatch.setattr(Scripted, "reset", lambda self, **options: (good, {}))
    turns = [(good, 0.0)] * (2 * CHECKED_EVERY) + [(bad, 0.0)] * CHECKED_EVERY
    env = CheckedEnv(Scripted(*turns), "Odd-v0")
    env.reset()
    for _ in range(3 * CHECKED_EVERY - 1):
        env.step(0)
    with pytest.raises(Fault, match=f"episode 1 without a seed, at step {3 * CHECKED_EVERY}"):
        env.step(0)


def test_numbers_outside_of_the_bounds_are_reported_once_for_all_environments(caplog, monkeypatch):
    monkeypatch.setattr(CheckedEnv, "reported", set())
    for env in [CheckedEnv(Scripted(*[(GOOD + 2, 0.0)] * 5), "Odd-v0") for _ in range(2)]:
        env.reset(seed=7)
        for _ in range(5):
            env.step(0)
    [record] = caplog.records
    assert "(episode 1 from seed 7, at step 1): its observation has 2 at [0]; its space allows -1 to 1" in (
        record.message
    )


def test_a_rounded_number_at_its_bound_is_within_the_bounds(caplog, monkeypatch):
    monkeypatch.setattr(Scripted, "observation_space", spaces.Box(-0.9, 0.9, (3,), np.float32))
    env = CheckedEnv(Scripted(([0.9, 0.0, -0.9], 0.0)), "Odd-v0")
    env.reset(seed=7)
    env.step(0)
    assert not caplog.records


def test_infinity_in_half_precision_is_reported(monkeypatch):
    monkeypatch.setattr(Scripted, "observation_space", spaces.Box(-1.0, 1.0, (3,), np.float16))
    wrong = np.array([0.0, np.inf, 0.0], np.float16)
    env = CheckedEnv(Scripted((wrong, 0.0)), "Odd-v0")
    with pytest.raises(Fault, match=r"has inf at \[1\]"):
        env.step(0)


def test_a_reward_becomes_a_float():
    env = CheckedEnv(Scripted((GOOD, np.float32(0.5))), "Odd-v0")
    assert type(env.step(0)[1]) is float


def test_a_package_that_only_rendering_needs_is_named_in_one_line(monkeypatch):
    def render(self):
        raise gym.error.DependencyNotInstalled("pygame is not installed, run `pip install pygame`")

    monkeypatch.setattr(Scripted, "render", render)
    env = CheckedEnv(Scripted(), "Odd-v0")
    env.reset(seed=7)
    with pytest.raises(UsageError, match=r"^Odd-v0 .* needs another package: pygame is not installed, run"):
        env.render()


def test_environments_that_were_pickled_or_copied_are_closed_at_the_end_of_the_context(monkeypatch):
    closed = []
    monkeypatch.setattr(Scripted, "close", lambda self: closed.append(self))
    env = CheckedEnv(Scripted(), "Odd-v0")
    with checked_env.closing():
        restored = [pickle.loads(pickle.dumps(env)), copy.deepcopy(env)]
    assert closed == [each.unwrapped for each in restored]


def test_an_error_on_closing_is_attributed_to_the_environment(monkeypatch):
    def fail(self):
        raise OSError("close fails")

    monkeypatch.setattr(Scripted, "close", fail)
    with pytest.raises(EnvironmentFailed, match=r"^Odd-v0 .*: it raised OSError"):
        CheckedEnv(Scripted(), "Odd-v0").close()


@pytest.mark.parametrize(
    ("make", "when"),
    [
        (lambda: make_vector_env("CartPole-v1", 2), "when it is closed"),
        (lambda: make_env("CartPole-v1"), "episode 1 from seed 0, at the reset"),
    ],
    ids=["vector", "single"],
)
def test_an_error_on_closing_the_environment_of_the_mask_probe_is_attributed_to_the_environment(
    monkeypatch, make, when
):
    def close(self):
        raise SystemExit(5)

    single_env._masked.clear()
    monkeypatch.setattr(CartPoleEnv, "close", close)
    with pytest.raises(EnvironmentFailed, match=re.escape(f"CartPole-v1 ({when}): it raised SystemExit(5)")):
        make()


def test_an_error_on_closing_before_rendering_is_reported(monkeypatch):
    def close(self):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CartPoleEnv, "close", close)
    with pytest.raises(UsageError, match="its close method raised OSError"):
        make_env("CartPole-v1", render_mode="rgb_array")


class Unprintable(RuntimeError):
    def __repr__(self):
        raise ValueError("no text")

    __str__ = __repr__


def test_an_error_without_a_text_is_reported_by_its_type():
    assert "it raised <Unprintable, whose repr() fails>" in message_of(Unprintable(), error=EnvironmentFailed)


class Textless(ValueError):
    def __str__(self):
        raise ValueError("no text")


def test_an_error_whose_text_fails_is_reported_by_its_type():
    assert "it raised Textless()" in message_of(Textless(), error=EnvironmentFailed)


class FailingNumber:
    """Reward or observation whose conversion raises an error."""

    def __float__(self):
        raise OSError(28, "No space left on device")

    def __array__(self, dtype=None, copy=None):
        raise OSError(28, "No space left on device")


@pytest.mark.parametrize("turn", [(GOOD, FailingNumber()), (FailingNumber(), 0.0)], ids=["reward", "observation"])
def test_an_error_of_a_conversion_is_attributed_to_the_environment(turn):
    assert "it raised OSError(28, 'No space left on device')" in message_of(turn, error=EnvironmentFailed)


def test_an_error_in_the_conversion_of_a_mask_is_attributed_to_the_environment(monkeypatch):
    monkeypatch.setattr(Scripted, "action_masks", lambda self: FailingNumber(), raising=False)
    with pytest.raises(EnvironmentFailed, match=r"^Odd-v0 \(episode 1 from seed 7, at the reset.* it raised OSError"):
        AppendMask(CheckedEnv(Scripted(), "Odd-v0")).reset(seed=7)


class Strange(BaseException):
    pass


NOT_OURS = [
    Strange("neither an Exception nor an exit"),
    OSError(28, "No space left on device"),
    BlockingIOError(11, "Resource temporarily unavailable"),
    MemoryError("no room for textures"),
    RuntimeError("can't start new thread"),
    SystemExit(3),
    GeneratorExit(),
    StopIteration(),
]


@pytest.mark.parametrize("error", NOT_OURS)
def test_an_error_of_the_environment_is_attributed_to_the_environment(error):
    message = message_of(error, error=EnvironmentFailed)
    assert f"it raised {error!r}" in message
    assert memory.shortage(EnvironmentFailed(message)) is None


@pytest.mark.parametrize("error", NOT_OURS)
def test_errors_of_masks_rendering_and_constructors_are_reported(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Scripted, "action_masks", fail, raising=False)
    monkeypatch.setattr(Scripted, "render", fail, raising=False)
    env = CheckedEnv(Scripted(), "Odd-v0")
    with pytest.raises(EnvironmentFailed, match=r"^Odd-v0 \(episode 1 from seed 7, at the reset.* it raised"):
        AppendMask(env).reset(seed=7)
    with pytest.raises(EnvironmentFailed, match=r"^Odd-v0 .* it raised"):
        env.render()
    monkeypatch.setattr(gym, "make", fail)
    with pytest.raises(UsageError, match=re.escape(f"its constructor raised {error!r}")):
        make_env("CartPole-v1")


def test_other_errors_get_the_name_as_a_note():
    env = CheckedEnv(Scripted(ZeroDivisionError("mine")), "Odd-v0")
    env.reset()
    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        env.step(0)
    assert raised.value.__notes__ == ["Raised by Odd-v0 (episode 1 without a seed, at step 1)"]


def test_integers_and_wider_floats_are_accepted():
    env = CheckedEnv(Scripted((np.zeros(3, np.int64), 1), (np.zeros(3), np.float64(0.5)), ([0, 0, 0], True)), "Odd-v0")
    env.reset()
    assert [env.step(0)[1] for _ in range(3)] == [1, 0.5, True]


def test_every_environment_but_atari_is_checked():
    assert "<CheckedEnv<" in str(make_env("CartPole-v1"))
    assert "<CheckedEnv<" in str(make_env("fakes:Catch-v0"))
    assert "<CheckedEnv<" not in str(make_env("PongNoFrameskip-v4"))


def test_an_episode_that_does_not_end_is_reported(monkeypatch, caplog):
    monkeypatch.setattr(checked_env, "LONG_EPISODE", 30)
    env = CheckedEnv(fakes.Counting(length=200), "fakes:Endless-v0")
    env.reset(seed=5)
    for _ in range(100):
        env.step(0)
    [record] = caplog.records
    assert "fakes:Endless-v0 (episode 1 from seed 5, at step 30): the episode has not ended after" in record.message
