"""Console output of a run before and after it trains: its start and its result."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ignite.engine import Engine

from lib.run import checkpoint_files
from lib.run.episode_player import MAX_STEPS, count_at_limit
from lib.run.episodes import Episodes, format_return
from lib.run.events import TrainingEvents
from lib.run.speed import Speed, format_rate
from lib.run.stopping import NOT_FINITE, SOLVED
from lib.system.clock import format_duration

log = logging.getLogger(__name__)


def attach_start(engine: Engine, speed: Speed, warm_up: int, saves: bool) -> None:
    """Log the end of the warm-up and its speed.

    Args:
        engine: training engine.
        speed: speed of this process.
        warm_up: agent steps that fill the replay; 0 for PPO, and for a resumed run that restored its replay.
        saves: whether the run saves checkpoints.
    """

    def learning_started(engine: Engine) -> None:
        steps, seconds = speed.warm_up
        if warm_up and steps:  # an iterator of the user's own does not count them
            log.info("Replay warm-up: %s steps in %.1f s, %.0f steps/s.", f"{steps:,}", seconds, speed.warm_up_speed)
        log.info("Learning. Ctrl-C stops%s.", " and saves" if saves else "; this script saves no checkpoint")

    engine.add_event_handler(TrainingEvents.LEARNING_STARTED, learning_started)


def log_result(
    engine: Engine,
    stopped: str,
    episodes: Episodes,
    speed: Speed,
    frame_skip: int,
    checkpoints: Path | None,
    wrong_inputs: Sequence[str] | None = None,
) -> None:
    """Log the training time by part, the speed, and the reason for the end.

    Args:
        engine: training engine.
        stopped: reason for the end, a key of stopping.EXIT_CODES.
        episodes: counter of the episodes.
        speed: speed of this process.
        frame_skip: emulator frames per agent step.
        checkpoints: folder of the checkpoints, or None if the run saves none.
        wrong_inputs: see Stopper.
    """
    _log_speed(speed, frame_skip)
    if stopped == SOLVED and episodes.solved is not None:
        log.info(
            "Game solved in %s, after %d episodes and %d iterations!",
            format_duration(episodes.solved["seconds"]),
            episodes.count,
            engine.state.iteration,
        )
    else:
        advice = _advice(stopped, checkpoints, wrong_inputs)
        log.info("Stopped at step %s: %s.%s", f"{episodes.steps:,}", stopped, advice)


def log_evaluation(result: Mapping[str, Any]) -> None:
    """Log the result of an evaluation."""
    log.info(
        "Evaluation: mean return %s, standard deviation %s, %g to %g, over %d episodes (%d of them distinct).",
        format_return(result["mean"]),
        format_return(result["std"]),
        result["min"],
        result["max"],
        result["episodes"],
        result["distinct"],
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


def _log_speed(speed: Speed, frame_skip: int) -> None:
    if speed.training_steps:
        log.info("Training time by part:\n%s", speed.table())
        log.info(
            "Speed of training: %s agent steps/s%s, %s learner updates/s.",
            format_rate(speed.overall),
            f" ({format_rate(speed.overall * frame_skip)} emulator frames/s)" if frame_skip > 1 else "",
            format_rate(speed.updates_per_second),
        )
    elif speed.updates:
        log.info("Too short to measure the speed.")
    else:
        log.info("No update was made in this process.")


def _advice(stopped: str, checkpoints: Path | None, wrong_inputs: Sequence[str] | None) -> str:
    if checkpoints is not None and stopped == NOT_FINITE:
        saved = bool(checkpoint_files.numbered(checkpoints, "step"))
        state = f"The last good state is in {checkpoints}" if saved else "Nothing was saved yet"
        if wrong_inputs:
            return (
                f" The environment gave NaN or infinity ({', '.join(wrong_inputs)} of the batch). Correct it, "
                f"and start a new run; a resumed one meets these values again. {state}."
            )
        cause = "" if wrong_inputs is None else "All inputs were finite, so learning diverged; "
        return f" {state}. {cause}try a new run with a smaller learning_rate."
    return ""
