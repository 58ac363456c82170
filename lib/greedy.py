"""The best actions that a network knows, and what it thinks of them."""

import numpy as np
import torch
from torch import nn

from lib import masks, ppo


class Greedy:
    """A network's policy without chance: not exploring, and with noisy layers at their means.

    Args:
        net: from states to action values (batch, n_actions), or a ppo.Model.
        device: where it is.

    Attributes:
        meaning: what `scores` are: "Q" or "probability".
    """

    def __init__(self, net: nn.Module, device: torch.device | str = "cpu"):
        self.net = net
        self.device = device
        self.meaning = "probability" if isinstance(net, ppo.Model) else "Q"

    @torch.no_grad()
    def scores(self, states: np.ndarray) -> np.ndarray:
        """What the actions are chosen by.

        Args:
            states: (batch, ...) as vector_env.single_env's environment gives them.

        Returns:
            (batch, n_actions) float32.
        """
        if isinstance(self.net, ppo.Model):
            return ppo.Agent(self.net, self.device).probabilities(states)
        training = self.net.training
        self.net.eval()
        values = self.net(torch.as_tensor(states, device=self.device)).cpu().numpy()
        self.net.train(training)
        return values

    def allowed(self, states: np.ndarray) -> np.ndarray:
        """(batch, n_actions) bool, which actions can be taken in these states."""
        return self.scores(states) > (0.0 if isinstance(self.net, ppo.Model) else masks.INVALID)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """The best actions (batch,) int64."""
        return self.scores(states).argmax(1)


class Exploring:
    """A policy that takes any action now and then.

    Args:
        policy: from states (batch, ...) to actions (batch,).
        n_actions: how many there are; of those that are not allowed in a state none is taken.
        epsilon: how often.
        seed: of the chance in it.
    """

    def __init__(self, policy: Greedy, n_actions: int, epsilon: float, seed: int):
        self.policy = policy
        self.n_actions = n_actions
        self.epsilon = epsilon
        self._rng = np.random.default_rng(seed)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Actions (batch,) int64."""
        drawn = self._rng.integers(self.n_actions, size=len(states))
        exploring = self._rng.random(len(states)) < self.epsilon
        if exploring.any():
            for row, allowed in enumerate(self.policy.allowed(states)):
                if not allowed[drawn[row]]:
                    drawn[row] = self._rng.choice(np.flatnonzero(allowed))
        return np.where(exploring, drawn, self.policy(states))
