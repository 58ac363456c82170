"""Random play, whose returns a trained agent has to exceed."""

from collections import Counter
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from lib.envs.single_env import DiscreteEnv
from lib.nets.masking import MaskSplitter
from lib.run.episode_player import EpisodePlayer


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


def play(env: DiscreteEnv, episodes: int, seed: int = 0) -> list[RandomEpisode]:
    """Play whole episodes of an environment of make_env with random legal actions; see EpisodePlayer."""
    player = EpisodePlayer(env)
    shown = tqdm(range(episodes), unit="episodes", leave=False, disable=True if episodes < 2 else None)
    return [_play_one(player, env, seed, number) for number in shown]


def _play_one(player: EpisodePlayer, env: DiscreteEnv, seed: int, number: int) -> RandomEpisode:
    split = MaskSplitter(env.observation_space)
    rewards: Counter[float] = Counter()
    legal = 0
    player.start(seed, number)
    while player.result is None:
        _, allowed = split(torch.as_tensor(player.state)[None])
        actions = np.arange(env.action_space.n) if allowed is None else np.flatnonzero(allowed[0].numpy())
        legal += len(actions)
        player.step(int(player.random.choice(actions)))
        rewards[player.reward] += 1
    return RandomEpisode(player.result.total, rewards, legal / (rewards.total() * env.action_space.n))
