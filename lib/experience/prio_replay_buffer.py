"""The book's prioritised replay buffer: a list of transitions."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import torch

from lib.experience.priority_ring import LEAST_PRIORITY
from lib.experience.sum_tree import SumTree

if TYPE_CHECKING:
    from ptan.experience import ExperienceFirstLast

BETA_START = 0.4
BETA_FRAMES = 100_000  # argument of update_beta at which beta reaches 1


class PrioReplayBuffer:
    """Prioritised replay, Schaul et al. (2016), https://arxiv.org/abs/1511.05952, with a sum tree.

    This project's own scripts use PrioritisedRing, which holds arrays and is faster.

    Args:
        exp_source: PTAN's experience source.
        buf_size: capacity in transitions.
        prob_alpha: exponent of the priorities, 0 to 1; 0 for uniform sampling.

    Attributes:
        beta: exponent of the importance-sampling weights.
    """

    def __init__(self, exp_source: Iterable["ExperienceFirstLast"], buf_size: int, prob_alpha: float = 0.6):
        self.capacity = buf_size
        self.prob_alpha = prob_alpha
        self.beta = BETA_START
        self.buffer: list[ExperienceFirstLast] = []
        self._transitions = iter(exp_source)
        self._position = 0
        self._highest = 1.0
        self._tree = SumTree(buf_size)  # priority ** prob_alpha
        # Seeded by torch, because a script seeds torch, and numpy's global generator remains for the environments.
        self._generator = np.random.default_rng(int(torch.randint(2**62, ())))

    def __len__(self) -> int:
        return len(self.buffer)

    def update_beta(self, idx: int) -> float:
        """Set beta to BETA_START + idx * (1 - BETA_START) / BETA_FRAMES, at most 1, and return it."""
        self.beta = min(1.0, BETA_START + idx * (1.0 - BETA_START) / BETA_FRAMES)
        return self.beta

    def populate(self, count: int) -> None:
        """Add `count` transitions from the source, with the highest priority so far."""
        for _ in range(count):
            transition = next(self._transitions)
            if len(self.buffer) < self.capacity:
                self.buffer.append(transition)
            else:
                self.buffer[self._position] = transition
            self._tree[np.array([self._position])] = self._highest**self.prob_alpha
            self._position = (self._position + 1) % self.capacity

    def sample(self, batch_size: int) -> tuple[list["ExperienceFirstLast"], np.ndarray, np.ndarray]:
        """Draw transitions by their priorities, with replacement.

        Returns:
            The transitions, their indices (batch_size,) int64, and their importance-sampling weights (batch_size,)
            float32, of which the largest is 1.
        """
        indices = self._tree.find(self._generator.random(batch_size) * self._tree.total)
        probs = self._tree[indices] / self._tree.total
        weights = (len(self.buffer) * probs) ** -self.beta
        return [self.buffer[index] for index in indices], indices, (weights / weights.max()).astype(np.float32)

    def update_priorities(self, batch_indices: np.ndarray, batch_priorities: np.ndarray) -> None:
        """Set the priorities of sampled transitions. If an index occurs several times, its last priority counts.

        Call it before the next `populate`, which may overwrite a sampled transition.

        Args:
            batch_indices: (batch_size,) indices from `sample`.
            batch_priorities: (batch_size,) priorities. NaN and infinity are replaced. In this case the loss is not
                finite either, which stops the run.
        """
        priorities = np.nan_to_num(
            np.asarray(batch_priorities, np.float64), nan=LEAST_PRIORITY, posinf=float(np.finfo(np.float32).max)
        )
        self._tree[batch_indices] = priorities**self.prob_alpha
        self._highest = max(self._highest, float(priorities.max()))
