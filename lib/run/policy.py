"""The best actions that a network knows, and what it thinks of them."""

from typing import Any

import numpy as np
import torch
from torch import nn

from lib.ppo.model import Model
from lib.ppo.rollout import Agent, channels_last


class GreedyPolicy:
    """A network's policy without chance: not exploring, and with noisy layers at their means.

    Args:
        net: DQN, ExtendedDQN or ppo.Model.
        device: where it is.

    Attributes:
        meaning: what `scores` are: "Q" or "probability".
    """

    def __init__(self, net: nn.Module, device: torch.device | str = "cpu"):
        self.net = net
        self.device = device
        self.meaning = "probability" if isinstance(net, Model) else "Q"

    @torch.no_grad()
    def scores(self, states: np.ndarray) -> np.ndarray:
        """What the actions are chosen by.

        Args:
            states: (batch, ...) as vector_env.single_env's environment gives them.

        Returns:
            (batch, n_actions) float32.
        """
        if isinstance(self.net, Model):
            return Agent(self.net, self.device).probabilities(states)
        training = self.net.training
        self.net.eval()
        values = self.net(torch.as_tensor(states, device=self.device)).cpu().numpy()
        self.net.train(training)
        return values

    def allowed(self, states: np.ndarray) -> np.ndarray:
        """Which actions can be taken in these states.

        Returns:
            (batch, n_actions) bool; (batch, 1), True, where all can be.
        """
        tensor = channels_last(states) if isinstance(self.net, Model) else torch.as_tensor(states)
        split: Any = self.net.split
        mask = split(tensor)[1]
        return np.ones((len(states), 1), np.bool_) if mask is None else mask.numpy()

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """The best actions (batch,) int64."""
        return self.scores(states).argmax(1)


class EpsilonGreedyPolicy:
    """A policy that takes any action now and then.

    Args:
        policy: what is taken else; of what it does not allow, nothing is taken here either.
        n_actions: how many actions there are.
        epsilon: how often.
        seed: of the chance in it.
    """

    def __init__(self, policy: GreedyPolicy, n_actions: int, epsilon: float, seed: int):
        self.policy = policy
        self.n_actions = n_actions
        self.epsilon = epsilon
        self._rng = np.random.default_rng(seed)

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Actions (batch,) int64."""
        drawn = self._rng.integers(self.n_actions, size=len(states))
        exploring = self._rng.random(len(states)) < self.epsilon
        if exploring.any():
            allowed = np.broadcast_to(self.policy.allowed(states), (len(states), self.n_actions))
            for row in np.flatnonzero(~allowed[np.arange(len(states)), drawn]):
                drawn[row] = self._rng.choice(np.flatnonzero(allowed[row]))
        return np.where(exploring, drawn, self.policy(states))
