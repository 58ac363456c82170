"""Whole episodes of a policy, in environments that an evaluation resets to its own seeds."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics

from lib.envs.atari import NOOP_MAX, DirectAtari, allow_no_ops, is_atari, reset_with_no_ops, statistics_wrapper
from lib.system.seeds import tagged_seed

Policy = Callable[[np.ndarray, Sequence[np.random.Generator]], np.ndarray]

MAX_STEPS = 27_000  # half an hour of an Atari game; a deterministic policy may never finish an episode
NEAR_LIMIT = 0.99  # share of MAX_STEPS. An Atari game counts its no-ops, and is cut some steps earlier.


def count_at_limit(lengths: Sequence[int]) -> int:
    """Return how many episodes reached the limit of MAX_STEPS, given the lengths of all."""
    return sum(length > NEAR_LIMIT * MAX_STEPS for length in lengths)


class EpisodeResult(NamedTuple):
    """A finished episode.

    Attributes:
        number: index of the episode in the evaluation.
        total: undiscounted return.
        length: agent steps.
        digest: hash of all states.
    """

    number: int
    total: float
    length: int
    digest: bytes


class Game:
    """An episode that is being played.

    Attributes:
        state: current state.
        random: random generator of the episode, for policies that draw their actions.
        result: the result, or None while the episode lasts.
    """

    def __init__(self, env: gym.Env, statistics: RecordEpisodeStatistics | DirectAtari, seed: int, number: int):
        self.random = np.random.default_rng(tagged_seed("evaluation actions", seed, number))
        self.result: EpisodeResult | None = None
        self._env = env
        self._statistics = statistics
        self._number = number
        self._steps = 0
        self._digest = hashlib.blake2b()
        self._show(_reset(env, seed, number))

    def step(self, action: int) -> None:
        """Take an action."""
        state, _, terminated, truncated, _ = self._env.step(action)
        self._steps += 1
        self._show(state)
        if terminated or truncated or self._steps == MAX_STEPS:
            total, length = self._statistics.episode_returns, self._statistics.episode_lengths
            self.result = EpisodeResult(self._number, float(total), int(length), self._digest.digest())

    def _show(self, state: Any) -> None:
        self.state = np.asarray(state)
        self._digest.update(self.state.tobytes())


class EpisodePlayer:
    """Player of whole episodes.

    With a deterministic policy, the episodes of most Atari games differ only in the number of no-ops at their start.
    Each number from 1 to NOOP_MAX is therefore used once before any is repeated.

    Args:
        env: environment from make_env. Returns are those of the game, before rewards are clipped.
    """

    def __init__(self, env: gym.Env):
        statistics = statistics_wrapper(env)
        if statistics is None:
            env = statistics = RecordEpisodeStatistics(env)
        self.env = env
        self._statistics = statistics

    def start(self, seed: int, number: int) -> Game:
        """Start an episode.

        Args:
            seed: seed of the evaluation. The episode's own seed is derived from it.
            number: index of the episode in the evaluation.
        """
        return Game(self.env, self._statistics, seed, number)

    def play(
        self,
        policy: Policy,
        seed: int,
        number: int,
        watch: Callable[[np.ndarray], object] = lambda states: None,
    ) -> EpisodeResult:
        """Play an episode.

        Args:
            policy: function from states (n, ...) and their episodes' random generators to actions (n,).
            seed, number: see `start`.
            watch: function that receives every state (1, ...), including the first and the last.
        """
        game = self.start(seed, number)
        watch(game.state[None])
        while game.result is None:
            game.step(int(policy(game.state[None], [game.random])[0]))
            watch(game.state[None])
        return game.result


def play_together(
    policy: Policy,
    players: Sequence[EpisodePlayer],
    seed: int,
    numbers: Sequence[int],
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[EpisodeResult]:
    """Play several episodes together, a step of each at a time, so that the network sees a batch of states.

    Args:
        policy, seed: see EpisodePlayer.play.
        players: players of different environments, at least one for each number.
        numbers: indices of the episodes in the evaluation.
        stopped: function that is called before every reset and step. The episodes are abandoned if it returns True.

    Yields:
        The results in the order in which the episodes end.
    """
    games: list[Game] = []
    for player, number in zip(players, numbers, strict=False):
        if stopped():
            return
        games.append(player.start(seed, number))
    while games and not stopped():
        actions = policy(np.stack([game.state for game in games]), [game.random for game in games])
        for game, action in zip(games, actions, strict=True):
            game.step(int(action))
        yield from (game.result for game in games if game.result is not None)
        games = [game for game in games if game.result is None]


def _reset(env: gym.Env, seed: int, number: int) -> Any:
    atari = is_atari(env)
    if atari:
        allow_no_ops(env)  # before the seeded reset, so that the first episode starts with no-ops, too
    state, _ = env.reset(seed=tagged_seed("evaluation", seed, number))
    if not atari:
        return state
    order = np.random.default_rng(tagged_seed("evaluation no-ops", seed)).permutation(NOOP_MAX)
    return reset_with_no_ops(env, int(order[number % NOOP_MAX]) + 1)
