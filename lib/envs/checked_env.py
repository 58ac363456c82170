"""Checks for external environments. Errors name the environment, its seed, step and episode."""

import contextlib
import logging
import math
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, SupportsFloat
from weakref import WeakSet

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.errors import CallInterrupted, EnvironmentFailed, Fault, Interrupted, UsageError

# Errors of an environment that lib.cli would take for this program's own.
MISLEADING = (OSError, MemoryError, SystemExit)

# Messages of errors that environments written for gym raise.
OLD_MANNER = "Gym is incompatible|inherit from .*gymnasium|reset.. got an unexpected|expected 5, got 4|and no info"

Info = dict[str, Any]  # info dictionary of a step or reset
Reset = tuple[Any, Info]  # what `reset` returns
Stepped = tuple[Any, SupportsFloat, bool, bool, Info]  # what `step` returns

log = logging.getLogger(__name__)


@contextlib.contextmanager
def guard(describe: Callable[[], str]) -> Iterator[None]:
    """Run code of an environment. Errors get the environment's name, which `describe` returns, as a note.

    Raises:
        EnvironmentFailed: in place of an error that could be mistaken for this program's own.
        UsageError: if the code needs a package that is not installed, or is written for gym.
    """
    try:
        yield
    except gym.error.DependencyNotInstalled as error:
        raise UsageError(f"{describe()} needs another package: {error}") from error
    except BaseException as error:
        if isinstance(error, TypeError | ValueError) and re.search(OLD_MANNER, str(error)) and is_our_call(error):
            raise UsageError(
                f"{describe()} is written for gym, which came before gymnasium: {error}. In gymnasium, "
                "reset(seed=None, options=None) returns (observation, info), and step returns (observation, reward, "
                "terminated, truncated, info). If gym registers it as ID, shimmy converts it: pip install shimmy, and "
                "--env-id shimmy:GymV21Environment-v0 --env-arg env_id=ID"
            ) from error
        if isinstance(error, MISLEADING) and not isinstance(error, Interrupted):
            raise EnvironmentFailed(f"{describe()}: it raised {error!r}") from error
        is_known = isinstance(error, Fault | UsageError) and not isinstance(error, CallInterrupted)
        if isinstance(error, Exception) and not is_known:
            error.add_note(f"Raised by {describe()}")
        raise


def is_our_call(error: Exception) -> bool:
    """Return whether an error arose in a call of the environment, by gymnasium or here, and not in its own code."""
    file = traceback.extract_tb(error.__traceback__)[-1].filename
    return file.startswith(os.path.dirname(__file__)) or f"{os.sep}gymnasium{os.sep}" in file


class ActionSpace(spaces.Discrete):
    """Type of a discrete action space whose `n` is typed as an int."""

    n: int  # type: ignore[assignment]


class CellActions(ActionSpace):
    """Actions that belong to the cells of a board: action plane * height * width + row * width + column."""


class CheckedEnv(gym.Wrapper):
    """Check actions, observations and rewards. Errors name the environment.

    Observations are copied, because an environment may write its next one into the same array. Lists, and data types
    of the same kind as the space's, such as float64 for float32 or int64 for uint8, are converted to the space's.
    Discrete and MultiDiscrete actions are counted from 0.

    Args:
        env: environment as gym.make returns it.
        env_id: its id, for messages.

    Raises:
        Fault: by `reset` and `step`, if an observation, a reward or an action is wrong. Box actions are not checked.

    Attributes:
        opened: environments that are not closed yet.
        number: the environment's index in the run, for messages; None if it is unknown.
        first_action: the environment's own number of action 0, or an array of them; 0 for other spaces.
    """

    opened: ClassVar["WeakSet[CheckedEnv]"] = WeakSet()

    def __init__(self, env: gym.Env, env_id: str):
        super().__init__(env)
        self.opened.add(self)
        self.env_id = env_id
        self.number: int | None = None
        space = env.action_space
        self.first_action = getattr(space, "start", 0)
        if isinstance(space, spaces.Discrete):
            self.action_space = (CellActions if env.metadata.get("cell_actions") else ActionSpace)(space.n)
        elif isinstance(space, spaces.MultiDiscrete):
            self.action_space = spaces.MultiDiscrete(space.nvec, dtype=space.dtype.type)
        self._seed: int | None = None
        self._episode = 0  # since the reset with that seed
        self._step = 0

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        if seed is not None:
            self._seed, self._episode = seed, 0
        self._episode, self._step = self._episode + 1, 0
        with guard(self.describe):
            result = self.env.reset(seed=seed, options=options)
            if not isinstance(result, tuple | list) or len(result) != 2:
                raise TypeError("reset() returns an observation and no info")
            return self._checked(result[0], self.observation_space), result[1]

    def step(self, action: Any) -> Stepped:
        self._step += 1
        space = self.env.action_space  # some environments compare types; NASim does
        action = action + self.first_action
        action = int(action) if isinstance(space, spaces.Discrete) else np.array(action, space.dtype)
        if not (isinstance(space, spaces.Box) or space.contains(action)):
            raise Fault(f"{self.describe()}: the action {action} is not in {space}")
        with guard(self.describe):
            observation, reward, terminated, truncated, info = self.env.step(action)
            observation, number = self._checked(observation, self.observation_space), float(np.asarray(reward).item())
            if not math.isfinite(number):
                raise self._fault(f"reward is {number}; it has to be finite")
            return observation, number, bool(terminated), bool(truncated), info

    def render(self) -> Any:
        with guard(self.describe):
            return self.env.render()

    def close(self) -> None:
        self.opened.discard(self)
        with guard(self.describe):
            self.env.close()

    def _checked(self, observation: Any, space: spaces.Space[object], place: str = "") -> Any:
        """Return a copy of an observation with the space's data types. `place` is an entry, such as "['position']"."""
        if isinstance(space, spaces.Dict):
            return {name: self._checked(observation[name], part, f"{place}[{name!r}]") for name, part in space.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._checked(observation[i], part, f"{place}[{i}]") for i, part in enumerate(space))
        if isinstance(space, spaces.Discrete | spaces.MultiBinary | spaces.MultiDiscrete):
            if not space.contains(observation):
                raise self._fault(f"observation{place} is {observation!r}; its space is {space}")
            return observation if isinstance(space, spaces.Discrete) else np.array(observation, space.dtype)
        if not isinstance(space, spaces.Box):
            return observation  # no network here can use it
        array = np.asarray(observation)
        is_signed_for_unsigned = (array.dtype.kind, space.dtype.kind) == ("i", "u")
        can_cast = is_signed_for_unsigned or np.can_cast(array.dtype, space.dtype, "same_kind")
        if array.shape != space.shape or not can_cast:
            raise self._fault(
                f"observation{place} has the shape {array.shape} and the type {array.dtype}; "
                f"its space says {space.shape} and {space.dtype}"
            )
        with np.errstate(over="ignore"):  # numbers that the type cannot hold become infinite
            copy = array.astype(space.dtype)
        good = np.isfinite(copy) if copy.dtype.kind == "f" else copy == array
        if not good.all():
            index = np.argwhere(~good)[0].tolist()
            raise self._fault(
                f"observation{place} has {array[tuple(index)]} at {index}; all numbers have to be finite and fit "
                f"into {space.dtype}"
            )
        return copy

    def _fault(self, problem: str) -> Fault:
        return Fault(f"{self.describe()}: its {problem}. Correct the environment, or add a wrapper that does")

    def describe(self) -> str:
        """Return the environment's number, id, seed, step and episode since the reset with that seed, for messages."""
        name = self.env_id if self.number is None else f"environment {self.number} of {self.env_id}"
        if not self._episode:
            return f"{name} (before its first reset)"
        seed = "without a seed" if self._seed is None else f"from seed {self._seed}"
        when = f"at step {self._step}" if self._step else "at the reset"
        return f"{name} (episode {self._episode} {seed}, {when})"


@contextlib.contextmanager
def closing() -> Iterator[None]:
    """Close all environments that were made in this context and are still open, so that they end their processes."""
    before = set(CheckedEnv.opened)
    try:
        yield
    finally:
        close_all(env.close for env in set(CheckedEnv.opened) - before)


def close_all(calls: Iterable[Callable[[], object]]) -> None:
    """Call functions that close environments. Errors are only logged: the run has been saved, or has failed before."""
    for close in calls:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - not our code
            log.warning("%s", error)
