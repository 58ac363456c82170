"""TensorBoard: scalars and figures of a run."""

import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import OutputHandler, TensorboardLogger
from ignite.metrics import RunningAverage
from torch.utils.tensorboard import SummaryWriter

from lib.run.episodes import SMOOTHING, EpisodeEvents, Episodes, TrainingEvents
from lib.run.evaluation import SPREAD
from lib.run.speed import Speed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lib.run.tracking import Tracker

FIGURES_EVERY = 5_000  # iterations between two figures


class FigureFunction(Protocol):
    def __call__(self) -> "Figure": ...


class _Writer(SummaryWriter):
    """torch's writer, without scalars that have no value yet. A tracker gets its scalars, too."""

    def __init__(self, folder: Path, tracker: "Tracker | None"):
        super().__init__(log_dir=str(folder))
        self.tracker = tracker

    def add_scalar(self, tag: str, scalar_value: float, *args: object, **kwargs: object) -> None:
        if math.isnan(scalar_value):
            return
        super().add_scalar(tag, scalar_value, *args, **kwargs)
        if self.tracker is not None:
            self.tracker.scalars[tag] = scalar_value


class TensorBoard(TensorboardLogger):
    """TensorBoard's files in a run folder, written by ignite's handlers. A tracker gets the same scalars."""

    def __init__(self, folder: Path, tracker: "Tracker | None" = None):
        self.writer = _Writer(folder, tracker)  # torch's, which ignite uses only if tensorboardX is not installed
        self.average = RunningAverage(output_transform=lambda output: output["loss"], alpha=SMOOTHING)
        self.tracker = tracker

    def attach_all(
        self, engine: Engine, speed: Speed, extra_metrics: Sequence[str], figures: Mapping[str, FigureFunction]
    ) -> None:
        """Write episodes/* when an episode ends, evaluation/* after evaluations, and train/* and time/* on speed.every.

        episodes/* are written against the episode; the mean of 100 is also written against agent steps. It begins with
        the tenth episode, because a mean of fewer depends on luck. `figures` become pictures/*.
        """

        def agent_step(engine: Engine, event_name: object) -> int:
            return speed.exp_source.steps_done

        def episode_end(engine: Engine, event_name: object) -> int:
            return int(engine.state.metrics["end_step"])

        # A script may set a metric only after many iterations. Until then, ignite's handlers leave it out and warn.
        warnings.filterwarnings("ignore", message="Provided metric name")
        self.average.attach(engine, "avg_loss")
        ended = EpisodeEvents.EPISODE_COMPLETED
        from_tenth = ended(event_filter=lambda _, number: number >= Episodes.MINIMUM)
        scalars = ["avg_loss", *speed.metrics, *extra_metrics]
        for handler, event in (
            (OutputHandler("episodes", ["reward", "steps", "avg_reward"]), ended),
            (OutputHandler("episodes", ["mean_100"]), from_tenth),
            (OutputHandler("episodes_by_step", ["mean_100"], global_step_transform=episode_end), from_tenth),
            (OutputHandler("train", scalars, _current_values, global_step_transform=agent_step), speed.every),
            (OutputHandler("time", list(speed.names), global_step_transform=agent_step), speed.every),
            (OutputHandler("evaluation", list(SPREAD), global_step_transform=agent_step), TrainingEvents.EVALUATED),
        ):
            self.attach(engine, handler, event)
        if self.tracker is not None:
            for event in (ended, speed.every, TrainingEvents.EVALUATED):
                engine.add_event_handler(event, self.tracker.send_scalars)

        def write_figures() -> None:
            for name, draw in figures.items():
                self.writer.add_figure(f"pictures/{name}", draw(), speed.exp_source.steps_done)

        engine.add_event_handler(Events.ITERATION_COMPLETED(every=FIGURES_EVERY), write_figures)

    def write_end(self, result: Mapping[str, Any]) -> None:
        """Write result/* of a result.json, against the agent step."""
        values = {name: result[name] for name in ("mean_100", "best_mean", "seconds")}
        values["steps_per_second"] = result["this_process"]["steps_per_second"]
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(f"result/{name}", value, result["steps"])


def _current_values(output: Mapping[str, object]) -> dict[str, object]:
    """Replace the functions in an iteration's output by the values that they return now, and leave out None."""
    values = {name: value() if callable(value) else value for name, value in output.items()}
    return {name: value for name, value in values.items() if value is not None}
