"""Events that a training engine fires besides ignite's own."""

from ignite.engine import Engine, EventEnum


class TrainingEvents(EventEnum):
    """LEARNING_STARTED fires once per process, when the first batch has been sampled and the warm-up is over."""

    LEARNING_STARTED = "learning_started"


class EpisodeEvents(EventEnum):
    """Fired when an episode has ended, and when a mean return is the best so far or has reached stop_reward.

    The names are those of ptan.ignite.EpisodeEvents. ignite compares events by name, so handlers that are attached to
    ptan's events are called as well.
    """

    EPISODE_COMPLETED = "episode_completed"
    BOUND_REWARD_REACHED = "bound_reward_reached"
    BEST_REWARD_REACHED = "best_reward_reached"


class EvaluationEvents(EventEnum):
    """EVALUATED fires when all episodes of an evaluation have been played."""

    EVALUATED = "evaluated"


def register_events(engine: Engine) -> None:
    """Register the training and episode events. Filters such as every=10 count engine.state.episode."""
    engine.register_events(*TrainingEvents)
    engine.register_events(*EpisodeEvents, event_to_attr=dict.fromkeys(EpisodeEvents, "episode"))
