"""Evaluation: whole episodes of a policy without exploration."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics
from ignite.engine import Engine, Events, State

from lib.envs.atari import NOOP_MAX, DirectAtari, is_atari, reset_with_no_ops, wrappers
from lib.run.events import EvaluationEvents
from lib.system.progress import TaskProgress
from lib.system.seeds import tagged_seed, undisturbed

Policy = Callable[[np.ndarray], np.ndarray]
Untimed = Callable[[], AbstractContextManager[None]]

EPISODES = 20  # in the evaluation of a solved run
EPISODES_BETWEEN = 10  # in an evaluation during training
SPREAD = ("mean", "std", "min", "max")  # statistics of the returns
MAX_STEPS = 27_000  # half an hour of an Atari game; a deterministic policy may never finish an episode


class EpisodeResult(NamedTuple):
    """Undiscounted return and length in agent steps of an episode."""

    total: float
    length: int


class EpisodePlayer:
    """Player of whole episodes.

    With a deterministic policy, the episodes of most Atari games differ only in the number of no-ops at their start.
    Each number from 1 to NOOP_MAX is therefore used once before any is repeated.

    Args:
        env: environment from make_env. Returns are those of the game, before rewards are clipped.
    """

    def __init__(self, env: gym.Env):
        statistics = _statistics_wrapper(env)
        if statistics is None:
            env = statistics = RecordEpisodeStatistics(env)
        self.env = env
        self._statistics = statistics

    def play(
        self,
        policy: Policy,
        seed: int,
        number: int,
        watch: Callable[[np.ndarray], object] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> EpisodeResult | None:
        """Play an episode.

        Args:
            policy: function from states (1, ...) to actions (1,).
            seed: seed of the evaluation. The episode's own seed is derived from it.
            number: index of the episode in the evaluation.
            watch: function that receives every state (1, ...), including the first and the last.
            stopped: function that is called before every step. The episode is abandoned if it returns True.

        Returns:
            The result, or None if the episode was abandoned.
        """
        state = self._reset(seed, number)
        for _ in range(MAX_STEPS):
            states = np.asarray(state)[None]
            if watch is not None:
                watch(states)
            if stopped():
                return None
            state, _, terminated, truncated, _ = self.env.step(int(policy(states)[0]))
            if terminated or truncated:
                break
        if watch is not None:
            watch(np.asarray(state)[None])
        return EpisodeResult(float(self._statistics.episode_returns), int(self._statistics.episode_lengths))

    def _reset(self, seed: int, number: int) -> Any:
        state, _ = self.env.reset(seed=tagged_seed("evaluation", seed, number))
        if not is_atari(self.env):
            return state
        order = np.random.default_rng(tagged_seed("evaluation no-ops", seed)).permutation(NOOP_MAX)
        return reset_with_no_ops(self.env, int(order[number % NOOP_MAX]) + 1)


def evaluator(policy: Policy, env: gym.Env, seed: int = 0, stopped: Callable[[], bool] = lambda: False) -> Engine:
    """Build an engine that plays one episode per iteration. Start it with `run(range(episodes))`.

    Args:
        policy: function from states (1, ...) to actions (1,).
        env: environment, see EpisodePlayer.
        seed: seed of the evaluation.
        stopped: function that is called before every step. The evaluation is abandoned if it returns True.

    Returns:
        The engine. After the last episode its metrics are those that `evaluate` returns, and it fires
        EvaluationEvents.EVALUATED. An abandoned evaluation does not fire the event.
    """
    player = EpisodePlayer(env)
    results: list[EpisodeResult] = []
    digests: list[bytes] = []  # digest of all states of each episode

    def play(engine: Engine, number: int) -> None:
        digest = hashlib.blake2b()
        result = player.play(policy, seed, number, lambda states: digest.update(states.tobytes()), stopped)
        if result is None:
            engine.terminate()
        else:
            results.append(result)
            digests.append(digest.digest())

    engine = Engine(play)
    engine.register_events(*EvaluationEvents, event_to_attr={EvaluationEvents.EVALUATED: "evaluated"})

    @engine.on(Events.STARTED)
    def start(engine: Engine) -> None:
        results.clear()
        digests.clear()

    @engine.on(Events.COMPLETED)
    def summarise(engine: Engine) -> None:
        if len(results) < (engine.state.epoch_length or 0):
            return
        returns = [result.total for result in results]
        engine.state.metrics |= {
            "mean": float(np.mean(returns)),
            "std": float(np.std(returns)),
            "min": float(np.min(returns)),
            "max": float(np.max(returns)),
            "episodes": len(results),
            "distinct": len(set(zip(results, digests, strict=True))),
            "returns": returns,
            "lengths": [result.length for result in results],
        }
        engine.fire_event(EvaluationEvents.EVALUATED)

    return engine


def evaluate(
    policy: Policy, env: gym.Env, episodes: int = EPISODES, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Play whole episodes.

    Args:
        policy: function from states (1, ...) to actions (1,).
        env: environment, see EpisodePlayer.
        episodes: number of episodes.
        seed: seed of the evaluation.
        progress: show the progress.

    Returns:
        "mean", "std", "min" and "max" of the returns; the lists "returns" and "lengths"; the number of "episodes";
        and "distinct", the number of episodes that differ in return, length or any state.
    """
    return dict(_play(evaluator(policy, env, seed), episodes, progress).metrics)


def _play(evaluating: Engine, episodes: int, shown: bool | None = None) -> State:
    """Play episodes and show the progress. See TaskProgress for `shown`."""
    with (
        TaskProgress("Evaluation", episodes, "episodes", shown) as progress,
        evaluating.add_event_handler(Events.ITERATION_COMPLETED, lambda: progress.advance()),
    ):
        return evaluating.run(range(episodes))


def attach(engine: Engine, evaluating: Engine, every: int, steps: Callable[[], int], untimed: Untimed) -> None:
    """Evaluate during training. Random numbers and speeds of the training are not affected.

    Args:
        engine: training engine.
        evaluating: engine that `evaluator` has built. It plays EPISODES_BETWEEN episodes.
        every: agent steps between two evaluations.
        steps: function that returns the agent steps so far.
        untimed: function that returns a context manager; time spent in it does not count as training.
    """
    last = steps()

    def is_due(engine: Engine, event: int) -> bool:
        return steps() // every > last // every

    def run() -> None:
        nonlocal last
        last = steps()
        with untimed(), undisturbed():
            _play(evaluating, EPISODES_BETWEEN)

    engine.add_event_handler(Events.ITERATION_COMPLETED(event_filter=is_due), run)


def _statistics_wrapper(env: gym.Env) -> RecordEpisodeStatistics | DirectAtari | None:
    """Find the wrapper that counts unclipped returns."""
    return next((each for each in wrappers(env) if isinstance(each, RecordEpisodeStatistics | DirectAtari)), None)
