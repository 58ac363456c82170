"""Random play, and greedy, sampled and epsilon-greedy policies of a trained network; see episode_player.Policy."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lib.envs.masks import choices
from lib.envs.single_env import DiscreteEnv
from lib.errors import UsageError
from lib.nets.masking import MaskSplitter
from lib.ppo.model import ActorCritic, Recurrent


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
    """Return the scores of a network, (batch, n) float32.

    For an ActorCritic, they are the probabilities of discrete actions, or the parameters of another distribution. For
    other networks, they are Q-values.
    """
    if isinstance(net, ActorCritic):
        return scores_from(net, net(states)[0])
    return cast(torch.Tensor, getattr(net, "qvals", net)(states))  # the book's distributional network returns logits


def scores_from(net: ActorCritic, parameters: torch.Tensor) -> torch.Tensor:
    """Return the scores of an ActorCritic, given the parameters of its distributions; see scores_of."""
    return parameters if net.distribution.shape else parameters.softmax(1)


def best_actions(net: nn.Module, scores: torch.Tensor) -> torch.Tensor:
    """Return the best or most probable actions, (batch, ...) as an environment gets them, given scores_of(net, ...)."""
    if isinstance(net, ActorCritic):
        return net.distribution.played(net.distribution.mode(scores))
    return scores.argmax(1)


class RandomPolicy:
    """Policy that draws among the legal actions, whose returns a trained agent has to exceed."""

    def __init__(self, env: DiscreteEnv):
        self._space: spaces.Space[object] = copy.deepcopy(env.action_space)  # which is seeded
        self._choices = choices(self._space)
        self._split = MaskSplitter(env.observation_space)

    def legal(self, states: np.ndarray) -> np.ndarray:
        """Return which options of the choices are legal in states, (batch, options) bool."""
        _, mask = self._split(torch.as_tensor(states))
        return np.ones((len(states), sum(self._choices)), np.bool_) if mask is None else mask.numpy()

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator]) -> np.ndarray:
        return np.stack([self._draw(*row) for row in zip(self.legal(states), randoms, strict=True)])

    def _draw(self, legal: np.ndarray, random: np.random.Generator) -> np.ndarray:
        if not self._choices:
            self._space.seed(int(random.integers(2**31)))
            return np.asarray(self._space.sample())
        options = np.split(legal, np.cumsum(self._choices)[:-1])
        drawn = [random.choice(np.flatnonzero(each)) for each in options]
        return np.array(drawn).reshape(self._space.shape or ())


class GreedyPolicy:
    """Policy that takes the best action according to a network. Noisy layers use their mean weights.

    Attributes:
        net: ppo.model.ActorCritic, or a network whose forward or qvals returns Q-values, (batch, n_actions).
        score_name: meaning of the scores, "Q", "probability" or "parameter".
        less_greedy: options of tools/evaluate.py with which the agent also takes other actions than the best one.
        has_memory: whether actions depend on earlier states of the episode.
    """

    def __init__(self, net: nn.Module):
        self.net = net
        self.score_name, self.less_greedy = "Q", ["--epsilon", "0.05"]
        if isinstance(net, ActorCritic):
            self.score_name, self.less_greedy = "parameter" if net.distribution.shape else "probability", ["--sample"]
        self.has_memory = isinstance(net, Recurrent)
        self._memories: dict[np.random.Generator, torch.Tensor] = {}  # of the episodes to which the generators belong

    @torch.no_grad()
    def scores(self, states: np.ndarray, randoms: Sequence[np.random.Generator] = ()) -> np.ndarray:
        """Return Q-values or action probabilities, (batch, n) float32; see scores_of. A memory needs `randoms`."""
        device = next((weight.device for weight in self.net.parameters()), torch.device("cpu"))
        on_device = torch.as_tensor(states, device=device)
        with in_evaluation_mode(self.net):
            if not isinstance(self.net, Recurrent):
                return scores_of(self.net, on_device).cpu().numpy()
            first = self.net.first_memory(1)[0]
            memory = torch.stack([self._memories.get(random, first) for random in randoms])
            starts = torch.zeros(1, len(states), dtype=torch.bool, device=device)
            parameters, _, memory = self.net.remember(on_device, memory, starts)
            self._memories = dict(zip(randoms, memory, strict=True))  # without those of episodes that have ended
            return scores_from(self.net, parameters).cpu().numpy()

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator] = ()) -> np.ndarray:
        actions: np.ndarray = best_actions(self.net, torch.from_numpy(self.scores(states, randoms))).numpy()
        return actions


class SampledPolicy(GreedyPolicy):
    """Policy that draws its actions from the distribution of an ActorCritic, as a PPO agent does in training."""

    def __init__(self, net: nn.Module):
        super().__init__(net)
        if not isinstance(net, ActorCritic):
            raise UsageError("--sample needs probabilities, and this run's network gives action values; use --epsilon")

    def __call__(self, states: np.ndarray, randoms: Sequence[np.random.Generator] = ()) -> np.ndarray:
        assert isinstance(self.net, ActorCritic)
        distribution, scores = self.net.distribution, torch.from_numpy(self.scores(states, randoms))
        parameters = scores if distribution.shape else scores.log()
        noise = np.concatenate([distribution.noise(random, 1) for random in randoms])
        actions: np.ndarray = distribution.played(distribution.sample(parameters, torch.from_numpy(noise))[0]).numpy()
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
