"""Checks for external environments. Errors name the environment, its seed and its step."""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NoReturn, Protocol, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np

from lib.envs.observation_checks import LARGEST, copy_of, out_of_bounds, problems, safe_repr, short_repr
from lib.errors import CallInterrupted, EnvironmentFailed, Fault, UsageError

# Observations larger than observation_checks.SMALL are fully checked in the first n steps, then every n steps.
CHECKED_EVERY = 100

# Errors of an environment that could be mistaken for those of this program, or that a generator would convert.
MISLEADING = (OSError, EOFError, MemoryError, RuntimeError, StopIteration, StopAsyncIteration)

LONG_EPISODE = 200_000  # steps after which a warning is logged; games have ten to thirty thousand at most

Result = TypeVar("Result")

log = logging.getLogger(__name__)


def guarded(describe: Callable[[], str], call: Callable[[], Result]) -> Result:
    """Call code of an environment. Errors name the environment.

    This includes conversions of its observations and rewards, which may run its code.

    Args:
        describe: function that names the environment.
        call: function to call.

    Raises:
        EnvironmentFailed: if the function exits, or raises an error that could be mistaken for one of this program.
            Faults and usage errors are raised unchanged. Other errors, and interruptions, get the environment's name
            as a note.
        UsageError: if the function needs a package that is not installed.
    """
    try:
        return call()
    except BaseException as error:
        if isinstance(error, Fault | UsageError) and not isinstance(error, CallInterrupted):
            raise
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise UsageError(f"{describe()} needs another package: {error}") from error
        is_plain = isinstance(error, Exception) and not isinstance(error, MISLEADING)
        if (is_plain and _has_text(error)) or isinstance(error, KeyboardInterrupt):
            error.add_note(f"Raised by {describe()}")
            raise
        raise EnvironmentFailed(f"{describe()}: it raised {safe_repr(error)}") from error


def guarded_method(env: gym.Env, method: Callable[[], Result]) -> Result:
    """Call a method of an environment, such as action_masks. Errors name the environment if a CheckedEnv wraps it."""
    checked = _checked(env)
    return method() if checked is None else guarded(checked.describe, method)


def describe(env: gym.Env) -> str:
    """Return an environment's id, seed, step and episode if a CheckedEnv is among its wrappers, otherwise its text."""
    checked = _checked(env)
    return str(env) if checked is None else checked.describe()


def wrappers(env: gym.Env) -> Iterator[gym.Wrapper]:
    """Yield the wrappers of an environment, the outermost first."""
    while isinstance(env, gym.Wrapper):
        yield env
        env = env.env


def _checked(env: gym.Env) -> "CheckedEnv | None":
    return next((each for each in wrappers(env) if isinstance(each, CheckedEnv)), None)


class CheckedEnv(gym.Wrapper):
    """Check an environment's observations and rewards, and name it in its errors.

    Observations are copied, because an environment may write its next one into the same array. Lists, and data types
    of the same kind as the space's, such as float64 for float32 or int64 for uint8, are converted to the space's.

    Structure, shapes, data types and rewards are checked in every step. So are the numbers of small observations;
    those of large ones are checked in the first 100 steps and then in every 100th.

    Args:
        env: environment as gym.make returns it.
        env_id: its id, for messages.

    Raises:
        Fault: by `reset` and `step`, if an observation or a reward is wrong.
        EnvironmentFailed: by `reset`, `step` and `render`; see guarded.

    Attributes:
        opened: environments that `closing` has to close, or None outside of it.
        reported: ids of environments whose observations were reported to be outside of their bounds.
    """

    opened: ClassVar["list[CheckedEnv] | None"] = None
    reported: ClassVar[set[str]] = set()

    def __init__(self, env: gym.Env, env_id: str):
        super().__init__(env)
        self.observation_space = env.observation_space  # fixed, even if the environment replaces its own
        self._note_opened()
        self._env_id = env_id
        self._seed: int | None = None
        self._episode = 0  # since the reset with that seed
        self._step = 0
        self._steps = 0  # over all episodes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._episode = seed, 0
        self._episode, self._step = self._episode + 1, 0
        return guarded(self.describe, lambda: self._checked_reset(seed, options))

    def _checked_reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        returned: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            self._fail(f"its reset returned {short_repr(returned)}; it has to return an observation and a dictionary")
        observation, info = returned
        self._check(observation)
        self._check_info(info)
        return copy_of(observation, self.observation_space), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        self._step += 1
        self._steps += 1
        if self._step == LONG_EPISODE:
            log.warning(
                "%s: the episode has not ended after %d steps. Only finished episodes are counted; register the "
                "environment with max_episode_steps.",
                self.describe(),
                LONG_EPISODE,
            )
        return guarded(self.describe, lambda: self._checked_step(action))

    def _checked_step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        returned: Any = self.env.step(action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            self._fail(
                f"its step returned {short_repr(returned)}; it has to return observation, reward, terminated, "
                "truncated and a dictionary"
            )
        observation, reward, terminated, truncated, info = returned
        self._check(observation)
        try:
            if isinstance(reward, str | bytes):  # float accepts "1.0"
                raise TypeError
            number = float(reward)
        except (TypeError, ValueError):
            self._fail(f"its reward is {short_repr(reward)}, which is not a number")
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST:
            self._fail(f"its reward is {number:g}; it has to be between -1e15 and 1e15")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, int | np.bool_ | np.integer):
                self._fail(f"{name} is {short_repr(flag)}; it has to be True or False")
        self._check_info(info)
        return copy_of(observation, self.observation_space), number, bool(terminated), bool(truncated), info

    def render(self) -> Any:
        return guarded(self.describe, self.env.render)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._note_opened()

    def _note_opened(self) -> None:
        if CheckedEnv.opened is not None:
            CheckedEnv.opened.append(self)

    def close(self) -> None:
        if CheckedEnv.opened is not None and self in CheckedEnv.opened:
            CheckedEnv.opened.remove(self)
        guarded(self.describe, self.env.close)

    def _check(self, observation: Any) -> None:
        often = self._steps < CHECKED_EVERY or self._steps % CHECKED_EVERY == 0
        for problem in problems(observation, self.observation_space, often):
            self._fail(f"its observation{problem}")
        if not often or self._env_id in CheckedEnv.reported:
            return
        if outside := next(out_of_bounds(observation, self.observation_space), None):
            CheckedEnv.reported.add(self._env_id)
            log.warning(
                "%s: its observation%s. Correct one of them. Each process shows this warning once.",
                self.describe(),
                outside,
            )

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, dict):
            self._fail(f"its info is {short_repr(info)}; it has to be a dictionary")

    def _fail(self, problem: str) -> NoReturn:
        raise Fault(f"{self.describe()}: {problem}. Correct the environment, or add a wrapper that does")

    def describe(self) -> str:
        """Return the environment's id, seed, step and episode since the reset with that seed, for messages."""
        if not self._episode:
            return f"{self._env_id} (before its first reset)"
        seed = "without a seed" if self._seed is None else f"from seed {self._seed}"
        when = f"at step {self._step}" if self._step else "at the reset"
        return f"{self._env_id} (episode {self._episode} {seed}, {when})"


@contextlib.contextmanager
def closing() -> Iterator[None]:
    """Close all environments that were made in this context and are still open, so that they end their processes."""
    opened = CheckedEnv.opened = []
    try:
        yield
    finally:
        close_all(opened[:])
        CheckedEnv.opened = None


class Closable(Protocol):
    """An object that can be closed, such as an environment."""

    def close(self) -> object: ...


def close_all(opened: Iterable[Closable]) -> None:
    """Close environments, or what holds some, and log their errors, because what matters is done or has failed."""
    for each in opened:
        try:
            each.close()
        except Exception as error:  # noqa: BLE001 - not our code
            log.warning("%s", error)


def _has_text(error: BaseException) -> bool:
    try:
        str(error)
    except Exception:  # noqa: BLE001 - not our code
        return False
    return True
