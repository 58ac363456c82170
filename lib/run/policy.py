"""Random play, and greedy, sampled and epsilon-greedy policies of a trained network.

A policy is a function from states, (batch, ...), as environments of make_env return them, and the random generator of
each state's episode to actions, (batch,) int64.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import nn

from lib.envs.single_env import DiscreteEnv
from lib.errors import UsageError
from lib.nets.masking import MaskSplitter
from lib.ppo.model import ActorCritic


@contextmanager
def in_evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Set a network to evaluation mode in this block. Afterwards each of its modules has its own mode again."""
    modes = [(module, module.training) for module in net.modules()]
    net.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def scores_of(net: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Return the action probabilities of an ActorCritic, or another network's Q-values, (batch, n_actions) float32."""
    if isinstance(net, ActorCritic):
        logits, _ = net(states)
        return cast(torch.Tensor, logits.softmax(1))
    return cast(torch.Tensor, getattr(net, "qvals", net)(states))  # the book's distributional network returns logits


class RandomPolicy:
    """Policy that draws among the legal actions, whose returns a trained agent has to exceed.

    Args:
        env: environment from make_env.
    """

    def __init__(self, env: DiscreteEnv):
        self._n_actions = env.action_space.n
        self._split = MaskSplitter(env.observation_space)

    def legal(self, states: np.ndarray) -> np.ndarray:
        """Return which actions are legal in states, (batch, n_actions) bool."""
        _, mask = self._split(torch.as_tensor(states))
        return np.ones((len(states), self._n_actions), np.bool_) if mask is None else mask.numpy()

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator]) -> np.ndarray:
        rows = zip(self.legal(states), randoms, strict=True)
        return np.array([random.choice(np.flatnonzero(legal)) for legal, random in rows])


class GreedyPolicy:
    """Policy that takes the best action according to a network. Noisy layers use their mean weights.

    Attributes:
        net: ppo.model.ActorCritic, or a network whose forward or qvals returns Q-values, (batch, n_actions).
        score_name: meaning of the scores, "Q" or "probability".
        less_greedy: options of tools/evaluate.py that take other actions than the best one, too.
    """

    def __init__(self, net: nn.Module):
        self.net = net
        has_probabilities = isinstance(net, ActorCritic)
        self.score_name = "probability" if has_probabilities else "Q"
        self.less_greedy = ("--sample",) if has_probabilities else ("--epsilon", "0.05")

    @torch.no_grad()
    def scores(self, states: np.ndarray) -> np.ndarray:
        """Return Q-values or action probabilities, (batch, n_actions) float32."""
        device = next((weight.device for weight in self.net.parameters()), torch.device("cpu"))
        with in_evaluation_mode(self.net):
            scores = scores_of(self.net, torch.as_tensor(states, device=device))
        return scores.cpu().numpy()

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator] = ()) -> np.ndarray:
        actions: np.ndarray = self.scores(states).argmax(1)
        return actions


class SampledPolicy(GreedyPolicy):
    """Policy that draws its actions from the probabilities of an ActorCritic, as a PPO agent does in training.

    Raises:
        UsageError: if the network gives action values instead of probabilities.
    """

    def __init__(self, net: nn.Module):
        super().__init__(net)
        if self.score_name != "probability":
            raise UsageError(
                "--sample needs a network that gives probabilities, and this run's gives action values; use --epsilon"
            )

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator] = ()) -> np.ndarray:
        shares = self.scores(states).astype(np.float64).cumsum(1)
        draws = np.array([random.random() for random in randoms]) * shares[:, -1]
        actions: np.ndarray = (shares > draws[:, None]).argmax(1)
        return actions


class EpsilonGreedyPolicy:
    """Policy that takes a random legal action with probability epsilon, and the action of another policy otherwise."""

    def __init__(self, policy: GreedyPolicy, random_policy: RandomPolicy, epsilon: float):
        self.policy, self.random_policy, self.epsilon = policy, random_policy, epsilon

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator]) -> np.ndarray:
        actions = self.policy(states, randoms)
        exploring = [row for row, random in enumerate(randoms) if random.random() < self.epsilon]
        if exploring:
            actions[exploring] = self.random_policy(states[exploring], [randoms[row] for row in exploring])
        return actions
