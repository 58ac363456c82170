"""TensorBoard: scalars, figures, videos and hyperparameters of a run."""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import OutputHandler, TensorboardLogger
from ignite.metrics import RunningAverage
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from lib.run.episodes import SMOOTHING, Episodes
from lib.run.events import EpisodeEvents, EvaluationEvents
from lib.run.speed import Speed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lib.run import video_file

# torch's hparams has no type annotations.
make_hparams_summaries: Callable[..., Sequence[Any]] = hparams

# Iterations between two figures.
FIGURES_EVERY = 5_000

# Entries of result.json, or of its this_process, that are written as end/<name>. TensorBoard sorts metrics by name, and
# its HParams page shows the first five of them.
END = ("mean_100", "best_mean", "seconds", "steps_per_second")

# The HParams page shows five columns: of those in which runs differ, the first in the order of their names. Capital
# letters come first.
CAPITALS = {"learning_rate": "Learning rate", "script": "Script", "seed": "Seed"}

# Charts of TensorBoard's page of custom scalars. A run writes those for which it has a tag.
LAYOUT = {
    "Learning": {
        "returns": ["Multiline", ["episodes_by_step/mean_100", "episodes_by_step/avg_reward"]],
        "greedy returns": ["Margin", ["evaluation/mean", "evaluation/min", "evaluation/max"]],
        "losses": ["Multiline", ["train/avg_loss", "train/policy_loss", "train/value_loss"]],
        "policy": ["Multiline", ["train/entropy", "train/kl", "train/clipped", "train/epsilon"]],
    },
    "Speed": {
        "steps per second": ["Multiline", ["train/avg_fps", "train/(player|learner|actor)_fps"]],
        "milliseconds per iteration": ["Multiline", ["time/.*"]],
        "lag": ["Multiline", ["train/policy_lag", "train/replay_ratio"]],
    },
}


def end_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars that describe a finished run, by their tags, end/<name>.

    Args:
        result: content of result.json.
    """
    values = {**result, "steps_per_second": result["this_process"]["steps_per_second"]}
    return {f"end/{name}": values[name] for name in END if values[name] is not None}


class FigureFunction(Protocol):
    """A function that draws a figure."""

    def __call__(self) -> "Figure":
        """Draw the figure."""
        ...


class Mirror(Protocol):
    """A tracker that gets the scalars of TensorBoard."""

    def mirror(self, engine: Engine, original: OutputHandler, event: Any) -> None:
        """Attach a handler that writes what `original` writes."""
        ...


class _TorchLogger(TensorboardLogger):
    """ignite's logger with torch's writer. ignite itself prefers tensorboardX, which takes other summaries."""

    def __init__(self, folder: Path):
        self.writer = SummaryWriter(log_dir=str(folder))
        self.mirrors: list[Mirror] = []

    def attach(self, engine: Engine, log_handler: Any, event_name: Any, *args: Any, **kwargs: Any) -> Any:
        for mirror in self.mirrors:
            mirror.mirror(engine, log_handler, event_name)
        return super().attach(engine, log_handler, event_name, *args, **kwargs)


class _SmoothedLoss(RunningAverage):
    """An average that checks a loaded state, because a wrong one fails much later."""

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        if self.src is not None or (isinstance(self._value, torch.Tensor) and self._value.numel() != 1):
            raise ValueError(f"the smoothed loss is {self._value!r}")


class TensorBoard:
    """TensorBoard's files of a run, written by ignite's handlers.

    Args:
        folder: run folder.

    Attributes:
        average: exponentially smoothed loss.
    """

    def __init__(self, folder: Path):
        self.average = _SmoothedLoss(output_transform=lambda output: output["loss"], alpha=SMOOTHING)
        self.logger = _TorchLogger(folder)
        self._tags: list[str] = []  # scalars that the run writes
        self._layout_written = False

    def add_mirror(self, mirror: Mirror) -> None:
        """Let a tracker get whatever is attached from now on."""
        self.logger.mirrors.append(mirror)

    def attach(self, engine: Engine, speed: Speed, extra_metrics: Sequence[str]) -> None:
        """Write episodes/* when an episode ends, and train/* and time/* whenever the speed is measured.

        episodes/* are written against the episode, and again as episodes_by_step/* against agent steps. The mean begins
        with the tenth episode, because before it would show a lucky one.

        Args:
            engine: training engine.
            speed: its metrics are written as train/* and time/*.
            extra_metrics: names of further engine.state.metrics to write as train/*.
        """

        def agent_step(engine: Engine, event_name: object) -> int:
            return speed.exp_source.steps_done

        latest = 0

        def episode_end(engine: Engine, event_name: object) -> int:
            # Steps must not decrease: TensorBoard would drop what it has. Episodes of one rollout are not in order.
            nonlocal latest
            latest = max(latest, int(engine.state.metrics.get("end_step", 0)))
            return latest

        scalars = ["avg_loss", *speed.metrics, *extra_metrics]
        # A script may set a metric only after many iterations. Until then, ignite's handlers leave it out and warn.
        warnings.filterwarnings("ignore", message="Provided metric name")
        train = OutputHandler("train", scalars, _current_values, global_step_transform=agent_step)
        time = OutputHandler("time", list(speed.names), global_step_transform=agent_step)
        self.average.attach(engine, "avg_loss")
        for prefix, step in (("episodes", None), ("episodes_by_step", episode_end)):
            for names, event in (
                (["reward", "steps", "avg_reward"], EpisodeEvents.EPISODE_COMPLETED),
                (["mean_100"], EpisodeEvents.EPISODE_COMPLETED(event_filter=lambda _, n: n >= Episodes.MINIMUM)),
            ):
                self.logger.attach(engine, OutputHandler(prefix, names, global_step_transform=step), event)
        self.logger.attach(engine, train, speed.every)
        self.logger.attach(engine, time, speed.every)

        def write_layout(engine: Engine) -> None:
            if self._layout_written:
                return
            self._layout_written = True
            output: Any = engine.state.output
            self._tags += [f"train/{name}" for name in (*output, *scalars)]
            self._tags += [*(f"time/{name}" for name in speed.names), "episodes_by_step/mean_100"]
            self.logger.writer.add_custom_scalars(_charts_with_data(self._tags))

        engine.add_event_handler(speed.every, write_layout)

    def attach_evaluation(self, evaluation_engine: Engine, names: Sequence[str], steps: Callable[[], int]) -> None:
        """Write metrics of an evaluation as evaluation/* whenever one is complete.

        Args:
            evaluation_engine: engine that evaluates.
            names: names of its metrics.
            steps: function that returns the agent steps so far.
        """
        self._tags += [f"evaluation/{name}" for name in names]
        scalars = OutputHandler("evaluation", metric_names=list(names), global_step_transform=lambda *_: steps())
        self.logger.attach(evaluation_engine, scalars, EvaluationEvents.EVALUATED)

    def attach_figures(self, engine: Engine, steps: Callable[[], int], figures: Mapping[str, FigureFunction]) -> None:
        """Write pictures/<name> every FIGURES_EVERY iterations.

        Args:
            engine: training engine.
            steps: function that returns the agent steps so far.
            figures: functions that draw a figure, by name.
        """

        def write() -> None:
            for name, draw in figures.items():
                self.logger.writer.add_figure(f"pictures/{name}", draw(), steps())

        engine.add_event_handler(Events.ITERATION_COMPLETED(every=FIGURES_EVERY), write)

    def write_video(self, animation: "video_file.Animation", step: int) -> None:
        """Write videos/last.

        Args:
            animation: pictures of an episode.
            step: agent steps when the episode ended.
        """
        height, width = animation.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=animation.encoded())
        summary = Summary(value=[Summary.Value(tag="videos/last", image=image)])
        self.logger.writer.file_writer.add_summary(summary, step)

    def write_end(self, hyperparameters: Mapping[str, Any], result: Mapping[str, Any], step: int) -> None:
        """Write end/*, and the run's row on the HParams page.

        Args:
            hyperparameters: values by name. Values that are not numbers, texts or booleans are written as text.
            result: content of result.json.
            step: agent steps so far.
        """
        metrics = end_metrics(result)
        for tag, value in metrics.items():
            self.logger.writer.add_scalar(tag, value, step)
        plain = {
            CAPITALS.get(name, name): value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in hyperparameters.items()
        }
        # The first summary, a list of columns, is left out. TensorBoard would use that of one run for all runs; without
        # it, TensorBoard finds out in which columns the runs differ.
        for summary in make_hparams_summaries(plain, metrics)[1:]:
            self.logger.writer.file_writer.add_summary(summary)

    def flush(self) -> None:
        """Write buffered data to the files."""
        self.logger.writer.flush()

    def close(self) -> None:
        """Write buffered data to the files and close them."""
        self.logger.close()


def _current_values(output: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the functions in an iteration's output by the values that they return now, and leave out None."""
    values = {name: value() if callable(value) else value for name, value in output.items()}
    return {name: value for name, value in values.items() if value is not None}


def _charts_with_data(tags: Iterable[str]) -> dict[str, dict[str, list[Any]]]:
    """Return the charts of LAYOUT for which there is a tag."""
    tags = list(tags)
    layout = {
        category: {
            title: chart
            for title, chart in charts.items()
            if any(re.fullmatch(p, tag) for p in chart[1] for tag in tags)
        }
        for category, charts in LAYOUT.items()
    }
    return {category: charts for category, charts in layout.items() if charts}
