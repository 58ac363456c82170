"""Progress of a run toward its goal: the share that is done, and the time that is left."""

import math
from collections import deque
from collections.abc import Sequence

import numpy as np

from lib.run.episodes import WINDOW, Episodes
from lib.system.clock import since_process_start


class GoalProgress:
    """Progress of the mean return from that of the first episodes to stop_reward.

    Args:
        episodes: counter of the episodes, with a stop_reward.
        first_returns: returns of the run's first episodes, if it is resumed. If its episodes.csv was lost, the oldest
            known ones are used.
    """

    FIRST = 10  # episodes whose mean return is the start
    FEWEST = 20  # episodes in which a trend can be seen
    SIGNIFICANT = 3.0  # least number of standard errors by which the slope differs from 0
    HORIZON = 10.0  # longest estimate, as a multiple of the time in which the trend was seen

    def __init__(self, episodes: Episodes, first_returns: Sequence[float] = ()):
        assert episodes.stop_reward is not None
        self.episodes = episodes
        self.goal = episodes.stop_reward
        self._first = list(first_returns or episodes.returns)[: self.FIRST]
        self._recent: deque[tuple[float, float]] = deque(maxlen=WINDOW)  # (seconds, return) of this process

    def add(self) -> None:
        """Take the newest episode into account."""
        episode = self.episodes.last
        assert episode is not None
        if len(self._first) < self.FIRST:
            self._first.append(episode.total)
        self._recent.append((episode.clock, episode.total))

    @property
    def share(self) -> float:
        """Share of the distance covered, 0 to 1. It is below 1 until 100 episodes have ended."""
        if not self.episodes.returns:
            return 0.0
        start = sum(self._first) / len(self._first)
        distance = self.goal - start
        done = (self.episodes.mean - start) / distance if distance > 0 else 1.0
        return min(max(0.0, done), 1.0, len(self.episodes.returns) / WINDOW)

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds to the goal; None while the returns have no clear trend upward.

        The mean return is extrapolated along the regression line of the last returns. Between episodes the estimate
        counts down; it is None once its time has passed.
        """
        left = self._seconds_left_at_last_episode()
        if left is None or self.episodes.last is None:
            return None
        left -= since_process_start() - self.episodes.last.clock
        return left if left > 0.0 else None

    def _seconds_left_at_last_episode(self) -> float | None:
        count = len(self._recent)
        if count < self.FEWEST:
            return None
        seconds, returns = np.array(self._recent).T
        span = float(seconds[-1] - seconds[0])
        missing = max(0, WINDOW - len(self.episodes.returns)) * span / count  # time for the rest of 100 episodes
        if self.episodes.mean >= self.goal:
            return missing
        slope = _significant_slope(seconds, returns, self.SIGNIFICANT)
        if slope is None:
            return None
        left = max(missing, (self.goal - self.episodes.mean) / slope)
        return left if left <= self.HORIZON * span else None


def _significant_slope(x: np.ndarray, y: np.ndarray, errors: float) -> float | None:
    """Return the slope of the regression line, or None if it is not `errors` standard errors above 0."""
    if np.ptp(x) == 0.0 or np.ptp(y) == 0.0:
        return None
    slope = float(np.polyfit(x - x.mean(), y, 1)[0])
    correlation = float(np.corrcoef(x, y)[0, 1])
    unexplained = max(1e-12, 1.0 - correlation**2)
    return slope if correlation * math.sqrt((len(x) - 2) / unexplained) >= errors else None
