"""Interface of experience sources to a run, and the episodes that they play."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from lib.system.clock import Stopwatch, since_process_start

State = dict[str, Any]  # of an object in a checkpoint: tensors and plain values, also in nested lists and dicts


@runtime_checkable
class Stateful(Protocol):
    """An object whose state, tensors and plain values, a checkpoint can hold."""

    def state_dict(self) -> Mapping[str, object]: ...

    def load_state_dict(self, state: State, /) -> object: ...


class EpisodeTrace(NamedTuple):
    """Seed and actions from which a finished episode can be replayed in another environment of the same kind."""

    seed: int  # of the environment's last seeded reset
    actions: np.ndarray  # all actions since that reset, (n, ...)
    last_state: np.ndarray  # state in which the last action was taken, to check that the same episode was replayed
    first: int = 0  # index of the episode's first action; earlier actions belong to earlier episodes
    # Emulator frames before the first action of a native Atari game, start-up included. The native environment draws
    # the number of no-ops itself. None if the seed alone determines the first state.
    no_ops: int | None = None


class Episode(NamedTuple):
    """One finished episode."""

    total: float  # undiscounted return, before reward clipping
    length: int  # number of agent steps
    step: int  # agent steps of the source, over all environments, at the end of the episode
    clock: float  # seconds from the start of the process to the end of the episode
    env: int = 0  # index of the environment in its source or actor
    trace: EpisodeTrace | None = None  # how to replay it; None unless the source's `traces` is true


class Stopped(Exception):
    """The run was asked to stop, and the source delivers no more experience."""


class ExperienceSource:
    """Base class of experience sources: the interface that a run uses.

    Attributes:
        PARTS: names of the activities that `clock` times, such as stepping the environment.
        METRICS: names of the values that `metrics` returns.
        steps_done: agent steps so far, over all environments.
        clock: seconds spent in each of PARTS.
        frame_skip: emulator frames per agent step; 1 if the environment is not an Atari game.
        on_step: function that the source calls with the number of new agent steps.
        traces: whether episodes get a trace, for videos. The run sets it before the source starts.
        stop_asked: function that returns whether the run was asked to stop. The run sets it. Sources
            that wait for other processes call it.
    """

    PARTS: ClassVar[tuple[str, ...]] = ("act", "environment")
    METRICS: ClassVar[tuple[str, ...]] = ()

    steps_done: int = 0
    frame_skip: int = 1
    traces: bool = False
    on_step: Callable[[int], object] = staticmethod(lambda steps: None)
    stop_asked: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self) -> None:
        self.clock = Stopwatch()
        self._episodes: list[Episode] = []

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def metrics(self) -> dict[str, float]:
        """Return the current values of the METRICS. Some are means or rates since the last call."""
        return {}

    def start(self) -> None:
        """Start the processes that play, if there are any. Iteration also starts them.

        A resumed run calls it before it changes any file, so that a refused resume changes nothing.
        """

    def close(self) -> None:
        """End the environments and processes that belong to the source."""

    def report(self, folder: Path) -> dict[str, object]:
        """Write files about the processes that play into the run's folder, and return entries for result.json."""
        return {}

    def state_dict(self) -> State:
        """Return the state for a checkpoint, with the episodes that `pop_episodes` has not returned yet."""
        return {"steps_done": self.steps_done, "episodes": pack_episodes(self._episodes)}

    def load_state_dict(self, state: State) -> None:
        """Continue from a state that `state_dict` returned. Call this before the first step."""
        self.steps_done = state["steps_done"]
        self._episodes = unpack_episodes(state["episodes"])


def pack_episodes(episodes: Sequence[Episode]) -> list[list[float]]:
    """Return episodes as plain values for a checkpoint, without what a resumed run cannot use."""
    return [[episode.total, episode.length, episode.step] for episode in episodes]


def unpack_episodes(packed: list[list[float]]) -> list[Episode]:
    """Return the episodes of a checkpoint. `clock` is the current time, and `trace` is None."""
    return [Episode(total, int(length), int(step), since_process_start()) for total, length, step in packed]
