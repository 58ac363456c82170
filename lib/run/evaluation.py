"""Evaluation: whole episodes of a policy, in single environments that are reset to seeds of their own."""

import logging
import math
import multiprocessing
import pickle
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager
from functools import partial
from statistics import fmean

import cloudpickle
import gymnasium as gym
import numpy as np
from ignite.engine import Engine, Events
from torch import nn

from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.run.arguments import RunOptions
from lib.run.checkpoint import LAST
from lib.run.console import tool_command
from lib.run.episode_player import MAX_STEPS, EpisodePlayer, EpisodeResult, Policy, count_at_limit, play_together
from lib.run.episodes import TrainingEvents, format_return
from lib.run.folder import Json, RunFolder, write_json
from lib.run.policy import GreedyPolicy
from lib.system.log import TaskProgress
from lib.system.machine import cores
from lib.system.processes import context, end_with_learner, kill_child, start_server
from lib.system.seeds import tagged_seed, undisturbed

log = logging.getLogger(__name__)

Untimed = Callable[[], AbstractContextManager[None]]  # time spent in such a context does not count as training

EPISODES, EPISODES_BETWEEN = 20, 10  # in the evaluation at the end of a run, and in one during training
SPREAD = ("mean", "std", "min", "max")  # statistics of the returns
GROUP = 10  # episodes that are played together
SHORT = 0.5  # seconds; a shorter evaluation is not worth the start of a process


def evaluate(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    episodes: int = EPISODES,
    seed: int = 0,
    progress: bool = False,
    side_by_side: bool = True,
) -> Json:
    """Play whole episodes, and return their statistics; see `summary`.

    They are played in groups. A group always has the same episodes, played in the same steps, unless fewer environments
    than episodes can be made. So the results do not depend on the number of processes.

    Args:
        policy, make_env: see episode_player.Policy and single_env.make_env.
        seed: seed of the evaluation, from which those of its episodes are derived.
        side_by_side: play in a process per core if the evaluation takes longer than SHORT.
    """
    groups = [range(start, min(start + GROUP, episodes)) for start in range(0, episodes, GROUP)]
    play = partial(_play_groups, policy, make_env, seed)
    results: dict[int, EpisodeResult] = {}

    def missing() -> list[range]:
        return [group for group in groups if not results.keys() >= set(group)]

    with TaskProgress("Evaluation", episodes, "episodes", progress) as shown:

        def add(result: EpisodeResult) -> None:
            results[result.number] = result  # an episode may be played twice
            shown.update(len(results) - shown.n)

        if side_by_side and min(cores(), len(groups)) > 1:
            deadline = time.monotonic() + SHORT
            play(groups, add, lambda: time.monotonic() > deadline)
            try:
                _play_in_processes(play, missing(), add)
            except Exception as error:  # noqa: BLE001 - such as the death of a process, or an error in one of them
                log.warning("The evaluation continues in a single process. %s: %s", type(error).__name__, error)
        play(missing(), add)
    return summary(results.values())


def _play_groups(
    policy: Policy,
    make_env: Callable[[], gym.Env],
    seed: int,
    groups: Sequence[range],
    done: Callable[[EpisodeResult], object],
    stopped: Callable[[], bool] = lambda: False,
) -> None:
    """Play groups one after the other in this process."""
    players = make_players(make_env, max(map(len, groups), default=0), stopped)
    for numbers in groups:
        play_together(policy, players, seed, numbers, done, stopped)
    for player in players:
        player.env.close()


def make_players(
    make_env: Callable[[], gym.Env], number: int, stopped: Callable[[], bool] = lambda: False
) -> list[EpisodePlayer]:
    """Make environments and their players, until `stopped`, or as many as can be made: some games allow only one."""
    players: list[EpisodePlayer] = []
    while len(players) < number and not stopped():
        try:
            players.append(EpisodePlayer(make_env()))
        except Exception as error:  # of the environment
            if players:
                break
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(f"an evaluation cannot make an environment of its own: {reason}") from error
    return players


def _play_in_processes(play: "partial[None]", groups: list[range], done: Callable[[EpisodeResult], object]) -> None:
    """Play groups side by side. If one fails, or the evaluation is interrupted, the other processes are killed."""
    if not groups:
        return
    payload = cloudpickle.dumps(play)
    start_server()
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(cores(), len(groups)), context, _begin_worker) as executor:
        try:
            for future in as_completed([executor.submit(_play_in_worker, payload, group) for group in groups]):
                for result in future.result():
                    done(result)
        except BaseException:
            for child in set(multiprocessing.active_children()) - others:
                kill_child(child)
            raise


def _begin_worker() -> None:
    end_with_learner()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the executor ends a process by this signal


def _play_in_worker(payload: bytes, group: range) -> list[EpisodeResult]:
    results: list[EpisodeResult] = []
    pickle.loads(payload)([group], results.append)
    return results


def summary(results: Iterable[EpisodeResult]) -> Json:
    """Return SPREAD of the returns, the number of episodes, how many differ in any state, and all returns and lengths.

    The lists are in the order of the episodes' numbers.
    """
    ordered = sorted(results)
    returns = [result.total for result in ordered]
    return {
        **{name: float(getattr(np, name)(returns)) for name in SPREAD},
        "episodes": len(ordered),
        "distinct": len({(result.total, result.length, result.checksum) for result in ordered}),
        "returns": returns,
        "lengths": [result.length for result in ordered],
    }


def comparison(result: Json, training: Sequence[float]) -> Json:
    """Return the mean return of training, and whether an evaluation is below it by more than three standard errors."""
    error = math.sqrt(result["std"] ** 2 / result["episodes"] + np.var(training) / len(training))
    below = len(training) > 1 and fmean(training) - result["mean"] > max(3 * error, 1e-6)
    return {"training_mean": fmean(training), "below_training": bool(below)}


def log_result(result: Json, advice: str = "") -> None:
    """Log the result of an evaluation, and a command to try if it is below training by its `comparison`."""
    log.info(
        "Evaluation: mean return %s, standard deviation %s, %g to %g, over %d episodes (%d of them distinct).",
        format_return(result["mean"]),
        format_return(result["std"]),
        *(result[name] for name in ("min", "max", "episodes", "distinct")),
    )
    if endless := count_at_limit(result["lengths"]):
        log.warning(
            f"%d episodes were cut at {MAX_STEPS:,} steps. If that is unusual, the agent probably repeats its moves; "
            "try tools/evaluate.py with --epsilon 0.05, or with --sample for PPO.",
            endless,
        )
    if result.get("below_training"):
        log.warning(
            "Greedy play is clearly below training: mean return %s instead of %s. Try %s",
            *(format_return(result["mean"]), format_return(result["training_mean"]), advice),
        )


def attach_evaluation(
    engine: Engine,
    every: int,
    policy: Policy,
    players: Sequence[EpisodePlayer],
    seed: int,
    steps: Callable[[], int],
    untimed: Untimed,
    stopped: Callable[[], bool],
) -> None:
    """Evaluate after every `every` agent steps, which `steps` returns. Random numbers and speeds are not affected.

    After an evaluation, EVALUATED is fired, with SPREAD in engine.state.metrics. See play_together for the arguments.
    """
    last = steps()

    @engine.on(Events.ITERATION_COMPLETED)
    def play_if_due(engine: Engine) -> None:
        nonlocal last
        before, last = last, steps()
        if before // every == last // every:
            return
        results: list[EpisodeResult] = []
        with untimed(), undisturbed():
            play_together(policy, players, seed, range(EPISODES_BETWEEN), results.append, stopped)
        if len(results) == EPISODES_BETWEEN:  # it was not abandoned
            statistics = summary(results)
            engine.state.metrics |= {name: statistics[name] for name in SPREAD}
            engine.fire_event(TrainingEvents.EVALUATED)


def evaluate_at_end(
    net: nn.Module, env_id: str, options: RunOptions, run: RunFolder, training: Sequence[float], result: Json
) -> None:
    """Evaluate the network of a run that has ended, and compare it with the returns of its last training episodes.

    The evaluation is added to the run's result.json, whose content is `result`.
    """
    log.info("Evaluation: %d episodes in single environments, without exploration.", EPISODES)
    policy = GreedyPolicy(net)
    evaluated = evaluate(
        policy,
        partial(make_env, env_id, tweaked=True, any_actions=True),
        seed=tagged_seed("final evaluation", options.seed),  # its episodes are not those of tools/evaluate.py
        progress=not options.quiet,
        side_by_side=options.owns_process,  # a process imports the main program, which may start a run there
    )
    result["evaluation"] = evaluated | comparison(evaluated, training)
    write_json(run.result, result)
    log_result(result["evaluation"], tool_command("evaluate", run.path, env_id, *policy.less_greedy, which=LAST))
