"""What a run records: episodes and how good they are, TensorBoard's scalars, episodes.csv, result.json."""

import csv
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ignite.engine import Engine, EventEnum, Events
from ignite.handlers.tensorboard_logger import OutputHandler, TensorboardLogger
from ignite.metrics import RunningAverage
from ptan.ignite import EpisodeEvents
from tensorboard.compat.proto.summary_pb2 import Summary
from torch.utils.tensorboard.summary import hparams

from lib import files
from lib.experience import Episode
from lib.timing import Speed, TrainingEvents, clock_face, since_process_start

if TYPE_CHECKING:
    from matplotlib.figure import Figure  # takes most of a second, and few runs draw

    from lib.pictures import Animation

log = logging.getLogger(__name__)

WINDOW = 100  # episodes that "solved" is judged by
SMOOTHING = 0.98  # of avg_reward and avg_loss, as in ptan
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
CSV_COLUMNS = ("episode", "step", "length", "return", "seconds", "video")


class EvaluationEvents(EventEnum):
    """Of an evaluator: EVALUATED when all its episodes have been played."""

    EVALUATED = "evaluated"


def register_events(engine: Engine) -> None:
    """Make the engine know the events of training, and ptan's, which count episodes."""
    engine.register_events(*TrainingEvents)
    engine.register_events(*EpisodeEvents, event_to_attr=dict.fromkeys(EpisodeEvents, "episode"))


class Episodes:
    """Counts finished episodes and fires ptan's episode events; solved by the true mean of the last 100.

    Attributes:
        stop_reward: the mean return that means solved, or None.
        milestone: another one whose first reaching is recorded, or None.
        count: episodes finished so far; `last` is the newest of them.
        reached: by bound, when it was first reached: seconds, step, episode, iteration.
        best_mean: the highest mean of the last (10 to 100) episodes so far.
    """

    MINIMUM = 10  # episodes before a mean can be the best

    def __init__(
        self,
        exp_source: Any,
        steps: Callable[[], int],
        stop_reward: float | None,
        milestone: float | None = None,
    ):
        self.exp_source = exp_source
        self.stop_reward = stop_reward
        self.milestone = milestone
        self.steps = steps
        self.count = 0
        self.last: Episode | None = None
        self.returns: deque[float] = deque(maxlen=WINDOW)
        self.smoothed: float | None = None
        self.best_mean = -math.inf
        self.reached: dict[str, dict[str, float]] = {}
        self.seconds_before = 0.0  # spent by the earlier processes of a resumed run

    def attach(self, engine: Engine) -> None:
        """Poll the source after every iteration."""
        engine.add_event_handler(Events.ITERATION_COMPLETED, self)

    def __call__(self, engine: Engine) -> None:
        for episode in self._finished():
            self.count += 1
            self.returns.append(episode.total)
            old = episode.total if self.smoothed is None else self.smoothed
            self.smoothed = SMOOTHING * old + (1 - SMOOTHING) * episode.total
            self.last = episode
            state: Any = engine.state
            state.episode = self.count
            state.metrics |= {
                "reward": episode.total,
                "steps": episode.length,
                "avg_reward": self.smoothed,
                "mean_100": self.mean,
            }
            engine.fire_event(EpisodeEvents.EPISODE_COMPLETED)
            if len(self.returns) >= self.MINIMUM and self.mean > self.best_mean:
                self.best_mean = self.mean
                engine.fire_event(EpisodeEvents.BEST_REWARD_REACHED)
            self._check_bounds(engine)

    @property
    def mean(self) -> float:
        """Mean return of the last 100 episodes, or of all while there are fewer."""
        return sum(self.returns) / len(self.returns) if self.returns else math.nan

    @property
    def solved(self) -> dict[str, float] | None:
        """When stop_reward was first reached, see `reached`; None if it was not."""
        return self.reached.get(str(self.stop_reward))

    @property
    def seconds(self) -> float:
        """Seconds of work on this run, over all its processes."""
        return self.seconds_at(since_process_start())

    def seconds_at(self, clock: float) -> float:
        """The same at some second of this process."""
        return self.seconds_before + clock

    def _finished(self) -> list[Episode]:
        if hasattr(self.exp_source, "pop_episodes"):
            return self.exp_source.pop_episodes()
        # ptan's own source knows returns and lengths only.
        ends = self.exp_source.pop_rewards_steps()
        return [Episode(total, length, self.steps(), since_process_start()) for total, length in ends]

    def _check_bounds(self, engine: Engine) -> None:
        if len(self.returns) < WINDOW:
            return
        for bound in (self.milestone, self.stop_reward):
            if bound is not None and self.mean >= bound and str(bound) not in self.reached:
                self.reached[str(bound)] = {
                    "seconds": self.seconds,
                    "step": self.steps(),
                    "episode": self.count,
                    "iteration": engine.state.iteration,
                }
                log.info("Mean of the last %d episodes reached %g in %s.", WINDOW, bound, clock_face(self.seconds))
        if self.stop_reward is not None and self.mean >= self.stop_reward:
            engine.fire_event(EpisodeEvents.BOUND_REWARD_REACHED)

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "returns": list(self.returns),
            "smoothed": self.smoothed,
            "best_mean": self.best_mean,
            "reached": self.reached,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        self.returns.extend(state["returns"])
        self.smoothed = state["smoothed"]
        self.best_mean = state["best_mean"]
        self.reached = state["reached"]
        self.seconds_before = state["seconds"]


class EpisodeFile:
    """episodes.csv, a row an episode, appended and flushed as they end.

    Args:
        path: of the file.
        episodes: counts them.
        video: tells the path of the newest one's video in the run folder; "" for none.
    """

    def __init__(self, path: Path, episodes: Episodes, video: Callable[[], str] = lambda: ""):
        self.path = path
        self.episodes = episodes
        self.video = video
        if not path.exists() or not path.stat().st_size:
            self._append(CSV_COLUMNS)

    def __call__(self, engine: Engine) -> None:
        episode = self.episodes.last
        assert episode is not None
        seconds = self.episodes.seconds_at(episode.clock)
        told = (f"{episode.total:.7g}", f"{seconds:.2f}", self.video())
        self._append((self.episodes.count, episode.step, episode.length, *told))

    def _append(self, row: tuple) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)


def last_step(folder: Path) -> int:
    """The agent step of the last episode in a run folder's episodes.csv; 0 where there is none."""
    path = folder / "episodes.csv"
    if not path.exists():
        return 0
    with path.open(newline="") as file:
        return max((int(row["step"]) for row in csv.DictReader(file)), default=0)


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

    def write_video(self, animation: "Animation", step: int) -> None:
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


class GrowingFiles:
    """The files of a run folder that only grow; its state_dict holds their sizes, and loading cuts them back to these.

    So a run that is resumed from a checkpoint has no stretch twice, in TensorBoard or in episodes.csv.

    Args:
        folder: the run folder.
    """

    PATTERNS = ("episodes.csv", "events.out.tfevents.*")

    def __init__(self, folder: Path):
        self.folder = folder
        self.flush: Callable[[], None] = lambda: None

    def state_dict(self) -> dict[str, int]:
        self.flush()
        for path in self._files():
            with path.open("rb+") as file:
                files.sync(file)  # a checkpoint that is on the disk is not to know more than they do
        return {path.name: path.stat().st_size for path in self._files()}

    def load_state_dict(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            there, size = path.stat().st_size, sizes.get(path.name, 0)
            if there < size:
                log.warning("%s is shorter than it was: what its last %d bytes told is lost.", path, size - there)
            elif size:
                os.truncate(path, size)
            else:
                path.unlink()

    def _files(self) -> list[Path]:
        return sorted(path for pattern in self.PATTERNS for path in self.folder.glob(pattern))


def result(engine: Engine, stopped: str, episodes: Episodes, speed: Speed) -> dict[str, Any]:
    """What result.json holds: how and where the run ended, and when it first reached its bounds."""
    return {
        "stopped": stopped,
        "steps": episodes.steps(),
        "iterations": engine.state.iteration,
        "episodes": episodes.count,
        "mean_100": _finite(episodes.mean),
        "best_mean": _finite(episodes.best_mean),
        "reached": episodes.reached,
        "seconds": episodes.seconds,
        "this_process": {
            "seconds": since_process_start(),
            "training_steps": speed.trained,
            "training_seconds": speed.seconds,
            "warm_up_steps_per_second": _finite(speed.of_warm_up),
            "steps_per_second": _finite(speed.overall),
            "last_1000_steps_per_second": _finite(speed.now),
            "parts": speed.parts,
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows neither NaN nor infinity
