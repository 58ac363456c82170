"""Console output of a training run: a bar with the progress toward the goal, and lines about the episodes.

| option | on a terminal | in a file, or on a terminal that cannot move its cursor |
|---|---|---|
| none | a bar; at most one line a second | at most one line every 10 seconds for single episodes; the state every 30 |
| `--verbose` | a bar; a line for each episode | a line for each episode; the state every 30 seconds |
| `--quiet` | start and end only, by other modules | the same |
"""

import logging
import math
import sys
import time
from collections.abc import Collection

from ignite.engine import Engine, Events

from lib.experience.interface import ExperienceSource
from lib.run.episodes import Episodes, format_return
from lib.run.events import EpisodeEvents, TrainingEvents
from lib.run.goal_progress import GoalProgress
from lib.run.speed import Speed, format_rate
from lib.system.clock import format_duration, format_estimate, since_process_start
from lib.system.progress import TaskProgress, bar_stream, is_terminal

log = logging.getLogger(__name__)


class EpisodeLines:
    """Lines about finished episodes: the book's line for each slow episode, otherwise a summary.

    Args:
        episodes: counter of the episodes.
        speed: speed of this process.
        every_episode: log a line for each episode.
    """

    ON_TERMINAL, IN_FILE = 1.0, 10.0  # minimum seconds between two lines

    def __init__(self, episodes: Episodes, speed: Speed, every_episode: bool):
        self.episodes = episodes
        self.speed = speed
        self.every_episode = every_episode
        self._interval = self.ON_TERMINAL if is_terminal(sys.stdout) else self.IN_FILE
        self._has_bar = bar_stream() is not None  # perhaps on another stream than the lines
        self._last = -math.inf
        self._returns: list[float] = []  # returns of the episodes since the last line

    def add(self) -> None:
        """Log the newest episode, or keep it for a summary."""
        episode = self.episodes.last
        assert episode is not None
        if self.every_episode:
            self._log_episode()
        else:
            self._returns.append(episode.total)

    def log_due(self) -> None:
        """Log a line if one is due. Without a bar, several episodes wait for the state line that sums them up."""
        if self._returns and time.monotonic() - self._last >= self._interval:
            if len(self._returns) == 1:
                self._log_episode()
            elif self._has_bar:
                self.log_rest()

    def log_rest(self) -> None:
        """Log a line about the episodes since the last line, if there are any."""
        if len(self._returns) == 1:
            self._log_episode()
        elif self._returns:
            count, elapsed = self.episodes.count, format_duration(self.episodes.seconds)
            first = count - len(self._returns) + 1
            log.info("Episodes %d to %d: %s, elapsed=%s", first, count, self.take_summary(), elapsed)

    def take_summary(self) -> str:
        """Return a summary of the episodes since the last line, or "" if there are none. It counts as a line."""
        returns, self._returns = self._returns, []
        self._last = time.monotonic()
        return f"count={len(returns)}, best={max(returns):g}, mean={_mean(returns)}" if returns else ""

    def _log_episode(self) -> None:
        episode = self.episodes.last
        assert episode is not None
        in_warm_up = episode.clock < self.speed.learning_since
        log.info(
            "Episode %d: reward=%g, steps=%d, speed=%.1f f/s, elapsed=%s",
            self.episodes.count,
            episode.total,
            episode.length,
            self.speed.warm_up_speed if in_warm_up else self.speed.recent,
            format_duration(self.episodes.seconds_at(episode.clock)),
        )
        self._returns = []
        self._last = time.monotonic()


class Screen:
    """Lines and bars of a training run.

    Args:
        exp_source: experience source; it reports the steps of the warm-up.
        episodes: counter of the episodes.
        speed: speed of this process.
        warm_up: agent steps of the warm-up.
        goal_progress: progress toward the goal. None without a goal: the bar then shows the steps until `step_limit`.
        step_limit: agent steps at which the run stops.
        always_shows_limit: show the time to the limit even if the time to the goal is unknown.
        time_limit: seconds after the start of this process after which the run stops, or None.
        every_episode: log a line for each episode.
    """

    def __init__(
        self,
        exp_source: ExperienceSource,
        episodes: Episodes,
        speed: Speed,
        warm_up: int,
        goal_progress: GoalProgress | None,
        step_limit: int,
        always_shows_limit: bool,
        time_limit: float | None,
        every_episode: bool,
    ):
        self.exp_source = exp_source
        self.episodes = episodes
        self.speed = speed
        self.warm_up = warm_up
        self.goal_progress = goal_progress
        self.step_limit = step_limit
        self.always_shows_limit = always_shows_limit
        self.time_limit = time_limit
        self._began = since_process_start()
        self.lines = EpisodeLines(episodes, speed, every_episode)
        self._progress: TaskProgress | None = None

    def attach(self, engine: Engine) -> None:
        """Show lines and bars while the engine runs. Attach this after the episode counter."""
        engine.add_event_handler(Events.STARTED, self._start_warm_up)
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self._start_training)
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, self._episode_completed)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.COMPLETED, self._end)

    def _start_warm_up(self) -> None:
        if self.warm_up > 0:
            progress = self._progress = TaskProgress("Replay warm-up", self.warm_up, from_first=True)
            self.exp_source.on_step = progress.advance

    def _start_training(self) -> None:
        self.exp_source.on_step = lambda steps: None
        self._close()
        self._progress = TaskProgress("Training", shown=True)

    def _episode_completed(self) -> None:
        self.lines.add()
        if self.goal_progress is not None:
            self.goal_progress.add()

    def _iteration_completed(self) -> None:
        self.lines.log_due()
        if self._progress is not None and self._progress.due:
            self._show(self._progress)

    def _show(self, progress: TaskProgress) -> None:
        texts = self._texts(progress.on_terminal)
        if not progress.on_terminal:
            summary = self.lines.take_summary()
            texts = [f"Step {self.episodes.steps:,}: {texts[0]}{summary and f'; since the last line: {summary}'}"]
        progress.show(self._share() if self.goal_progress is None else self.goal_progress.share, *texts)

    def _share(self) -> float:
        """Return the share of the step limit or of the time limit that is used, whichever is larger, 0 to 1."""
        used = [self.episodes.steps / self.step_limit]
        if self.time_limit is not None and self.time_limit > self._began:
            used.append((since_process_start() - self._began) / (self.time_limit - self._began))
        return min(1.0, max(used))

    def _texts(self, with_step: bool) -> list[str]:
        """Return the run's state in texts of decreasing length. Without a goal, they include the agent step."""
        episodes, number = self.episodes, len(self.episodes.returns)
        mean = _mean(episodes.returns)
        steps = [f"step {episodes.steps:,}"] if with_step else []
        target = steps if self.goal_progress is None else [f"goal {self.goal_progress.goal:g}"]
        speed = [f"{format_rate(self.speed.recent)} steps/s"] if self.speed.recent > 0 else []
        elapsed = format_duration(episodes.seconds)
        left, to_limit = self._left()
        long_left = [f"about {left} left{' to the limit' if to_limit else ''}"] if left else []
        short_left = [f"limit in ~{left}" if to_limit else f"~{left} left"] if left else []
        long = f"mean of the last {number} episodes {mean}" if number else "no episode yet"
        short = f"mean of {number}: {mean}" if number else "no episode yet"
        forms = [
            [long, *target, *speed, f"elapsed {elapsed}", *long_left],
            [short, *target, *speed, elapsed, *short_left],
            [short, *target, elapsed, *short_left],
            [short, *target, elapsed],
            [short],
        ]
        return [", ".join(form) for form in forms]

    def _left(self) -> tuple[str, bool]:
        """Return the estimated time left, and whether a limit ends the run before its goal.

        The time is "" if it is unknown or over.
        """
        to_goal = None if self.goal_progress is None else self.goal_progress.seconds_left
        limits = []
        if (self.always_shows_limit or to_goal is not None) and self.speed.with_pauses > 0:
            limits.append((self.step_limit - self.episodes.steps) / self.speed.with_pauses)
        if self.time_limit is not None:
            limits.append(self.time_limit - since_process_start())
        soonest = min((seconds for seconds in (to_goal, *limits) if seconds is not None), default=None)
        if soonest is None or soonest <= 0.0:
            return "", False
        return format_estimate(soonest), self.goal_progress is not None and soonest != to_goal

    def _end(self) -> None:
        self._close()
        self.lines.log_rest()

    def _close(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def _mean(returns: Collection[float]) -> str:
    mean = sum(returns) / len(returns) if returns else math.nan
    return f"{mean:,.0f}" if abs(mean) >= 1000 else format_return(mean)
