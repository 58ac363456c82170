"""Evaluation: whole episodes of a policy without exploration."""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import Any

import gymnasium as gym
import numpy as np
from ignite.engine import Engine, Events

from lib.run.episode_player import MAX_STEPS, EpisodePlayer, EpisodeResult, Policy, count_at_limit, play_together
from lib.run.episodes import format_return
from lib.run.events import EvaluationEvents
from lib.run.side_by_side import results_of
from lib.system.machine import torch_threads
from lib.system.progress import TaskProgress
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

Untimed = Callable[[], AbstractContextManager[None]]

EPISODES = 20  # in the evaluation of a solved run
EPISODES_BETWEEN = 10  # in an evaluation during training
SPREAD = ("mean", "std", "min", "max")  # statistics of the returns


def evaluator(
    policy: Policy,
    envs: Sequence[gym.Env],
    seed: int = 0,
    stopped: Callable[[], bool] = lambda: False,
) -> Engine:
    """Build an engine whose `run([0])` plays an episode in each environment, all together.

    Args:
        policy: see EpisodePlayer.play.
        envs: environments from make_env.
        seed: seed of the evaluation.
        stopped: function that is called before every step. The evaluation is abandoned if it returns True.

    Returns:
        The engine. After the episodes its metrics are those that `evaluate` returns, and it fires
        EvaluationEvents.EVALUATED. An abandoned evaluation does not fire the event.
    """
    players = [EpisodePlayer(env) for env in envs]

    def play(engine: Engine, batch: object) -> None:
        with torch_threads(1):
            results = list(play_together(policy, players, seed, range(len(players)), stopped))
        if len(results) == len(players):
            engine.state.metrics |= summary(results)
            engine.fire_event(EvaluationEvents.EVALUATED)

    engine = Engine(play)
    engine.register_events(*EvaluationEvents, event_to_attr={EvaluationEvents.EVALUATED: "evaluated"})
    return engine


def evaluate(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    episodes: int = EPISODES,
    seed: int = 0,
    progress: bool = False,
    processes: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Play whole episodes, side by side in several processes if they take long.

    Args:
        policy: see EpisodePlayer.play.
        make_env: function that makes an environment; see make_env.
        episodes: number of episodes.
        seed: seed of the evaluation.
        progress: show the progress.
        processes, stopped: see results_of.

    Returns:
        "mean", "std", "min" and "max" of the returns; the lists "returns" and "lengths"; the number of "episodes";
        and "distinct", the number of episodes that differ in return, length or any state.

    Raises:
        Stopped: if the evaluation was abandoned.
    """
    results: list[EpisodeResult] = []
    with (
        TaskProgress("Evaluation", episodes, "episodes", progress) as shown,
        closing(results_of(policy, make_env, episodes, seed, processes, stopped)) as played,
    ):
        for result in played:
            results.append(result)
            shown.advance()
    return summary(results)


def summary(results: Iterable[EpisodeResult]) -> dict[str, Any]:
    """Return statistics of episodes, in the order of their numbers; see `evaluate`."""
    ordered = sorted(results)
    returns = [result.total for result in ordered]
    return {
        "mean": float(np.mean(returns)),
        "std": float(np.std(returns)),
        "min": float(np.min(returns)),
        "max": float(np.max(returns)),
        "episodes": len(ordered),
        "distinct": len({(result.total, result.length, result.digest) for result in ordered}),
        "returns": returns,
        "lengths": [result.length for result in ordered],
    }


def is_clearly_below(result: Mapping[str, Any], training: Sequence[float]) -> bool:
    """Return whether the mean return of an evaluation is below that of training by more than three standard errors.

    They cannot be compared if all episodes were cut at MAX_STEPS, or if fewer than two training episodes have ended.

    Args:
        result: result of `evaluate`.
        training: returns of training episodes.
    """
    if len(training) < 2:
        return False
    error = math.sqrt(result["std"] ** 2 / result["episodes"] + np.var(training) / len(training))
    below = bool(np.mean(training) - result["mean"] > max(3 * error, 1e-6))
    return below and count_at_limit(result["lengths"]) < result["episodes"]


def log_result(result: Mapping[str, Any]) -> None:
    """Log the result of an evaluation."""
    log.info(
        "Evaluation: mean return %s, standard deviation %s, %g to %g, over %d episodes (%d of them distinct).",
        format_return(result["mean"]),
        format_return(result["std"]),
        *(result[name] for name in ("min", "max", "episodes", "distinct")),
    )
    endless = count_at_limit(result["lengths"])
    if endless:
        log.warning(
            "%d episodes were cut at %s steps. If that is unusual, the agent probably repeats its moves; try "
            "tools/evaluate.py with --epsilon 0.05, or with --sample for PPO.",
            endless,
            f"{MAX_STEPS:,}",
        )


def warn_of_greedy_play(mean: float, training_mean: float, advice: str) -> None:
    """Log that the mean return of greedy play is clearly below that of training, and a command to try."""
    log.warning(
        "Greedy play is clearly below training: mean return %s instead of %s. Try %s",
        format_return(mean),
        format_return(training_mean),
        advice,
    )


class PeriodicEvaluation:
    """Evaluation at intervals during training. Random numbers and speeds of the training are not affected.

    A run that is stopped during an evaluation repeats it when it is resumed.

    Args:
        every: agent steps between two evaluations.
    """

    def __init__(self, every: int):
        self.every = every
        self._last: int | None = None  # agent step of the last evaluation

    def attach(self, engine: Engine, evaluation_engine: Engine, steps: Callable[[], int], untimed: Untimed) -> None:
        """Evaluate after an iteration if it is due, and at the start of a resumed run.

        Args:
            engine: training engine.
            evaluation_engine: engine that `evaluator` has built.
            steps: function that returns the agent steps so far.
            untimed: function that returns a context manager; time spent in it does not count as training.
        """
        if self._last is None:
            self._last = steps()

        def is_due(engine: Engine, event: int) -> bool:
            assert self._last is not None
            return steps() // self.every > self._last // self.every

        def run() -> None:
            with untimed(), undisturbed():
                evaluation_engine.run([0])

        @evaluation_engine.on(EvaluationEvents.EVALUATED)
        def evaluated() -> None:
            self._last = steps()

        engine.add_event_handler(Events.EPOCH_STARTED(event_filter=is_due), run)
        engine.add_event_handler(Events.ITERATION_COMPLETED(event_filter=is_due), run)

    def state_dict(self) -> dict[str, Any]:
        return {"last": self._last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._last = int(state["last"])
