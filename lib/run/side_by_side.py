"""Evaluation episodes side by side, in actors on this machine."""

import logging
import math
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import ExitStack

import gymnasium as gym
import torch

from lib.actors.contract import ActorFailed, Weights
from lib.actors.engines import start_actors
from lib.errors import Fault, UsageError
from lib.experience.interface import Stopped
from lib.run.episode_player import EpisodePlayer, EpisodeResult, Policy, play_together
from lib.system.machine import cores, torch_threads

log = logging.getLogger(__name__)

GROUP = 10  # episodes that a process plays together
SHORT = 1.0  # seconds; a shorter evaluation is not worth the start of a process
NO_WEIGHTS = Weights(0, {})  # the policy holds its network


def results_of(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    episodes: int,
    seed: int,
    processes: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[EpisodeResult]:
    """Play episodes, and yield their results in the order in which they end.

    Episodes are played in groups. A group always has the same episodes, played in the same steps. So the results do not
    depend on the number of processes.

    Args:
        policy: see EpisodePlayer.play.
        make_env: function that makes an environment.
        episodes: number of episodes.
        seed: seed of the evaluation.
        processes: number of processes. None for one per core, if the evaluation takes longer than SHORT.
        stopped: function that returns whether to abandon the evaluation.

    Raises:
        Stopped: if the evaluation was abandoned.
    """
    groups = [range(start, min(start + GROUP, episodes)) for start in range(0, episodes, GROUP)]
    workers = min(processes or cores(), len(groups))
    done: set[int] = set()
    if workers == 1 or processes is None:
        end = math.inf if workers == 1 else time.monotonic() + SHORT
        for result in _play(policy, make_env, seed, groups, stopped=lambda: stopped() or time.monotonic() > end):
            done.add(result.number)
            yield result
    if len(done) < episodes and not stopped():
        yield from _side_by_side(policy, make_env, seed, groups, done, workers, stopped)
    if len(done) < episodes:
        raise Stopped


def _play(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    seed: int,
    groups: Sequence[Sequence[int]],
    done: Collection[int] = (),
    stopped: Callable[[], bool] = lambda: False,
) -> Iterator[EpisodeResult]:
    """Play groups one after the other in this process. Groups with episodes that are not yet done are played again."""
    players: list[EpisodePlayer] = []
    with ExitStack() as stack:
        while len(players) < max(map(len, groups)) and not stopped():
            players.append(EpisodePlayer(make_env()))
            stack.callback(players[-1].env.close)
        for numbers in groups:
            if stopped() or set(numbers) <= set(done):
                continue
            results = play_together(policy, players, seed, numbers, stopped)
            while result := _next(results):
                if result.number not in done:
                    yield result


def _next(results: Iterator[EpisodeResult]) -> EpisodeResult | None:
    # One thread is enough for a small batch. torch clears its cache of cast weights when the outermost autocast context
    # exits. This disabled one keeps the cache until the next result.
    with torch_threads(1), torch.autocast("cpu", enabled=False):
        return next(results, None)


def _side_by_side(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    seed: int,
    groups: Sequence[Sequence[int]],
    done: set[int],
    workers: int,
    stopped: Callable[[], bool],
) -> Iterator[EpisodeResult]:
    """Play groups in `workers` processes, or in this process if that fails. `done` grows with every result."""
    shares = [groups[index::workers] for index in range(workers)]

    def make(index: int, done: Collection[int]) -> EvaluationActor:
        return EvaluationActor(_play(policy, make_env, seed, shares[index], done))

    def start(index: int) -> frozenset[int]:
        """Return the state from which a process starts, or replaces a lost one."""
        return frozenset(done)

    def abandon() -> bool:
        if stopped():
            raise Stopped  # `take` would first wait STOPPING seconds for an episode that nobody needs
        return False

    def missing(index: int) -> set[int]:
        return {number for numbers in shares[index] for number in numbers} - done

    try:
        with start_actors(
            "process",
            make,
            workers,
            NO_WEIGHTS,
            start,
            patience=math.inf,  # an episode may take long; Ctrl-C and the time limit end one that hangs
            stop_asked=abandon,
            name_of="evaluation process {}".format,
        ) as actors:
            for index in filter(missing, range(workers)):
                actors.order(index)
            while any(map(missing, range(workers))):
                for index, result in actors.take():
                    done.add(result.number)
                    yield result
                    if missing(index):
                        actors.order(index)
    except (UsageError, Fault) as error:
        reason = error.reason if isinstance(error, ActorFailed) else error
        log.warning("The evaluation continues in a single process: %s", reason)
        for result in _play(policy, make_env, seed, groups, done, stopped):
            done.add(result.number)
            yield result


class EvaluationActor:
    """Actor that plays evaluation episodes; see actors.contract.Actor.

    Args:
        results: results of its episodes. The next one is played when it is asked for.
    """

    def __init__(self, results: Iterator[EpisodeResult]):
        self._results = results

    def set_model(self, model: Weights) -> None:
        """Do nothing, because the policy does not change."""

    def get_trajectory_segment(self) -> EpisodeResult:
        """Play until the next episode ends, and return its result."""
        return next(self._results)

    def __str__(self) -> str:
        return "in an episode"  # which completes "Evaluation process 0 failed ..."
