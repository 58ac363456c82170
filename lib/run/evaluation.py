"""How good a policy is without exploring, in the plain environment, and the picture of how it came about."""

import hashlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics
from ignite.engine import Engine, Events
from ignite.handlers import ProgressBar

from lib.envs.atari import NOOP_MAX, is_atari, reset_with_no_ops
from lib.run.events import EvaluationEvents
from lib.system.seeds import hashed_seed, undisturbed

Policy = Callable[[np.ndarray], np.ndarray]


Apart = Callable[[], AbstractContextManager]


EPISODES, EPISODES_BETWEEN = 20, 10  # of a solved run, and of one that goes on


SPREAD = ("mean", "std", "min", "max")


LONGEST = 27_000  # agent steps of an episode, half an hour of an Atari game; a policy without chance may go in circles


APART = 2**32  # hashed into the seeds, so that no evaluated episode begins as one of training does


class EpisodePlayer:
    """Plays whole episodes of an environment.

    The number of no-ops is all that tells one episode of most Atari games from another, if the policy leaves nothing to
    chance. So each number of them is had once before any is had again: the first NOOP_MAX episodes begin differently.

    Args:
        env: such as atari_wrappers.make_env makes; its returns are those of the game, before rewards are clipped.
    """

    def __init__(self, env: gym.Env):
        self._counting = _counting(env) or RecordEpisodeStatistics(env)
        self.env = env if _counting(env) else self._counting

    def play(
        self,
        policy: Policy,
        seed: int,
        number: int,
        watch: Callable[[np.ndarray], Any] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> tuple[float, int] | None:
        """An episode.

        Args:
            policy: from states (1, ...) to actions (1,).
            seed: what the episodes' own seeds are derived from.
            number: of the episode among them.
            watch: called with every state (1, ...) as soon as the environment shows it, the last one included.
            stopped: asked before every step whether the episode is to be left.

        Returns:
            Its return and length; None if it was left.
        """
        state, _ = self.env.reset(seed=hashed_seed(APART, seed, number))
        if is_atari(self.env):
            no_ops = np.random.default_rng(hashed_seed(APART, seed)).permutation(NOOP_MAX)[number % NOOP_MAX]
            state = reset_with_no_ops(self.env, int(no_ops) + 1)
        for _ in range(LONGEST):
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
        return float(self._counting.episode_returns), int(self._counting.episode_lengths)


def evaluator(policy: Policy, env: gym.Env, seed: int = 0, stopped: Callable[[], bool] = lambda: False) -> Engine:
    """An engine that plays a whole episode an iteration, each from a seed of its own: `run(range(episodes))`.

    Args:
        policy, env, seed: see Player.
        stopped: asked before every step whether the evaluation is to be left.

    Returns:
        It. On EvaluationEvents.EVALUATED its metrics are those that `evaluate` returns; one that is left has none.
    """
    player = EpisodePlayer(env)
    played: list[tuple[float, int, bytes]] = []  # returns, lengths, and digests of all that was shown

    def play(engine: Engine, number: int) -> None:
        digest = hashlib.blake2b()
        episode = player.play(policy, seed, number, lambda states: digest.update(states.tobytes()), stopped)
        if episode is None:
            engine.terminate()
        else:
            played.append((*episode, digest.digest()))

    engine = Engine(play)
    engine.register_events(*EvaluationEvents, event_to_attr={EvaluationEvents.EVALUATED: "evaluated"})

    @engine.on(Events.STARTED)
    def started(engine: Engine) -> None:
        played.clear()

    @engine.on(Events.COMPLETED)
    def completed(engine: Engine) -> None:
        if len(played) < (engine.state.epoch_length or 0):
            return
        returns, lengths, _ = map(list, zip(*played, strict=True))
        spread = {name: float(getattr(np, name)(returns)) for name in SPREAD}
        counts = {"episodes": len(played), "distinct": len(set(played))}
        engine.state.metrics |= spread | counts | {"returns": returns, "lengths": lengths}
        engine.fire_event(EvaluationEvents.EVALUATED)

    return engine


def evaluate(
    policy: Policy, env: gym.Env, episodes: int = EPISODES, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Play whole episodes.

    Args:
        policy, env, seed: see Player.
        episodes: how many.
        progress: whether a bar is shown.

    Returns:
        episodes; mean, std, min and max of their returns; returns and lengths, a list each; distinct, how many of the
        episodes differ from all before in return, length or what was shown.
    """
    engine = evaluator(policy, env, seed)
    if progress:
        ProgressBar(desc="Evaluation", persist=False).attach(engine)
    return dict(engine.run(range(episodes)).metrics)


def attach(engine: Engine, evaluating: Engine, every: int, steps: Callable[[], int], apart: Apart) -> None:
    """Have an evaluator run every so many agent steps of training, which goes on as if it had not.

    Args:
        engine: that trains.
        evaluating: what `evaluator` has made.
        every: agent steps; EPISODES_BETWEEN episodes are played.
        steps: tells the agent steps so far.
        apart: a context for what is no training; see timing.Speed.apart.
    """
    last = steps()

    def due(engine: Engine, event: int) -> bool:
        return steps() // every > last // every

    def run() -> None:
        nonlocal last
        last = steps()
        with apart(), undisturbed():
            evaluating.run(range(EPISODES_BETWEEN))

    engine.add_event_handler(Events.ITERATION_COMPLETED(event_filter=due), run)


def _counting(env: gym.Env) -> RecordEpisodeStatistics | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, RecordEpisodeStatistics):
            return env
        env = env.env
    return None
