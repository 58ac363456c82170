"""Action selectors for ptan's agents."""

import numpy as np
import ptan

from lib.nets.masking import INVALID


class EpsilonGreedyActionSelector(ptan.actions.EpsilonGreedyActionSelector):
    """ptan's epsilon-greedy selector, except that random actions are drawn from the allowed actions only."""

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Select actions, (batch,), from values, (batch, actions); invalid actions have the value INVALID."""
        actions: np.ndarray = super().__call__(scores)
        for row in np.flatnonzero(scores[np.arange(len(scores)), actions] == INVALID):
            actions[row] = np.random.choice(np.flatnonzero(scores[row] != INVALID))
        return actions
