"""Numbers drawn in proportion to their size, for lib.replay's priorities."""

import numpy as np


class SumTree:
    """Numbers whose running sums are searched in logarithmic time, many at once.

    Each node has BRANCHES children, so that a million numbers are three levels away from the root, and numpy is called
    a few times a level.

    Args:
        size: how many numbers, 0 or above; all are 0 at first.
    """

    BRANCHES = 128

    def __init__(self, size: int):
        self.size = size
        rows = -(-size // self.BRANCHES)
        self._levels = [np.zeros((rows, self.BRANCHES))]  # from the root's children to the numbers themselves
        while rows > 1:
            rows = -(-rows // self.BRANCHES)
            self._levels.insert(0, np.zeros((rows, self.BRANCHES)))

    @property
    def total(self) -> float:
        """The sum of all."""
        return float(self._levels[0].sum())

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        """The numbers, float64, at indices of any shape, 0 to size - 1."""
        return self._levels[-1].reshape(-1)[indices]

    def __setitem__(self, indices: np.ndarray, values: np.ndarray) -> None:
        """Numbers anew, and the sums above them.

        Args:
            indices: (batch,) int64, 0 to size - 1; of several that are the same the last one counts.
            values: (batch,), or one number for all, 0 or above.
        """
        self._levels[-1].reshape(-1)[indices] = values
        rows = np.asarray(indices)
        for above, below in zip(self._levels[-2::-1], self._levels[:0:-1], strict=True):
            rows = rows // self.BRANCHES
            if len(rows) > self.BRANCHES:  # of few, to tell which are the same takes longer than to add up again
                rows = np.unique(rows)
            above.reshape(-1)[rows] = below[rows].sum(axis=1)

    def find(self, targets: np.ndarray) -> np.ndarray:
        """The first index, (batch,) int64, at which the running sum exceeds a target, (batch,) float64 in [0, total).

        The total has to be above 0.
        """
        sums = self._levels[0][0].cumsum()
        # Rounding may have brought a target to the end of its row, behind which there is nothing.
        targets = np.minimum(targets, np.nextafter(sums[-1], 0.0))
        rows = sums.searchsorted(targets, side="right")
        targets = targets - np.where(rows > 0, sums[rows - 1], 0.0)
        each = np.arange(len(targets))
        for level in self._levels[1:]:
            sums = level[rows].cumsum(axis=1)
            targets = np.minimum(targets, np.nextafter(sums[:, -1], 0.0))
            places = (sums <= targets[:, None]).sum(axis=1)
            targets = targets - np.where(places > 0, sums[each, places - 1], 0.0)
            rows = rows * self.BRANCHES + places
        return rows
