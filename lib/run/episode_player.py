"""Whole episodes of a policy, in environments that are reset to the seeds of an evaluation."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from lib.envs.atari import NOOP_MAX, counted, is_atari, reset_with_no_ops
from lib.system.machine import torch_threads
from lib.system.seeds import tagged_seed

# Function from states of make_env's environments, (n, ...), and the generators of their episodes to actions, (n, ...).
Policy = Callable[[np.ndarray, Sequence[np.random.Generator]], np.ndarray]

MAX_STEPS = 27_000  # half an hour of an Atari game; a deterministic policy may never finish an episode


def count_at_limit(lengths: Sequence[int]) -> int:
    """Return how many episodes were cut at MAX_STEPS, or, as Atari games count their no-ops, some steps earlier."""
    return sum(length > 0.99 * MAX_STEPS for length in lengths)


class EpisodeResult(NamedTuple):
    number: int  # index of the episode in the evaluation
    total: float  # undiscounted return
    length: int  # agent steps
    checksum: int  # of all states


class EpisodePlayer:
    """Player of whole episodes in an environment. Returns are those of the game, before rewards are clipped.

    With a deterministic policy, the episodes of most Atari games differ only in the number of no-ops at their start.
    Each number from 1 to NOOP_MAX is therefore used once before any is repeated.
    """

    state: np.ndarray
    random: np.random.Generator  # of the episode, for policies that draw their actions

    def __init__(self, env: gym.Env, watch: Callable[[np.ndarray], object] = lambda state: None):
        """`watch` receives every state, including the first and the last."""
        self.env, self._watch = counted(env), watch
        self.result: EpisodeResult | None = None  # None while the episode lasts

    def start(self, seed: int, number: int) -> None:
        """Start an episode. Its seed is derived from that of the evaluation and its index there, `number`."""
        self.random = np.random.default_rng(tagged_seed("evaluation actions", seed, number))
        self.result, self._number, self._steps, self._checksum = None, number, 0, 0
        state, _ = self.env.reset(seed=tagged_seed("evaluation", seed, number))
        if is_atari(self.env):
            order = np.random.default_rng(tagged_seed("evaluation no-ops", seed)).permutation(NOOP_MAX)
            state = reset_with_no_ops(self.env, int(order[number % NOOP_MAX]) + 1)
        self._show(state)

    def step(self, action: Any) -> None:
        state, _, terminated, truncated, _ = self.env.step(action if np.ndim(action) else int(action))
        self._steps += 1
        self._show(state)
        if terminated or truncated or self._steps == MAX_STEPS:
            total, length = map(self.env.get_wrapper_attr, ("episode_returns", "episode_lengths"))
            self.result = EpisodeResult(self._number, float(total), int(length), self._checksum)

    def _show(self, state: object) -> None:
        self.state = np.array(state)  # a copy, because states of frames are read-only, and torch warns
        self._checksum = zlib.crc32(self.state.data, self._checksum)
        self._watch(self.state)


def play_together(
    policy: Policy,
    players: Sequence[EpisodePlayer],
    seed: int,
    numbers: Iterable[int],
    done: Callable[[EpisodeResult], object],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Play several episodes together, a step of each at a time, so that the network sees a batch of states.

    If there are fewer players than episodes, a player whose episode has ended plays the next one.

    Args:
        policy, seed: see EpisodePlayer.
        numbers: indices of the episodes in the evaluation.
        done: function that receives each result as soon as the episode ends.
        stopped: function that is called before every reset and step. The episodes are abandoned if it returns True.
    """
    # One thread is enough for a small batch. torch clears its cache of cast weights when the outermost autocast context
    # exits. This disabled one keeps the cache until all episodes have ended.
    with torch_threads(1), torch.autocast("cpu", enabled=False):
        playing: list[EpisodePlayer] = []
        waiting = iter(numbers)
        for player, number in zip(players, waiting, strict=False):
            if stopped():
                return
            player.start(seed, number)
            playing.append(player)
        while playing and not stopped():
            actions = policy(np.stack([player.state for player in playing]), [player.random for player in playing])
            for player, action in zip(playing, actions, strict=True):
                player.step(action)
                if player.result is not None:
                    done(player.result)
                    if (following := next(waiting, None)) is not None and not stopped():
                        player.start(seed, following)
            playing = [player for player in playing if player.result is None]
