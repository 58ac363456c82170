"""What a run records: episodes and how good they are, TensorBoard's scalars, episodes.csv, result.json."""

import csv
import logging
import math
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events

from lib.experience.episodes import Episode
from lib.run.events import EpisodeEvents
from lib.system.clock import format_duration, since_process_start

log = logging.getLogger(__name__)


WINDOW = 100  # episodes that "solved" is judged by


SMOOTHING = 0.98  # of avg_reward and avg_loss, as in ptan


CSV_COLUMNS = ("episode", "step", "length", "return", "seconds", "video")


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
                log.info("Mean of the last %d episodes reached %g in %s.", WINDOW, bound, format_duration(self.seconds))
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
