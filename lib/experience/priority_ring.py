"""Prioritized experience replay, Schaul et al. (2016), https://arxiv.org/abs/1511.05952."""

from typing import Any

import numpy as np
import torch

from lib.errors import UsageError
from lib.experience.ring import Batch, Ring
from lib.experience.sum_tree import SumTree


def priorities(errors: torch.Tensor) -> torch.Tensor:
    """How much there is to learn from transitions: |errors| + 1e-5, (batch,), Schaul et al. (2016), section 3.3.

    NaN counts as no error here: the loss is NaN as well then, and that ends the run.
    """
    return errors.detach().abs().nan_to_num() + 1e-5


class PrioritisedRing(Ring):
    """The last steps, sampled in proportion to priority ** alpha, Schaul et al. (2016), https://arxiv.org/abs/1511.05952.

    A new step has the highest priority so far. A batch is stratified: the sum of the weights is cut into as many equal
    parts as there are transitions in it, and one is drawn from each. Importance weights are (n * p) ** -beta, divided
    by the largest of the batch.

    Args:
        alpha: 0 for uniform sampling, 1 for in proportion to the priorities.
        beta: how far the importance weights undo the priorities at first, 0 to 1; 1 is for wholly.
        beta_steps: agent steps after the first batch at which it has come to 1, in a straight line.
        options: those of Ring.

    Raises:
        UsageError: one of them is out of its range, or as Ring says.
    """

    BESIDES = Ring.BESIDES + 17  # a priority, a leaf of the tree, and the nodes above

    def __init__(self, *options: Any, alpha: float = 0.6, beta: float = 0.4, beta_steps: int = 100_000, **more: Any):
        for name, value in (("alpha", alpha), ("beta", beta)):
            if not 0.0 <= value <= 1.0:
                raise UsageError(f"{name} is {value}; it has to be between 0 and 1")
        if not 1 <= beta_steps < 2**63:
            raise UsageError(
                f"beta_steps is {beta_steps}; it has to be between 1 and 2**63: beta rises to 1 within them"
            )
        super().__init__(*options, **more)
        self.alpha = alpha
        self._first_beta = beta
        self._beta_steps = beta_steps
        self._first_batch: int | None = None  # agent steps when it was drawn
        self._highest = 1.0
        self._tree = SumTree(self.length * self.num_envs)
        self._priorities = np.ones((self.length, self.num_envs))

    @property
    def beta(self) -> float:
        """How far the importance weights undo the priorities in the next batch."""
        steps = self._added * self.num_envs
        since = 0 if self._first_batch is None else steps - self._first_batch
        return min(1.0, self._first_beta + (1.0 - self._first_beta) * since / self._beta_steps)

    def add(self, *step: Any, **more: Any) -> None:
        """See Ring.add; these steps have the highest priority so far."""
        row = self._added % self.length
        super().add(*step, **more)
        self._priorities[row] = self._highest
        self._weigh(row, 0.0)  # its next state is not there yet
        if self._last > 0:
            ready = (self._last - 1) % self.length
            self._weigh(ready, self._priorities[ready] ** self.alpha)
        if self._added > self.length:  # the next stack - 1 steps have lost a frame of their state
            self._weigh((self._first - 1) % self.length, 0.0)
            if self._added == self.length + 1:
                for lost in range(self._added - self.length, self._first):
                    self._weigh(lost % self.length, 0.0)

    def _weigh(self, row: int, weights: Any) -> None:
        self._tree[row * self.num_envs + np.arange(self.num_envs)] = weights

    def sample(self, batch_size: int) -> Batch:
        """Transitions drawn by their priorities, with repetition.

        Raises:
            UsageError: there is none yet, or the batch is larger than what the ring keeps.
        """
        self.require(batch_size)
        strata = np.arange(batch_size) + self._generator.random(batch_size)
        indices = self._tree.find(strata * (self._tree.total / batch_size))
        rows, envs = np.divmod(indices, self.num_envs)
        newest = (self._added - 1) % self.length
        steps = self._added - 1 - (newest - rows) % self.length
        if self._first_batch is None:
            self._first_batch = self._added * self.num_envs
        weights = (self.drawable * self._tree[indices] / self._tree.total) ** -self.beta
        return self._batch(steps, envs, weights / weights.max())

    def update(self, indices: torch.Tensor, priorities: torch.Tensor) -> None:
        """New priorities of sampled transitions.

        Args:
            indices: of a Batch, before the next `add`, by which a later step may take its place; those of what cannot
                be drawn are passed over.
            priorities: (batch,) above 0, see `priorities`.

        Raises:
            ValueError: there is not one for each, or it is not above 0, or no number.
        """
        if priorities.shape != indices.shape:
            raise ValueError(f"priorities {tuple(priorities.shape)} of indices {tuple(indices.shape)}; one for each")
        given = priorities.detach().cpu().double().numpy()
        if not (np.isfinite(given) & (given > 0.0)).all():
            raise ValueError(f"priorities from {given.min()} to {given.max()}; all have to be finite and above 0")
        where = indices.cpu().numpy()
        there = self._tree[where] > 0.0
        where, given = where[there], given[there]
        if not len(where):
            return
        self._priorities.reshape(-1)[where] = given
        self._tree[where] = self._priorities.reshape(-1)[where] ** self.alpha
        self._highest = max(self._highest, float(given.max()))

    def state_dict(self) -> dict[str, Any]:
        weights = self._tree[np.arange(self._tree.size)]
        mine = {"priorities": torch.from_numpy(self._priorities), "weights": torch.from_numpy(weights)}
        return super().state_dict() | mine | {"highest": self._highest, "first_batch": self._first_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._priorities = state["priorities"].numpy().copy()
        self._tree[np.arange(self._tree.size)] = state["weights"].numpy()
        self._highest = state["highest"]
        self._first_batch = state["first_batch"]
