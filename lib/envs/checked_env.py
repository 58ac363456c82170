"""Checks for external environments. Errors name the environment, its seed and its step."""

import contextlib
import functools
import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol, SupportsFloat, TypeVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.errors import EnvironmentFailed, Fault, UsageError

SMALL = 4096  # observations with at most this many numbers are fully checked in every step
CHECKED_EVERY = 100  # larger ones are fully checked in the first n steps, then in every n-th step
LARGEST = 1e15  # largest magnitude of rewards and observations; TD errors and their sums stay finite in float32

# Errors of an environment that could be mistaken for those of this program, or that a generator would convert.
MISLEADING = (OSError, EOFError, MemoryError, RuntimeError, StopIteration, StopAsyncIteration)

LONG_EPISODE = 200_000  # steps after which a warning is logged; games have ten to thirty thousand at most

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Call(NamedTuple):
    """A call of an environment that has not returned yet.

    Attributes:
        describe: function that names the environment.
        start: when the call began, by time.monotonic().
    """

    describe: Callable[[], str]
    start: float

    @property
    def seconds(self) -> float:
        """Seconds since the call began."""
        return time.monotonic() - self.start


def guarded(describe: Callable[[], str], call: Callable[[], Result]) -> Result:
    """Call code of an environment. Errors name the environment. CheckedEnv.call is set during the call.

    This includes conversions of its observations and rewards, which may run its code.

    Args:
        describe: function that names the environment.
        call: function to call.

    Raises:
        EnvironmentFailed: if the function exits, or raises an error that could be mistaken for one of this program.
            Faults and usage errors are raised unchanged. Other errors, and Ctrl-C, get the environment's name as a
            note.
        UsageError: if the function needs a package that is not installed.
    """
    outer, CheckedEnv.call = CheckedEnv.call, Call(describe, time.monotonic())
    CheckedEnv.newest = describe
    try:
        result = call()
        if CheckedEnv.forked:
            os._exit(0)
        if CheckedEnv.interruption is not None:
            raise CheckedEnv.interruption  # the call has caught it
        return result
    except BaseException as error:
        if CheckedEnv.forked:
            os._exit(1)
        if isinstance(error, Fault | UsageError):
            raise
        if isinstance(error, gym.error.DependencyNotInstalled):
            raise UsageError(f"{describe()} needs another package: {error}") from error
        is_plain = isinstance(error, Exception) and not isinstance(error, MISLEADING)
        if (is_plain and _has_text(error)) or (isinstance(error, KeyboardInterrupt) and _may_be_ctrl_c(error)):
            error.add_note(f"Raised by {describe()}")
            raise
        raise EnvironmentFailed(f"{describe()}: it raised {_text(error)}") from error
    finally:
        CheckedEnv.call = outer


@contextlib.contextmanager
def watched(describe: Callable[[], str]) -> Iterator[None]:
    """Let the watchdog see a call of the user's code whose errors are handled elsewhere.

    Args:
        describe: function that returns the name of the called code, for messages.
    """
    outer = CheckedEnv.call
    CheckedEnv.call = Call(describe, time.monotonic())
    CheckedEnv.newest = describe
    try:
        yield
    finally:
        CheckedEnv.call = outer


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
        call: unfinished call of an environment in this process, or None.
        interruption: error that a signal has raised in this process, or None. It is raised again if an environment
            swallows it.
        ctrl_c_raises: whether Ctrl-C raises KeyboardInterrupt in this process.
        newest: function that names the environment of the newest call, finished or not; None before the first one.
        forked: whether this process was forked in a call of an environment. It ends when the call does, because the
            run is not its own.
        opened: environments that `closing` has to close, or None outside of it.
    """

    call: ClassVar[Call | None] = None
    forked: ClassVar[bool] = False
    interruption: ClassVar[BaseException | None] = None
    ctrl_c_raises: ClassVar[bool] = True
    opened: ClassVar["list[CheckedEnv] | None"] = None
    newest: ClassVar[Callable[[], str] | None] = None

    def __init__(self, env: gym.Env, env_id: str):
        super().__init__(env)
        self.observation_space = env.observation_space  # fixed, even if the environment replaces its own
        self._note_opened()
        self._env_id = env_id
        self._seed: int | None = None
        self._episode = 0  # since the reset with that seed
        self._step = 0
        self._steps = 0  # over all episodes
        self._warned = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None:
            self._seed, self._episode = seed, 0
        self._episode, self._step = self._episode + 1, 0
        return guarded(self.describe, lambda: self._checked_reset(seed, options))

    def _checked_reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        returned: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(returned, tuple) or len(returned) != 2:
            self._fail(f"its reset returned {_short(returned)}; it has to return an observation and a dictionary")
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
                f"its step returned {_short(returned)}; it has to return observation, reward, terminated, truncated "
                "and a dictionary"
            )
        observation, reward, terminated, truncated, info = returned
        self._check(observation)
        try:
            if isinstance(reward, str | bytes):  # float accepts "1.0"
                raise TypeError
            number = float(reward)
        except (TypeError, ValueError):
            self._fail(f"its reward is {_short(reward)}, which is not a number")
        except OverflowError:
            number = math.inf
        if not abs(number) <= LARGEST:
            self._fail(f"its reward is {number:g}; it has to be between -1e15 and 1e15")
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, int | np.bool_ | np.integer):
                self._fail(f"{name} is {_short(flag)}; it has to be True or False")
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
        if often and not self._warned and (outside := next(out_of_bounds(observation, self.observation_space), None)):
            self._warned = True
            log.warning(
                "%s: its observation%s. Correct one of them. This warning is shown once.", self.describe(), outside
            )

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, dict):
            self._fail(f"its info is {_short(info)}; it has to be a dictionary")

    def _fail(self, problem: str) -> NoReturn:
        raise Fault(f"{self.describe()}: {problem}. Correct the environment, or add a wrapper that does")

    def describe(self) -> str:
        """Return the environment's id, seed, step and episode since the reset with that seed, for messages."""
        if not self._episode:
            return f"{self._env_id} (before its first reset)"
        seed = "without a seed" if self._seed is None else f"from seed {self._seed}"
        when = f"at step {self._step}" if self._step else "at the reset"
        return f"{self._env_id} (episode {self._episode} {seed}, {when})"


def _note_fork() -> None:
    CheckedEnv.forked = CheckedEnv.call is not None


os.register_at_fork(after_in_child=_note_fork)


@contextlib.contextmanager
def closing() -> Iterator[None]:
    """Close all environments that were made in this context and are still open, so that they end their processes."""
    opened = CheckedEnv.opened = []
    try:
        yield
    finally:
        CheckedEnv.interruption = None
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


def problems(observation: Any, space: spaces.Space[Any], every_number: bool) -> Iterator[str]:
    """Yield what is wrong with an observation, such as "['position'] is None; its space is Box(...)".

    Args:
        observation: observation of an environment.
        space: its space. Spaces that no network can read are not checked.
        every_number: also check the numbers of large arrays.
    """
    if observation is None:
        yield f" is None; its space is {space}"
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        yield from _problems_of_parts(observation, space, every_number)
    elif isinstance(space, spaces.Discrete):
        number = np.asarray(observation)
        if number.shape != () or number.dtype.kind not in "iub" or not space.contains(int(number)):
            yield f" is {_short(observation)}; its space is {space}"
    elif isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        yield from _problems_of_array(observation, space, every_number)


def _problems_of_parts(observation: Any, space: Any, every_number: bool) -> Iterator[str]:
    parts: dict[Any, spaces.Space[Any]] = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict):
            yield f" is {_short(observation)}; it has to be a dictionary of {', '.join(map(repr, parts))}"
            return
    elif not isinstance(observation, tuple | list) or len(observation) != len(parts):
        yield f" is {_short(observation)}; it has to be a tuple of {len(parts)} elements"
        return
    for name, part in parts.items():
        if isinstance(observation, dict) and name not in observation:
            yield f" lacks {name!r}"
        else:
            yield from (f"[{name!r}]{problem}" for problem in problems(observation[name], part, every_number))


def _problems_of_array(
    observation: Any, space: spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete, every_number: bool
) -> Iterator[str]:
    try:
        array = np.asarray(observation)
    except ValueError as error:
        yield f" is not an array: {error}"
        return
    is_signed_for_unsigned = (array.dtype.kind, space.dtype.kind) == ("i", "u")
    if array.shape != space.shape:
        yield f" has the shape {array.shape}; its space says {space.shape}"
    elif not (is_signed_for_unsigned or np.can_cast(array.dtype, space.dtype, "same_kind")):
        yield f" is {array.dtype}; its space says {space.dtype}"
    elif not isinstance(space, spaces.Box):
        converted = array.astype(space.dtype)
        if not (np.array_equal(converted, array) and space.contains(converted)):
            yield f" is {_short(observation)}; its space is {space}"
    elif array.dtype == space.dtype and array.dtype.kind in "biu" and array.dtype.itemsize < 8:
        return  # it can hold no other numbers
    elif every_number or array.size <= SMALL or is_signed_for_unsigned:
        low, high = _limits(array.dtype, space.dtype)
        within = (array >= low) & (array <= high)  # comparisons are false for NaN
        if not within.all():
            index = np.argwhere(~within)[0].tolist()
            yield f" has {array[tuple(index)]:g} at {index}; all numbers have to be finite, from {low:g} to {high:g}"


@functools.cache
def _limits(dtype: np.dtype, space_dtype: np.dtype) -> tuple[float, float]:
    """Return the smallest and the largest number that an array may have, and that its space's type can hold."""
    low, high = -LARGEST, LARGEST
    for kind in (dtype, space_dtype):
        if kind.kind == "f":
            low, high = max(low, float(np.finfo(kind).min)), min(high, float(np.finfo(kind).max))
        elif kind.kind in "iu":
            low, high = max(low, int(np.iinfo(kind).min)), min(high, int(np.iinfo(kind).max))
        elif kind.kind == "b":
            low, high = 0, 1
    return (low, high) if dtype.kind == "f" else (int(low), int(high))


def copy_of(observation: Any, space: spaces.Space[Any]) -> Any:
    """Return a copy of a checked observation, with the space's data types."""
    if isinstance(space, spaces.Dict):
        return {name: copy_of(observation[name], part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(copy_of(observation[number], part) for number, part in enumerate(space))
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        return np.array(observation, dtype=space.dtype)
    return observation


def out_of_bounds(observation: Any, space: spaces.Space[Any]) -> Iterator[str]:
    """Yield the first number of each box that is out of bounds, for a warning."""
    if isinstance(space, spaces.Dict):
        for name, part in space.items():
            yield from (f"[{name!r}]{problem}" for problem in out_of_bounds(observation[name], part))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space):
            yield from (f"[{number}]{problem}" for problem in out_of_bounds(observation[number], part))
    elif isinstance(space, spaces.Box):
        array = np.asarray(observation)
        if array.dtype.kind == "f":
            array = array.astype(space.dtype)  # the bounds are rounded to this type
        outside = (array < space.low) | (array > space.high)
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            bounds = f"{space.low[index]:.9g} to {space.high[index]:.9g}"
            yield f" has {array[index]:.9g} at {list(index)}; its space allows {bounds}"


def _has_text(error: BaseException) -> bool:
    try:
        str(error)
    except Exception:  # noqa: BLE001 - not our code
        return False
    return True


def _may_be_ctrl_c(error: KeyboardInterrupt) -> bool:
    """Return whether Ctrl-C may have raised the error. In actors it is blocked, and a run that learns handles it."""
    if type(error) is not KeyboardInterrupt:
        return True
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return signal.SIGINT not in blocked and CheckedEnv.ctrl_c_raises


def _short(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _text(value: Any) -> str:
    """Return repr(value), or its type if its own code for that fails."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - not our code
        return f"<{type(value).__name__}, whose repr() fails>"
