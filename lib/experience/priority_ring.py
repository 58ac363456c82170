"""Prioritised experience replay, Schaul et al. (2016), https://arxiv.org/abs/1511.05952."""

from typing import Any

import numpy as np
import torch

from lib.experience.interface import State
from lib.experience.ring import Batch, Ring
from lib.experience.stream import Step

LEAST_PRIORITY = 1e-5  # so that every transition can be drawn


def priorities_from_errors(errors: torch.Tensor) -> torch.Tensor:
    """Compute priorities |errors| + 1e-5, (batch,), Schaul et al. (2016), section 3.3.

    A NaN counts as an error of 0, infinity as float32's largest number. In both cases the loss is not finite, which
    stops the run.
    """
    return errors.detach().abs().nan_to_num() + LEAST_PRIORITY


class PrioritisedRing(Ring):
    """Replay ring of the last steps, sampled in proportion to priority ** alpha.

    New steps get the highest priority so far. Batches are stratified: the sum of all sampling weights is divided into
    batch_size equal parts, and one transition is sampled from each. The importance-sampling weight of a transition with
    probability p among n transitions is (n * p) ** -beta, divided by the largest weight in the batch.

    Args:
        args, options: arguments of a Ring.
        alpha: exponent of the priorities; 0 for uniform sampling, 1 for sampling in proportion to the priorities.
        beta: initial exponent of the importance-sampling weights, 0 to 1; 1 corrects the sampling bias fully.
        beta_steps: agent steps from the first batch until beta has risen linearly to 1.
    """

    STEP_BYTES = Ring.STEP_BYTES + 17  # plus a priority, a leaf of the tree, and a share of the inner nodes

    def __init__(self, *args: Any, alpha: float = 0.6, beta: float = 0.4, beta_steps: int = 100_000, **options: Any):
        super().__init__(*args, **options)
        self.alpha = alpha
        self._initial_beta = beta
        self._beta_steps = beta_steps
        self._first_batch: int | None = None  # agent steps when the first batch was sampled
        self._highest = 1.0
        self._tree = SumTree(self.length * self.num_envs)  # priority ** alpha; 0 if a step cannot be sampled
        self._priorities = np.ones((self.length, self.num_envs))

    @property
    def beta(self) -> float:
        """Exponent of the importance-sampling weights in the next batch."""
        if self._first_batch is None:
            return self._initial_beta
        steps = self._steps_added * self.num_envs - self._first_batch
        return min(1.0, self._initial_beta + (1.0 - self._initial_beta) * steps / self._beta_steps)

    def add(self, step: Step) -> None:
        """Add one step of every environment with the highest priority so far; see Ring.add."""
        row = self._steps_added % self.length
        super().add(step)
        self._priorities[row] = self._highest
        self._set_weights(row, 0.0)  # the next state is not in the ring yet
        if self._end > 0:
            ready = (self._end - 1) % self.length
            self._set_weights(ready, self._priorities[ready] ** self.alpha)
        if self._steps_added > self.length:  # the oldest steps have lost frames of their states
            for lost in range(self._start - self.stack + 1, self._start):
                self._set_weights(lost % self.length, 0.0)

    def _set_weights(self, row: int, weights: np.ndarray | float) -> None:
        self._tree[row * self.num_envs + np.arange(self.num_envs)] = weights

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions by their priorities, with replacement; see Ring.sample."""
        self._require_transitions()
        targets = np.arange(batch_size) + self._generator.random(batch_size)
        indices = self._tree.find(targets * (self._tree.total / batch_size))
        rows, envs = np.divmod(indices, self.num_envs)
        newest = self._steps_added - 1
        steps = newest - (newest % self.length - rows) % self.length
        if self._first_batch is None:
            self._first_batch = self._steps_added * self.num_envs
        weights = (self.num_transitions * self._tree[indices] / self._tree.total) ** -self.beta
        return self._make_batch(steps, envs, weights / weights.max())

    def update_priorities(self, indices: torch.Tensor, priorities: torch.Tensor) -> None:
        """Set the priorities of sampled transitions.

        Steps that cannot be sampled any more are ignored.

        Args:
            indices: (batch,) indices of a Batch.
            priorities: (batch,) positive and finite numbers, see priorities_from_errors.
        """
        new = priorities.detach().cpu().double().numpy()
        numbers, envs = np.divmod(indices.cpu().numpy(), self.num_envs)
        steps = numbers % self.length * self.num_envs + envs
        kept = (numbers >= self._steps_added - self.length) & (self._tree[steps] > 0.0)
        steps, new = steps[kept], new[kept]
        # The last priority counts if an index occurs several times.
        self._priorities.reshape(-1)[steps] = new
        self._tree[steps] = new**self.alpha
        self._highest = max(self._highest, float(new.max(initial=0.0)))

    def state_dict(self) -> State:
        state = super().state_dict()
        state["priorities"] = torch.from_numpy(self._priorities)
        state["weights"] = torch.from_numpy(self._tree[np.arange(self._tree.size)])
        state["highest"] = self._highest
        state["first_batch"] = self._first_batch
        return state

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self._priorities = state["priorities"].numpy().copy()
        self._tree[np.arange(self._tree.size)] = state["weights"].numpy()
        self._highest = state["highest"]
        self._first_batch = state["first_batch"]


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
