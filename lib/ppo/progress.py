"""Progress of the mean return toward a goal."""

import math
from collections import deque
from statistics import fmean, stdev
from typing import Any, NamedTuple


class Estimate(NamedTuple):
    """Estimated progress.

    Attributes:
        mean: progress of the mean return of recent episodes, 0 to 1.
        lower_bound: progress of that mean minus Progress.ERRORS standard errors, at most 1; minus infinity if unknown.
    """

    mean: float
    lower_bound: float


NO_PROGRESS = Estimate(0.0, -math.inf)
# Weights from --init should change little until their mean return is known.
UNKNOWN_BUT_TRAINED = Estimate(1.0, -math.inf)
AT_GOAL = Estimate(1.0, 1.0)


class Progress:
    """Track how far the mean return has moved from the mean of the first episodes toward a goal.

    Args:
        episodes: number of episodes in the running mean, but at least LEAST.

    Attributes:
        LEAST: smallest number of episodes in the running mean.
        ERRORS: number of standard errors between `mean` and `lower_bound`.
        trained: whether the run began with trained weights, from --init. If their first mean is at the goal, the
            progress stays 1.
    """

    LEAST = 16
    ERRORS = 3.0

    def __init__(self, episodes: int):
        self._recent: deque[float] = deque(maxlen=max(episodes, self.LEAST))
        self._first_mean: float | None = None
        self._lowest_mean: float | None = None
        self.trained = False

    def add(self, episode_return: float) -> None:
        """Record the return of a finished episode."""
        self._recent.append(episode_return)
        if len(self._recent) == self._recent.maxlen:
            mean = fmean(self._recent)
            if self._first_mean is None or self._lowest_mean is None:
                self._first_mean = self._lowest_mean = mean
            self._lowest_mean = min(self._lowest_mean, mean)

    def __call__(self, goal: float | None) -> Estimate:
        """Return the progress toward `goal`.

        It is 0 without a goal. Until the first running mean is known, it is 0, or 1 with --init, because large updates
        could spoil a trained policy.

        The first episodes to end are short, and their returns may be high. If the first mean of a new policy is already
        at the goal, progress is measured from the lowest running mean instead. It stays 0 until that mean is below the
        goal.
        """
        if goal is None:
            return NO_PROGRESS
        if self._first_mean is None or self._lowest_mean is None:
            return UNKNOWN_BUT_TRAINED if self.trained else NO_PROGRESS
        start = self._first_mean if self._first_mean < goal or self.trained else self._lowest_mean
        if start >= goal:
            return AT_GOAL if self.trained else NO_PROGRESS
        mean = fmean(self._recent)
        error = stdev(self._recent) / math.sqrt(len(self._recent))
        progress, lower_bound = (
            min(1.0, (value - start) / (goal - start)) for value in (mean, mean - self.ERRORS * error)
        )
        return Estimate(max(0.0, progress), lower_bound)

    def state_dict(self) -> dict[str, Any]:
        """Return the recent returns, the first and the lowest mean, and whether the first weights were trained."""
        return {
            "recent": list(self._recent),
            "first_mean": self._first_mean,
            "lowest_mean": self._lowest_mean,
            "trained": self.trained,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned.

        Raises:
            TypeError, ValueError: if a return or a mean is no number.
        """
        self._recent.clear()
        self._recent.extend(map(float, state["recent"]))
        first = state["first_mean"]
        # Earlier versions saved neither of these.
        lowest = state.get("lowest_mean", first)
        self._first_mean, self._lowest_mean = (None if mean is None else float(mean) for mean in (first, lowest))
        self.trained = state.get("trained", False)
