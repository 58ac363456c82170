"""The interface between whatever acts and the run around it."""

from collections.abc import Callable
from typing import Any, ClassVar, Protocol, runtime_checkable

from lib.experience.episodes import Episode
from lib.system.clock import Stopwatch


class Stopped(Exception):
    """The run is to stop, and the source has no more experience to give before that."""


@runtime_checkable
class ExperienceSource(Protocol):
    """What a run needs of an experience source. Our sources inherit from it, and with it the defaults.

    Attributes:
        PARTS: names of the parts of acting that `clock` measures.
        METRICS: names of the values that `metrics` returns.
        steps_done: agent steps so far, over all environments.
        clock: seconds spent in each of PARTS.
        frame_skip: emulator frames per agent step; 1 if the environment is not an Atari game.
        native: whether ale_py's native vector environment steps the games.
        on_step: called with the number of new agent steps, or None.
        stop_asked: returns whether the run has been told to stop; set by the run, for sources that wait.
    """

    PARTS: ClassVar[tuple[str, ...]] = ("act", "environment")
    METRICS: ClassVar[tuple[str, ...]] = ()

    steps_done: int
    clock: Stopwatch
    frame_skip: int = 1
    native: bool = False
    on_step: Callable[[int], object] | None = None
    stop_asked: Callable[[], bool] = staticmethod(lambda: False)

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, oldest first."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return the values named in METRICS, measured since the last call."""
        return {}

    def close(self) -> None:
        """End the environments and processes that belong to the source."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint needs to continue from here."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        ...
