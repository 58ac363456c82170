"""Plain PTAN experience sources, adapted to what a run needs."""

from typing import Any, Protocol

from ignite.engine import Engine

from lib.experience.episodes import Episode
from lib.experience.interface import ExperienceSource
from lib.system.clock import Stopwatch, since_process_start


class RewardsSource(Protocol):
    """The part of PTAN's experience sources that a run uses."""

    def pop_rewards_steps(self) -> list[tuple[float, int]]:
        """Return the (return, length) of each episode that ended since the last call."""
        ...


class PtanSource(ExperienceSource):
    """Adapter for a plain PTAN source, which knows the returns and lengths of its episodes and nothing else.

    An iteration of the engine counts as one agent step. The state of the source cannot be saved.

    Args:
        source: PTAN's source.
        engine: training engine.
    """

    PARTS = ()

    def __init__(self, source: RewardsSource, engine: Engine):
        self.source = source
        self.engine = engine
        self.clock = Stopwatch()

    @property
    def steps_done(self) -> int:  # type: ignore[override] # read only here, an attribute in other sources
        """Iterations of the engine."""
        return self.engine.state.iteration

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, oldest first."""
        return [
            Episode(total, length, self.steps_done, since_process_start())
            for total, length in self.source.pop_rewards_steps()
        ]

    def state_dict(self) -> dict[str, Any]:
        """Refuse to save the source.

        Raises:
            TypeError: always.
        """
        raise TypeError(
            f"a {type(self.source).__name__} of PTAN cannot be saved in a checkpoint; "
            "use lib.experience.source.ExperienceSourceFirstLast, or leave out save"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Refuse to restore the source; see `state_dict`."""
        self.state_dict()


def adapt_source(source: ExperienceSource | RewardsSource, engine: Engine) -> ExperienceSource:
    """Return the source itself, or an adapter if it is a plain PTAN source."""
    return source if isinstance(source, ExperienceSource) else PtanSource(source, engine)
