"""How near the goal is."""

from collections import deque
from typing import Any


class Progress:
    """How far the mean return of the last episodes has come, from that of the first ones to a goal.

    Args:
        episodes: of how many the mean is.
    """

    def __init__(self, episodes: int):
        self._recent: deque[float] = deque(maxlen=episodes)
        self._first_mean: float | None = None

    def add(self, total: float) -> None:
        """Count an episode that ended with this return."""
        self._recent.append(total)
        if self._first_mean is None and len(self._recent) == self._recent.maxlen:
            self._first_mean = sum(self._recent) / len(self._recent)

    def __call__(self, goal: float | None) -> float:
        """0 to 1; 0 while there are too few episodes, or no goal, or below one that the first ones were beyond."""
        if self._first_mean is None or goal is None:
            return 0.0
        mean = sum(self._recent) / len(self._recent)
        if mean >= goal:
            return 1.0
        return max(0.0, (mean - self._first_mean) / (goal - self._first_mean)) if self._first_mean < goal else 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"recent": list(self._recent), "first_mean": self._first_mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._first_mean = state["first_mean"]
