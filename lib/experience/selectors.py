"""Action selectors for ptan's agents."""

import numpy as np
import ptan

from lib.nets.masking import INVALID


class EpsilonGreedyActionSelector(ptan.actions.EpsilonGreedyActionSelector):
    """ptan's, which now and then takes any action; here, any that is allowed."""

    def __call__(self, scores: np.ndarray) -> np.ndarray:
        """Actions (batch,) by their values (batch, actions)."""
        actions = super().__call__(scores)
        for row in np.flatnonzero(scores[np.arange(len(scores)), actions] == INVALID):
            actions[row] = np.random.choice(np.flatnonzero(scores[row] != INVALID))
        return actions
