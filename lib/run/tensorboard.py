"""TensorBoard: scalars, figures, videos and hyperparameters of a run."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite.engine import Engine, Events
from ignite.handlers.tensorboard_logger import OutputHandler, TensorboardLogger
from ignite.metrics import RunningAverage
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.summary import hparams

from lib.run.episodes import SMOOTHING
from lib.run.events import EpisodeEvents, EvaluationEvents
from lib.run.speed import Speed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lib.run import video_file


FIGURES_EVERY = 5_000  # iterations between two pictures


FINAL = ("mean_100", "best_mean", "seconds", "steps_per_second")


LAYOUT = {  # of TensorBoard's page of custom scalars
    "What is learnt": {
        "returns": ["Multiline", ["episodes/mean_100", "episodes/avg_reward"]],
        "greedy returns": ["Margin", ["evaluation/mean", "evaluation/min", "evaluation/max"]],
        "losses": ["Multiline", ["train/avg_loss", "train/policy_loss", "train/value_loss"]],
        "policy": ["Multiline", ["train/entropy", "train/kl", "train/clipped", "train/epsilon"]],
    },
    "How fast": {
        "steps a second": ["Multiline", ["train/avg_fps", "train/(player|learner|actor)_fps"]],
        "milliseconds an iteration": ["Multiline", ["time/.*"]],
        "lag": ["Multiline", ["train/policy_lag", "train/replay_ratio"]],
    },
}


class TensorBoard:
    """TensorBoard's scalars, by ignite's own handlers.

    Attributes:
        average: the smoothed loss.
    """

    def __init__(self, folder: Path):
        self.average = RunningAverage(output_transform=lambda output: output["loss"], alpha=SMOOTHING)
        self.logger = TensorboardLogger(log_dir=folder)

    def attach(self, engine: Engine, speed: Speed, extra_metrics: Sequence[str]) -> None:
        """Write episodes/* by episode as they end, train/* and time/* by agent step as the speed is told."""

        def agent_step(engine: Engine, event_name: Any) -> int:
            return speed.steps()

        episodes = OutputHandler("episodes", metric_names=["reward", "steps", "avg_reward", "mean_100"])
        scalars = ["avg_loss", *speed.metrics, *extra_metrics]
        train = OutputHandler("train", scalars, _told, global_step_transform=agent_step)
        time = OutputHandler("time", list(speed.names), global_step_transform=agent_step)
        self.average.attach(engine, "avg_loss")
        self.logger.attach(engine, episodes, EpisodeEvents.EPISODE_COMPLETED)
        self.logger.attach(engine, train, speed.every)
        self.logger.attach(engine, time, speed.every)
        self.logger.writer.add_custom_scalars(LAYOUT)

    def write_final(self, hyperparameters: Mapping[str, Any], result: Mapping[str, Any], step: int) -> None:
        """Write final/*, and the run's row of the HParams page.

        Args:
            hyperparameters: numbers, texts and truth values by name; others are written as text.
            result: what result.json holds.
            step: agent steps so far.
        """
        told = {**result, "steps_per_second": result["this_process"]["steps_per_second"]}
        metrics = {f"final/{name}": told[name] for name in FINAL if told[name] is not None}
        for tag, value in metrics.items():
            self.logger.writer.add_scalar(tag, value, step)
        plain = {
            name: value if isinstance(value, bool | int | float | str) else str(value)
            for name, value in hyperparameters.items()
        }
        for summary in hparams(plain, metrics):
            self.logger.writer.file_writer.add_summary(summary)

    def attach_evaluation(self, evaluating: Engine, names: Sequence[str], steps: Callable[[], int]) -> None:
        """Write these of an evaluation's metrics as evaluation/* by agent step whenever all of it was played."""
        scalars = OutputHandler("evaluation", metric_names=list(names), global_step_transform=lambda *_: steps())
        self.logger.attach(evaluating, scalars, EvaluationEvents.EVALUATED)

    def attach_figures(
        self, engine: Engine, steps: Callable[[], int], figures: Mapping[str, "Callable[[], Figure]"]
    ) -> None:
        """Write pictures/<name> by agent step, every FIGURES_EVERY iterations."""

        def write() -> None:
            for name, draw in figures.items():
                self.logger.writer.add_figure(f"pictures/{name}", draw(), steps())

        engine.add_event_handler(Events.ITERATION_COMPLETED(every=FIGURES_EVERY), write)

    def write_video(self, animation: "video_file.Animation", step: int) -> None:
        """Write videos/last by agent step."""
        height, width = animation.size
        image = Summary.Image(height=height, width=width, colorspace=3, encoded_image_string=animation.encoded())
        summary = Summary(value=[Summary.Value(tag="videos/last", image=image)])
        self.logger.writer.file_writer.add_summary(summary, step)

    def flush(self) -> None:
        """Bring to the disk what has been written so far."""
        self.logger.writer.flush()

    def close(self) -> None:
        """Bring everything to the disk and end."""
        self.logger.close()


def _told(output: Mapping[str, Any]) -> dict[str, Any]:
    """An iteration's output, with functions in it replaced by what they return now."""
    return {name: value() if callable(value) else value for name, value in output.items()}
