"""Progress of the mean return toward a goal."""

from collections import deque
from typing import Any


class Progress:
    """Track how far the mean return has moved from the mean of the first episodes toward a goal.

    Args:
        episodes: number of episodes in the running mean.
    """

    def __init__(self, episodes: int):
        self._recent: deque[float] = deque(maxlen=episodes)
        self._first_mean: float | None = None

    def add(self, episode_return: float) -> None:
        """Record the return of a finished episode."""
        self._recent.append(episode_return)
        if self._first_mean is None and len(self._recent) == self._recent.maxlen:
            self._first_mean = sum(self._recent) / len(self._recent)

    def __call__(self, goal: float | None) -> float:
        """Return the progress toward `goal`, from 0 to 1.

        It is 0 without a goal, and until there are enough episodes for the running mean. If the mean of the first
        episodes already reached the goal, progress is 1 while the mean is at least the goal, and 0 otherwise.
        """
        if self._first_mean is None or goal is None:
            return 0.0
        mean = sum(self._recent) / len(self._recent)
        if mean >= goal:
            return 1.0
        if self._first_mean >= goal:
            return 0.0
        return max(0.0, (mean - self._first_mean) / (goal - self._first_mean))

    def state_dict(self) -> dict[str, Any]:
        """Return the recent returns and the mean of the first ones."""
        return {"recent": list(self._recent), "first_mean": self._first_mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._first_mean = state["first_mean"]
