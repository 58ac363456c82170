"""Events that a training engine fires besides ignite's own."""

from collections.abc import Callable

from ignite.engine import Engine, EventEnum, Events


class TrainingEvents(EventEnum):
    """LEARNING_STARTED fires once, after the warm-up, when the first batch has been sampled.

    EVALUATED fires when all episodes of an evaluation during training have been played.
    """

    LEARNING_STARTED = "learning_started"
    EVALUATED = "evaluated"


class EpisodeEvents(EventEnum):
    """Fired when an episode has ended, and when a mean return is the best so far or has reached stop_reward.

    The names are those of ptan.ignite.EpisodeEvents. ignite compares events by name, so handlers that are attached to
    ptan's events are called as well.
    """

    EPISODE_COMPLETED = "episode_completed"
    BOUND_REWARD_REACHED = "bound_reward_reached"
    BEST_REWARD_REACHED = "best_reward_reached"


def register_events(engine: Engine) -> None:
    """Register all events. every=10 counts episodes for EpisodeEvents, and iterations for all others."""
    engine.register_events(*EpisodeEvents, event_to_attr=dict.fromkeys(EpisodeEvents, "episode"))
    engine.register_events(*TrainingEvents, event_to_attr=dict.fromkeys(TrainingEvents, "iteration"))


def attach_as_last(engine: Engine, event: Events, handler: Callable[..., object]) -> None:
    """Attach a handler when the engine starts, behind those of the script."""
    engine.add_event_handler(Events.STARTED, lambda engine: engine.add_event_handler(event, handler))
