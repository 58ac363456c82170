"""Sum tree: samples indices in proportion to their weights."""

import numpy as np


class SumTree:
    """Weights whose cumulative sums are searched in logarithmic time, for many targets at once.

    Each node has BRANCHES children. A million weights are then only three levels below the root, and each level takes a
    few numpy calls.

    Args:
        size: number of weights, all 0 at first.
    """

    BRANCHES = 128

    def __init__(self, size: int):
        self.size = size
        rows = -(-size // self.BRANCHES)
        self._levels = [np.zeros((rows, self.BRANCHES))]  # from the children of the root down to the weights
        while rows > 1:
            rows = -(-rows // self.BRANCHES)
            self._levels.insert(0, np.zeros((rows, self.BRANCHES)))

    @property
    def total(self) -> float:
        return float(self._levels[0].sum())

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """Return the weights, float64, at indices of any shape from 0 to size - 1."""
        weights: np.ndarray = self._levels[-1].reshape(-1)[indices]
        return weights

    def __setitem__(self, indices: np.ndarray, weights: np.ndarray | float) -> None:
        """Set weights and update the sums above them.

        Args:
            indices: (batch,) int64 from 0 to size - 1. If an index occurs several times, its last weight counts.
            weights: (batch,) numbers of at least 0, or one number for all indices.
        """
        self._levels[-1].reshape(-1)[indices] = weights
        rows = np.asarray(indices)
        for parents, children in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            rows = rows // self.BRANCHES
            if len(rows) > self.BRANCHES:  # for fewer rows, np.unique takes longer than summing some of them twice
                rows = np.unique(rows)
            parents.reshape(-1)[rows] = children[rows].sum(axis=1)

    def find(self, targets: np.ndarray) -> np.ndarray:
        """Return the first indices at which the cumulative sum exceeds the targets.

        Args:
            targets: (batch,) float64 in [0, total); the total has to be above 0.

        Returns:
            (batch,) int64.
        """
        batch = np.arange(len(targets))
        rows = np.zeros_like(batch)
        for level in self._levels:
            sums = level[rows].cumsum(axis=1)
            # Rounding may raise a target to its row's total, which no cumulative sum exceeds. Keep it below the total.
            targets = np.minimum(targets, np.nextafter(sums[:, -1], 0.0))
            children = (sums <= targets[:, None]).sum(axis=1)
            targets = targets - np.where(children > 0, sums[batch, children - 1], 0.0)
            rows = rows * self.BRANCHES + children
        return rows
