"""Checks on environments that are not ours. Errors name the environment, its seed and its step."""

import logging
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, NoReturn, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.errors import Fault

ALWAYS_FULLY_CHECKED = 100  # first steps of an environment whose observations are checked number by number
CHECKED_EVERY = 100  # later, those of every n-th step
LARGEST_REWARD = 1e15  # squared errors and their sums stay finite in float32

LONG_EPISODE = 200_000  # steps after which an episode is named; games have ten to thirty thousand at most

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Call(NamedTuple):
    """A call of an environment that has not returned yet.

    Attributes:
        border: the environment.
        start: when the call began, by time.monotonic().
    """

    border: "Border"
    start: float

    @property
    def seconds(self) -> float:
        """How long it takes already."""
        return time.monotonic() - self.start


class Border(gym.Wrapper):
    """Check an environment's observations and rewards, and name it in its errors.

    Shapes, data types and rewards are checked in every step; the numbers of an observation in the first steps and in
    every hundredth one after them.

    Args:
        env: environment as gym.make returns it.
        env_id: its id, for messages.

    Raises:
        Fault: by `reset` and `step`, if an observation or a reward is wrong.
        RuntimeError: by `reset` and `step`, if the environment raises an OSError or exits. It would look like an error
            of this program, or like its end. All other errors are raised unchanged.

    Attributes:
        call: the unfinished call of any environment in this process, or None.
    """

    call: ClassVar[Call | None] = None

    def __init__(self, env: gym.Env, env_id: str):
        super().__init__(env)
        self._env_id = env_id
        self._seed: int | None = None
        self._episode = 0  # since the reset with that seed
        self._step = 0
        self._steps = 0  # of all episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._episode = seed, 0
        self._episode, self._step = self._episode + 1, 0
        observation, info = self._guarded(lambda: self.env.reset(seed=seed, options=options))
        self._check(observation)
        return observation, info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._step += 1
        self._steps += 1
        if self._step == LONG_EPISODE:
            log.warning(
                "%s: the episode does not end, so it is not counted. Give the environment an end, such as "
                "max_episode_steps where it is registered.",
                self.place(),
            )
        observation, reward, terminated, truncated, info = self._guarded(lambda: self.env.step(action))
        self._check(observation)
        try:
            number = float(reward)
        except (TypeError, ValueError):
            self._fail(f"its reward is {reward!r}, which is no number")
        if not abs(number) <= LARGEST_REWARD:
            self._fail(f"its reward is {number:g}; it has to be between -1e15 and 1e15")
        return observation, reward, terminated, truncated, info

    def _guarded(self, call: Callable[[], Result]) -> Result:
        Border.call = Call(self, time.monotonic())
        try:
            return call()
        except (OSError, SystemExit) as error:
            raise RuntimeError(f"{self.place()}: it raised {error!r}") from error
        finally:
            Border.call = None

    def _check(self, observation: Any) -> None:
        space = self.observation_space
        if observation is None:
            self._fail(f"its observation is None; it has to be one of {space}")
        if not isinstance(space, spaces.Box):
            return
        try:
            array = np.asarray(observation)
        except ValueError as error:
            self._fail(f"its observation is no array: {error}")
        if array.shape != space.shape:
            self._fail(f"its observation has the shape {array.shape}; its space says {space.shape}")
        if not np.can_cast(array.dtype, space.dtype, "same_kind"):
            self._fail(f"its observation is {array.dtype}; its space says {space.dtype}")
        full = self._steps < ALWAYS_FULLY_CHECKED or self._steps % CHECKED_EVERY == 0
        if full and array.dtype.kind == "f" and not np.isfinite(array).all():
            index = np.argwhere(~np.isfinite(array))[0].tolist()
            self._fail(f"its observation has {array[tuple(index)]} at {index}; all numbers have to be finite")

    def _fail(self, problem: str) -> NoReturn:
        raise Fault(f"{self.place()}: {problem}. Correct the environment, or wrap it")

    def place(self) -> str:
        """Return the environment's id, seed, step and episode, for messages."""
        seed = "without a seed" if self._seed is None else f"seed {self._seed}"
        when = f"at step {self._step}" if self._step else "at the reset"
        return f"{self._env_id} ({seed}, {when} of episode {self._episode} since then)"
