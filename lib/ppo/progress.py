"""How near the goal is, and when a policy is put on trial."""

import math
import statistics
from typing import Any


class Progress:
    """How far the mean return of the last episodes has come, from that of the first ones to a goal.

    An episode that has just ended was played by all the policies since it began, so that their mean lags behind. At
    TRIAL of the way a policy is therefore put on trial: nothing is learnt any more, and it is judged by the episodes
    that it alone has played, at least half as many as those before. Where their mean is below the goal by more than
    its standard error, learning goes on, and the next trial comes where the mean of the last episodes has come further
    by as much as this one fell short.

    Args:
        num_envs: how many environments there are; the mean is of as many episodes.
    """

    TRIAL = 0.85

    def __init__(self, num_envs: int):
        self._num_envs = num_envs
        self._recent: list[float] = []
        self._first_mean: float | None = None
        self._done = 0.0  # of the way, when last there were enough episodes
        self._bar: float | None = None  # the mean at which the next trial comes, or at which this one came
        self._on_trial = False
        self._begun_before: set[int] = set()  # the environments whose episodes began before the trial

    def add(self, total: float, env: int) -> None:
        """Count an episode of the environment of this number that ended with this return."""
        if env in self._begun_before:
            self._begun_before.remove(env)
            return
        self._recent.append(total)
        if not self._on_trial:
            del self._recent[: -self._num_envs]
        if self._first_mean is None and len(self._recent) == self._num_envs:
            self._first_mean = self._mean()

    def __call__(self, goal: float | None) -> float:
        """0 to 1, which is on trial.

        0 while there are too few episodes, or no goal, or below one that the first ones were beyond. With each trial
        and after it the episodes are counted anew; until there are enough, it is as far as it has been.
        """
        if self._first_mean is None or goal is None:
            return 0.0
        if self._on_trial:
            assert self._bar is not None  # it has come here
            if 2 * len(self._recent) >= max(4, self._num_envs) and self._mean() + self._error() < goal:
                self._on_trial, self._recent, self._bar = False, [], self._bar + goal - self._mean()
                self._begun_before = set()
        elif len(self._recent) >= self._num_envs:
            way = goal - self._first_mean
            bar = self._first_mean + self.TRIAL * way if self._bar is None else self._bar
            mean = self._mean()
            if mean >= min(bar, goal):
                self._on_trial, self._recent, self._bar = True, [], mean
                self._begun_before = set(range(self._num_envs))
            else:
                self._done = max(0.0, (mean - self._first_mean) / way) if way > 0.0 else 0.0
        return 1.0 if self._on_trial else self._done

    def _mean(self) -> float:
        return sum(self._recent) / len(self._recent)

    def _error(self) -> float:
        return statistics.stdev(self._recent) / math.sqrt(len(self._recent))

    def state_dict(self) -> dict[str, Any]:
        return {
            "recent": list(self._recent),
            "first_mean": self._first_mean,
            "done": self._done,
            "bar": self._bar,
            "on_trial": self._on_trial,
            "begun_before": sorted(self._begun_before),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._recent = list(state["recent"])
        self._first_mean = state["first_mean"]
        self._done = state["done"]
        self._bar = state["bar"]
        self._on_trial = state["on_trial"]
        self._begun_before = set(state["begun_before"])
