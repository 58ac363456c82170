"""Events of a run besides ignite's own, and its finished episodes: mean return, rows in episodes.csv, videos."""

import csv
import logging
import math
import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from ignite.engine import Engine, EventEnum, Events

from lib.experience.interface import Episode, ExperienceSource, State
from lib.system.clock import since_process_start

log = logging.getLogger(__name__)

WINDOW = 100  # number of episodes whose mean return decides whether the game is solved
SMOOTHING = 0.98  # weight of the old average in avg_reward and avg_loss, as in ptan
VIDEOS = "videos"  # folder in the run folder
CSV_COLUMNS = ("episode", "step", "length", "return", "seconds", "video")


class TrainingEvents(EventEnum):
    LEARNING_STARTED = "learning_started"  # fired once, after the warm-up, when the first batch has been sampled
    EVALUATED = "evaluated"  # fired when all episodes of an evaluation during training have been played


class EpisodeEvents(EventEnum):
    """Fired when an episode has ended, and when a mean return is the best so far or has reached stop_reward.

    ignite compares events by name, so handlers that are attached to ptan.ignite.EpisodeEvents are called as well.
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


class Episodes:
    """Handler of ITERATION_COMPLETED that counts finished episodes and fires ptan's episode events.

    The game is solved when, after an iteration, the mean return of the last 100 episodes reaches stop_reward. For each
    episode, engine.state gets what ptan's handlers set: episode, episode_reward, episode_steps, and the metrics reward,
    steps, avg_reward and time_passed; also the metrics end_step and mean_100.

    The run began `began` seconds after the start of this process, because a notebook may do other work first.
    """

    last: Episode  # the newest one that has ended

    MINIMUM = 10  # fewest episodes whose mean can be the best
    SAVED = ("count", "first", "returns", "smoothed", "best_mean", "reached")

    def __init__(
        self, exp_source: ExperienceSource, stop_reward: float | None, milestone: float | None = None, began: float = 0
    ):
        self.exp_source, self.stop_reward, self.milestone = exp_source, stop_reward, milestone
        self.count = 0  # of finished episodes
        self.first: list[float] = []  # returns of the first MINIMUM episodes
        self.returns: deque[float] = deque(maxlen=WINDOW)  # of the last 100 episodes
        self.smoothed: float | None = None  # exponentially smoothed return
        # Highest mean return of 100 successive episodes; before the first 100 have ended, that of the first 10 or more.
        self.best_mean = -math.inf
        # By stop_reward or milestone, as text: seconds, step, episode and iteration at which the mean reached it.
        self.reached: dict[str, dict[str, float]] = {}
        self._seconds_before = -began  # run time of earlier processes, if the run is resumed

    def __call__(self, engine: Engine) -> None:
        episodes = self.exp_source.pop_episodes()
        for episode in episodes:
            self._add(episode)
            self._publish(engine, episode)
            engine.fire_event(EpisodeEvents.EPISODE_COMPLETED)
            is_best = len(self.returns) >= self.MINIMUM and self.mean > self.best_mean
            # The first episodes to end are the short ones, so the means of fewer than 100 may be too high.
            if is_best or self.count == WINDOW:
                self.best_mean = self.mean
                engine.fire_event(EpisodeEvents.BEST_REWARD_REACHED)
        # Within an iteration, the mean of short episodes may pass the goal by chance and fall below it again.
        if episodes:
            self._check_bounds(engine)

    @property
    def steps(self) -> int:
        return self.exp_source.steps_done

    @property
    def mean(self) -> float:
        """Mean return of the last 100 episodes, or of all if there are fewer."""
        return math.fsum(self.returns) / len(self.returns) if self.returns else math.nan

    @property
    def solved(self) -> dict[str, float] | None:
        """The entry of `reached` for stop_reward, or None if the game is not solved."""
        return self.reached.get(str(self.stop_reward))

    @property
    def seconds(self) -> float:
        """Run time in seconds, over all processes of the run."""
        return self.seconds_at(since_process_start())

    def seconds_at(self, clock: float) -> float:
        """Return the run time `clock` seconds after this process started."""
        return max(0.0, self._seconds_before + clock)  # an episode may have ended before the run began

    def _add(self, episode: Episode) -> None:
        self.count += 1
        self.last = episode
        self.returns.append(episode.total)
        self.first = [*self.first, episode.total][: self.MINIMUM]
        average = episode.total if self.smoothed is None else self.smoothed
        self.smoothed = SMOOTHING * average + (1 - SMOOTHING) * episode.total

    def _publish(self, engine: Engine, episode: Episode) -> None:
        state = engine.state
        vars(state).update(episode=self.count, episode_reward=episode.total, episode_steps=episode.length)
        state.metrics |= {
            "reward": episode.total,
            "steps": episode.length,
            # A rollout reports its episodes in any order. TensorBoard drops points if a step is smaller than the last.
            "end_step": max(episode.step, state.metrics.get("end_step", 0)),
            "avg_reward": self.smoothed,
            "mean_100": self.mean,
            "time_passed": self.seconds,
        }

    def _check_bounds(self, engine: Engine) -> None:
        for bound in (self.milestone, self.stop_reward):
            if self._is_at(bound) and str(bound) not in self.reached:
                self.reached[str(bound)] = {
                    "seconds": self.seconds,
                    "step": self.steps,
                    "episode": self.count,
                    "iteration": engine.state.iteration,
                }
                took = timedelta(seconds=int(self.seconds))
                log.info("Mean of the last %d episodes reached %g in %s.", WINDOW, bound, took)
        if self._is_at(self.stop_reward):
            engine.fire_event(EpisodeEvents.BOUND_REWARD_REACHED)

    def _is_at(self, bound: float | None) -> bool:
        """Return whether the mean of 100 episodes has reached a bound, within the rounding of sums of rewards."""
        rounding = 1e-9 * max(1.0, abs(bound or 0.0))
        return bound is not None and len(self.returns) == WINDOW and self.mean >= bound - rounding

    def state_dict(self) -> dict[str, object]:
        saved = {name: getattr(self, name) for name in self.SAVED}
        return saved | {"returns": list(self.returns), "seconds": self.seconds}

    def load_state_dict(self, state: State) -> None:
        vars(self).update({name: state[name] for name in self.SAVED}, returns=deque(state["returns"], WINDOW))
        self._seconds_before += state["seconds"]


class EpisodeFile:
    """Handler of EPISODE_COMPLETED that writes a row of episodes.csv.

    `record` records the newest episode, and returns the path of its video in the run folder, or "" without a video.
    """

    def __init__(self, path: Path, episodes: Episodes, record: Callable[[], str]):
        self.path, self.episodes, self.record = path, episodes, record
        if not path.exists():
            self._append(CSV_COLUMNS)

    def __call__(self, engine: Engine) -> None:
        episode = self.episodes.last
        seconds = self.episodes.seconds_at(episode.clock)
        numbers = self.episodes.count, episode.step, episode.length, f"{episode.total:.7g}", f"{seconds:.2f}"
        self._append([*numbers, self.record()])

    def _append(self, row: Sequence[object]) -> None:
        with self.path.open("a", newline="") as file:
            csv.writer(file).writerow(row)


def format_return(value: float) -> str:
    """Format a return with two decimals, or three significant digits if it is huge, or small beyond rounding errors."""
    return f"{value:.3g}" if 1e-9 < abs(value) < 0.01 or abs(value) >= 1e9 else f"{value:.2f}"


def episode_videos(run: Path) -> list[tuple[int, Path]]:
    """List the videos of training as (number of the episode, path), oldest first."""
    named = ((re.fullmatch(r"episode-(\d+)-return-.*\.webm", path.name), path) for path in (run / VIDEOS).glob("*"))
    return sorted((int(match[1]), path) for match, path in named if match)
