"""Progress of the mean return toward a goal."""

import math
from collections import deque
from statistics import fmean, stdev
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """Estimated progress.

    Attributes:
        mean: progress of the mean return of recent episodes, 0 to 1.
        lower_bound: progress of that mean less Progress.ERRORS standard errors, at most 1; minus infinity if unknown.
    """

    mean: float
    lower_bound: float


NONE = Estimate(0.0, -math.inf)


class Progress:
    """Track how far the mean return has moved from the mean of the first episodes toward a goal.

    Args:
        episodes: number of episodes in the running mean, raised to LEAST.

    Attributes:
        LEAST: smallest number of episodes in the running mean.
        ERRORS: number of standard errors between `mean` and `lower_bound`.
    """

    LEAST = 16
    ERRORS = 3.0

    def __init__(self, episodes: int):
        self._recent: deque[float] = deque(maxlen=max(episodes, self.LEAST))
        self._first_mean: float | None = None

    def add(self, episode_return: float) -> None:
        """Record the return of a finished episode."""
        self._recent.append(episode_return)
        if self._first_mean is None and len(self._recent) == self._recent.maxlen:
            self._first_mean = fmean(self._recent)

    def __call__(self, goal: float | None) -> Estimate:
        """Return the progress toward `goal`.

        It is 0 without a goal, and until there are enough episodes for the running mean. It stays 0 if the mean of the
        first episodes already reached the goal; lib.run.episodes warns of such a goal.
        """
        if self._first_mean is None or goal is None or self._first_mean >= goal:
            return NONE
        mean = fmean(self._recent)
        error = stdev(self._recent) / math.sqrt(len(self._recent))
        distance = goal - self._first_mean
        progress, lower_bound = (
            min(1.0, (value - self._first_mean) / distance) for value in (mean, mean - self.ERRORS * error)
        )
        return Estimate(max(0.0, progress), lower_bound)

    def state_dict(self) -> dict[str, Any]:
        """Return the recent returns and the mean of the first ones."""
        return {"recent": list(self._recent), "first_mean": self._first_mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._first_mean = state["first_mean"]
