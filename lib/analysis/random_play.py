"""Random play, whose returns a trained agent has to exceed."""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from lib.envs.atari import statistics_wrapper
from lib.envs.single_env import DiscreteEnv
from lib.nets.masking import MaskSplitter
from lib.run import episode_player
from lib.system.seeds import tagged_seed


class RandomEpisode(NamedTuple):
    """An episode of random play.

    Attributes:
        total: return, before rewards are clipped.
        rewards: number of steps with each reward, which may be clipped.
        legal_share: mean share of the actions that were legal.
    """

    total: float
    rewards: Counter[float]
    legal_share: float

    @property
    def length(self) -> int:
        """Number of steps."""
        return self.rewards.total()


class RandomPlayer:
    """Play whole episodes with random legal actions. An episode ends after episode_player.MAX_STEPS.

    Args:
        env: environment of make_env.
        seed: seed of the environment's first episode and of the actions.
    """

    def __init__(self, env: DiscreteEnv, seed: int = 0):
        self._env = env
        self._seed: int | None = seed
        # Not the environment's own stream, from which a player could guess what the environment draws.
        self._rng = np.random.default_rng(tagged_seed("random player", seed))
        self._split = MaskSplitter(env.observation_space)

    def play(self, on_state: Callable[[], None] = lambda: None) -> RandomEpisode:
        """Play an episode. Call `on_state` whenever the environment is in a new state."""
        statistics = statistics_wrapper(self._env)  # every environment of make_env has one
        assert statistics is not None
        rewards: Counter[float] = Counter()
        legal = 0
        state, _ = self._env.reset(seed=self._seed)
        self._seed = None
        on_state()
        ended = False
        while not ended and rewards.total() < episode_player.MAX_STEPS:
            _, allowed = self._split(torch.as_tensor(np.asarray(state))[None])
            actions = np.arange(self._env.action_space.n) if allowed is None else np.flatnonzero(allowed[0].numpy())
            legal += len(actions)
            state, reward, terminated, truncated, _ = self._env.step(int(actions[self._rng.integers(len(actions))]))
            rewards[float(reward)] += 1
            on_state()
            ended = terminated or truncated
        legal_share = legal / (rewards.total() * self._env.action_space.n)
        return RandomEpisode(float(statistics.episode_returns), rewards, legal_share)


def play(env: DiscreteEnv, episodes: int, seed: int = 0) -> list[RandomEpisode]:
    """Play whole episodes with random legal actions; see RandomPlayer."""
    player = RandomPlayer(env, seed)
    return [player.play() for _ in tqdm(range(episodes), unit="episodes", leave=False, disable=None)]
