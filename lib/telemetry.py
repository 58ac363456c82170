"""What a run tells: console lines, progress bars, TensorBoard, episodes.csv, and where the seconds went."""

import csv
import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from ignite.engine import Engine, EventEnum, Events
from ignite.handlers import Timer
from ignite.handlers.tensorboard_logger import OutputHandler, TensorboardLogger
from ignite.metrics import RunningAverage
from ptan.ignite import EpisodeEvents
from tqdm import tqdm

from lib.experience import Episode
from lib.timing import since_process_start

log = logging.getLogger(__name__)

WINDOW = 100  # episodes that "solved" is judged by
SMOOTHING = 0.98  # of avg_reward and avg_loss, as in ptan
EVERY = Events.ITERATION_COMPLETED(every=100)  # scalars of the learner
CSV_COLUMNS = ("episode", "step", "length", "return", "seconds", "video")
PARTS = ("act", "environment", "sample", "learn")


class TrainingEvents(EventEnum):
    """LEARNING_STARTED fires once a process, when the first batch has been sampled: the warm-up is over."""

    LEARNING_STARTED = "learning_started"


def register_events(engine: Engine) -> None:
    """Make the engine know the events of training, and ptan's, which count episodes."""
    engine.register_events(*TrainingEvents)
    engine.register_events(*EpisodeEvents, event_to_attr=dict.fromkeys(EpisodeEvents, "episode"))


class Console(logging.Handler):
    """Writes log lines to standard output without tearing a progress bar apart."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=sys.stdout):
            print(self.format(record), flush=True)


def start_console() -> None:
    """Send this package's log lines to the console; a second call does nothing."""
    logger = logging.getLogger("lib")
    if not any(isinstance(handler, Console) for handler in logger.handlers):
        logger.addHandler(Console())
    logger.setLevel(logging.INFO)
    # ignite logs an exception twice before it raises it; whoever catches it reports it once.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)


class Episodes:
    """Counts finished episodes and fires ptan's episode events; solved by the true mean of the last 100.

    Attributes:
        bounds: mean returns whose first reaching is recorded; the highest means solved.
        count: episodes finished so far; `last` is the newest of them.
        reached: by bound, when it was first reached: seconds, step, episode, iteration.
        best_mean: the highest mean of the last (10 to 100) episodes so far.
    """

    MINIMUM = 10  # episodes before a mean can be the best

    def __init__(self, exp_source: Any, bounds: tuple[float, ...], steps: Callable[[], int]):
        self.exp_source = exp_source
        self.bounds = tuple(sorted(bounds))
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
    def seconds(self) -> float:
        """Seconds of work on this run, over all its processes."""
        return self.seconds_before + since_process_start()

    def _finished(self) -> list[Episode]:
        if hasattr(self.exp_source, "pop_episodes"):
            return self.exp_source.pop_episodes()
        # ptan's own source knows returns and lengths only.
        ends = self.exp_source.pop_rewards_steps()
        return [Episode(total, length, self.steps(), since_process_start()) for total, length in ends]

    def _check_bounds(self, engine: Engine) -> None:
        if len(self.returns) < WINDOW:
            return
        for bound in self.bounds:
            if self.mean >= bound and str(bound) not in self.reached:
                self.reached[str(bound)] = {
                    "seconds": self.seconds,
                    "step": self.steps(),
                    "episode": self.count,
                    "iteration": engine.state.iteration,
                }
                log.info(
                    "Mean of the last %d episodes reached %g in %s.", WINDOW, bound, clock_face(self.seconds)
                )
        if self.mean >= self.bounds[-1]:
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


class Speed:
    """Agent steps a second and seconds by part, over windows of training; the warm-up is measured apart.

    Attributes:
        parts: seconds of training so far in this process, by part.
        warm_up: (agent steps, seconds) of filling the replay.
    """

    def __init__(self, exp_source: Any, steps: Callable[[], int]):
        self.exp_source = exp_source
        self.steps = steps
        self.warm_up = (0, 0.0)
        self._batch, self._learn = Timer(), Timer()
        self._updates = 0
        self._start = (0, 0.0)
        self._parts_at_start = dict.fromkeys(PARTS, 0.0)
        self._marks: deque[tuple[int, float]] = deque(maxlen=1001)
        self._logged = (0, dict.fromkeys(PARTS, 0.0))

    def attach(self, engine: Engine) -> None:
        """Time the two halves of an iteration; put avg_fps and time into the metrics every 100 iterations."""
        batch = {"resume": Events.GET_BATCH_STARTED, "pause": Events.GET_BATCH_COMPLETED}
        learn = {"resume": Events.ITERATION_STARTED, "pause": Events.ITERATION_COMPLETED}
        self._batch.attach(engine, start=Events.STARTED, **batch)
        self._learn.attach(engine, start=Events.STARTED, **learn)
        engine.add_event_handler(Events.STARTED, self._started)
        engine.add_event_handler(Events.GET_BATCH_COMPLETED, self._warmed_up)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._mark)
        engine.add_event_handler(EVERY, self._log)

    def _started(self, engine: Engine) -> None:
        self._start = (self.steps(), since_process_start())

    def _warmed_up(self, engine: Engine) -> None:
        if self._marks:
            return
        now = (self.steps(), since_process_start())
        self.warm_up = (now[0] - self._start[0], now[1] - self._start[1])
        self._start = now
        self._parts_at_start = self._all_parts()
        self._marks.append(now)
        self._logged = (engine.state.iteration, dict.fromkeys(PARTS, 0.0))
        engine.fire_event(TrainingEvents.LEARNING_STARTED)

    def _mark(self, engine: Engine) -> None:
        self._updates += 1
        self._marks.append((self.steps(), since_process_start()))

    def _log(self, engine: Engine) -> None:
        iteration, before = self._logged
        parts = self.parts
        milliseconds = 1000 / max(1, engine.state.iteration - iteration)
        engine.state.metrics["avg_fps"] = self.now
        engine.state.metrics |= {part: (parts[part] - before[part]) * milliseconds for part in PARTS}
        self._logged = (engine.state.iteration, parts)

    @property
    def now(self) -> float:
        """Agent steps a second over the last 1,000 iterations, or over those that there were."""
        return _rate(self._marks[0], self._marks[-1]) if len(self._marks) > 1 else math.nan

    @property
    def of_warm_up(self) -> float:
        """Agent steps a second while the replay was filled."""
        steps, seconds = self.warm_up
        return steps / seconds if seconds else math.nan

    @property
    def overall(self) -> float:
        """Agent steps a second of this process, from the end of the warm-up on."""
        return _rate(self._start, self._marks[-1]) if len(self._marks) > 1 else math.nan

    @property
    def updates_per_second(self) -> float:
        """Learner iterations a second of this process, from the end of the warm-up on."""
        return self._updates / self.seconds if self.seconds else math.nan

    @property
    def parts(self) -> dict[str, float]:
        parts = self._all_parts()
        return {part: parts[part] - self._parts_at_start[part] for part in PARTS}

    @property
    def seconds(self) -> float:
        """Seconds of training in this process."""
        return self._marks[-1][1] - self._start[1] if self._marks else 0.0

    def _all_parts(self) -> dict[str, float]:
        clock = getattr(self.exp_source, "clock", None)
        parts = dict.fromkeys(PARTS, 0.0) | (dict(clock.seconds) if clock else {})
        parts["sample"] = self._batch.value() - parts["act"] - parts["environment"]
        parts["learn"] = self._learn.value()
        return parts

    def table(self) -> str:
        """Where the seconds of training went, a line a part."""
        parts = self.parts
        parts["rest"] = max(0.0, self.seconds - sum(parts.values()))
        steps = max(1, self._marks[-1][0] - self._start[0]) if self._marks else 1
        lines = [f"{'part':<12}{'seconds':>10}{'share':>8}{'ms a step':>11}"]
        for part, seconds in parts.items():
            share = seconds / self.seconds if self.seconds else 0.0
            lines.append(f"{part:<12}{seconds:>10.1f}{share:>8.1%}{1000 * seconds / steps:>11.2f}")
        return "\n".join(lines)


class EpisodeFile:
    """episodes.csv, a row an episode, appended and flushed as they end."""

    def __init__(self, path: Path, episodes: Episodes):
        self.path = path
        self.episodes = episodes
        if not path.exists() or not path.stat().st_size:
            self._append(CSV_COLUMNS)

    def __call__(self, engine: Engine) -> None:
        episode = self.episodes.last
        assert episode is not None
        seconds = self.episodes.seconds_before + episode.clock
        row = (self.episodes.count, episode.step, episode.length, f"{episode.total:g}", f"{seconds:.2f}", "")
        self._append(row)

    def _append(self, row: tuple) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)


def attach_bars(
    engine: Engine, exp_source: Any, episodes: Episodes, speed: Speed, limit: int, warm_up: int
) -> None:
    """A progress bar for filling the replay and one for training, each with its own speed and time to go.

    tqdm itself and not ignite's ProgressBar, as that counts iterations and the ladder's clock is agent steps.

    Args:
        limit: agent steps at which the run gives up; training's time to go is the time until then, at most.
        warm_up: agent steps to be made before the first batch.
    """
    # Lively on a terminal, a line every half minute in a log file.
    manners: dict[str, Any] = {
        "unit": "step",
        "dynamic_ncols": True,
        "mininterval": 0.5 if sys.stderr.isatty() else 30.0,
    }
    bars: list[tqdm] = []

    def fill(engine: Engine) -> None:
        if warm_up > 0:
            bars.append(tqdm(total=warm_up, desc="Replay warm-up", leave=False, **manners))
            exp_source.on_step = bars[0].update

    def train(engine: Engine) -> None:
        exp_source.on_step = None
        close(engine)
        bars.append(tqdm(total=limit, desc="Training", initial=episodes.steps(), smoothing=0.1, **manners))

    def update(engine: Engine) -> None:
        bars[0].set_postfix({"mean_100": f"{episodes.mean:.2f}"}, refresh=False)
        bars[0].update(episodes.steps() - bars[0].n)

    def close(engine: Engine) -> None:
        while bars:
            bars.pop().close()

    engine.add_event_handler(Events.STARTED, fill)
    engine.add_event_handler(TrainingEvents.LEARNING_STARTED, train)
    engine.add_event_handler(Events.ITERATION_COMPLETED, update)
    engine.add_event_handler(Events.COMPLETED, close)


def attach_lines(engine: Engine, episodes: Episodes, speed: Speed, warm_up: int) -> None:
    """The console's line an episode.

    Args:
        warm_up: the agent step with which the warm-up ends; an episode before it has the warm-up's speed.
    """

    def episode_completed(engine: Engine) -> None:
        episode = episodes.last
        assert episode is not None
        steps_per_second = speed.of_warm_up if episode.step <= warm_up else speed.now
        elapsed = clock_face(episodes.seconds_before + episode.clock)
        log.info(
            "Episode %d: reward=%g, steps=%d, speed=%.1f f/s, elapsed=%s",
            *(episodes.count, episode.total, episode.length, steps_per_second, elapsed),
        )

    engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_completed)


class TensorBoard:
    """TensorBoard's scalars; its state_dict holds the files' sizes, so that a resumed run doubles nothing.

    Args:
        folder: the run folder.
        appended: other files of the folder that only grow, cut back in the same way.

    Attributes:
        average: the smoothed loss.
    """

    def __init__(self, folder: Path, appended: tuple[str, ...] = ("episodes.csv",)):
        self.folder = folder
        self.appended = appended
        self.average = RunningAverage(output_transform=lambda output: output["loss"], alpha=SMOOTHING)
        self.logger: TensorboardLogger | None = None

    def attach(self, engine: Engine, steps: Callable[[], int], extra_metrics: Sequence[str]) -> None:
        """Write episodes/* by episode as they end, train/* and time/* by agent step every 100 iterations."""
        self.average.attach(engine, "avg_loss")
        self.logger = TensorboardLogger(log_dir=self.folder)
        self.logger.attach(
            engine,
            OutputHandler("episodes", metric_names=["reward", "steps", "avg_reward", "mean_100"]),
            EpisodeEvents.EPISODE_COMPLETED,
        )

        def agent_step(engine: Engine, event_name: Any) -> int:
            return steps()

        scalars = ["avg_loss", "avg_fps", *extra_metrics]
        train = OutputHandler("train", scalars, lambda output: output, global_step_transform=agent_step)
        self.logger.attach(engine, train, EVERY)
        self.logger.attach(
            engine, OutputHandler("time", list(PARTS), global_step_transform=agent_step), EVERY
        )

    def state_dict(self) -> dict[str, int]:
        if self.logger is not None:
            self.logger.writer.flush()
        return {path.name: path.stat().st_size for path in self._files()}

    def load_state_dict(self, sizes: dict[str, int]) -> None:
        for path in self._files():
            if sizes.get(path.name, 0):
                with path.open("r+b") as file:
                    file.truncate(sizes[path.name])
            else:
                path.unlink()

    def close(self) -> None:
        if self.logger is not None:
            self.logger.close()

    def _files(self) -> list[Path]:
        named = [self.folder / name for name in self.appended]
        return [path for path in named if path.exists()] + sorted(self.folder.glob("events.out.tfevents.*"))


def result(engine: Engine, stopped: str | None, episodes: Episodes, speed: Speed) -> dict[str, Any]:
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
            "warm_up_steps_per_second": _finite(speed.of_warm_up),
            "steps_per_second": _finite(speed.overall),
            "parts": speed.parts,
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows neither NaN nor infinity


def log_result(engine: Engine, stopped: str | None, episodes: Episodes, speed: Speed) -> None:
    """The last lines of a run: where the seconds went, how fast it was, how it ended, how to go on."""
    log.info("Where the seconds of training went:\n%s", speed.table())
    log.info("Speed: %.1f agent steps/s, %.1f learner updates/s.", speed.overall, speed.updates_per_second)
    if stopped == "solved":
        log.info(
            "Game solved in %s, after %d episodes and %d iterations!",
            *(clock_face(episodes.seconds), episodes.count, engine.state.iteration),
        )
    else:
        log.info("Stopped at step %s: %s.", f"{episodes.steps():,}", stopped)


def clock_face(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    return str(timedelta(seconds=int(seconds)))


def _rate(old: tuple[int, float], new: tuple[int, float]) -> float:
    return (new[0] - old[0]) / (new[1] - old[1]) if new[1] > old[1] else math.nan
