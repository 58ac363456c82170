"""Console output of a run: a line for each episode, progress bars, and the result."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from tqdm import tqdm

from lib.experience.interface import ExperienceSource
from lib.run import checkpoint
from lib.run.episodes import Episodes
from lib.run.events import EpisodeEvents, TrainingEvents
from lib.run.run_folder import resume_options
from lib.run.speed import Speed
from lib.run.stopping import NOT_FINITE, SOLVED
from lib.system.clock import format_duration

log = logging.getLogger(__name__)


def attach_start(engine: Engine, speed: Speed, warm_up: int) -> None:
    """Log the end of the warm-up and its speed.

    Args:
        engine: training engine.
        speed: speed of this process.
        warm_up: agent steps that fill the replay; 0 for PPO, and for a resumed run that restored its replay.
    """

    def learning_started(engine: Engine) -> None:
        steps, seconds = speed.warm_up
        if warm_up:
            log.info("Replay warm-up: %s steps in %.1f s, %.0f steps/s.", f"{steps:,}", seconds, speed.warm_up_speed)
        log.info("Learning. Ctrl-C stops and saves.")

    engine.add_event_handler(TrainingEvents.LEARNING_STARTED, learning_started)


def attach_lines(engine: Engine, episodes: Episodes, speed: Speed) -> None:
    """Log a line for each episode."""

    def episode_completed(engine: Engine) -> None:
        episode = episodes.last
        assert episode is not None
        in_warm_up = episode.clock < speed.learning_since
        log.info(
            "Episode %d: reward=%g, steps=%d, speed=%.1f f/s, elapsed=%s",
            episodes.count,
            episode.total,
            episode.length,
            speed.warm_up_speed if in_warm_up else speed.recent,
            format_duration(episodes.seconds_at(episode.clock)),
        )

    engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_completed)


class ProgressBars:
    """A progress bar for the warm-up and another for training, each with its own speed and remaining time.

    They are tqdm's bars, because ignite's ProgressBar counts iterations, but this project counts agent steps.

    Args:
        exp_source: experience source; it reports the steps of the warm-up.
        episodes: counter of the episodes.
        limit: agent steps at which the run stops. The remaining time of training is the time until then.
        warm_up: agent steps of the warm-up.
    """

    def __init__(self, exp_source: ExperienceSource, episodes: Episodes, limit: int, warm_up: int):
        self.exp_source = exp_source
        self.episodes = episodes
        self.limit = limit
        self.warm_up = warm_up
        self._bar: tqdm[Any] | None = None

    def attach(self, engine: Engine) -> None:
        """Show the bars while the engine runs."""
        engine.add_event_handler(Events.STARTED, self._start_warm_up)
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self._start_training)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._update)
        engine.add_event_handler(Events.COMPLETED, self._close)

    def _start_warm_up(self) -> None:
        if self.warm_up > 0:
            self._bar = self._new_bar(total=self.warm_up, desc="Replay warm-up", leave=False)
            self.exp_source.on_step = self._bar.update

    def _start_training(self) -> None:
        self.exp_source.on_step = None
        self._close()
        self._bar = self._new_bar(total=self.limit, desc="Training", initial=self.episodes.steps, smoothing=0.1)

    def _new_bar(self, **options: Any) -> "tqdm[Any]":
        # A terminal is updated twice a second; a log file gets a line every half minute.
        interval = 0.5 if sys.stderr.isatty() else 30.0
        return tqdm(unit="step", dynamic_ncols=True, mininterval=interval, **options)

    def _update(self) -> None:
        if self._bar is None:
            return
        if self.episodes.returns:
            self._bar.set_postfix({"mean_100": f"{self.episodes.mean:.2f}"}, refresh=False)
        try:
            self._bar.update(self.episodes.steps - self._bar.n)
        except OSError:
            self._bar.disable = True  # the terminal is closed

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def log_result(
    engine: Engine,
    stopped: str,
    episodes: Episodes,
    speed: Speed,
    frame_skip: int,
    checkpoints: Path | None,
    wrong_inputs: Sequence[str] = (),
) -> None:
    """Log the training time by part, the speed, the reason for the end, and how to continue the run.

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
        "Evaluation: mean return %.2f, standard deviation %.2f, %g to %g, over %d episodes (%d of them distinct).",
        result["mean"],
        result["std"],
        result["min"],
        result["max"],
        result["episodes"],
        result["distinct"],
    )


def _log_speed(speed: Speed, frame_skip: int) -> None:
    if speed.training_steps:
        log.info("Training time by part:\n%s", speed.table())
        log.info(
            "Speed of training: %.1f agent steps/s (%.0f emulator frames/s), %.1f learner updates/s.",
            speed.overall,
            speed.overall * frame_skip,
            speed.updates_per_second,
        )
    elif speed.updates:
        log.info("Too short to measure the speed: all agent steps were taken before learning began.")
    else:
        log.info("No update was made in this process.")


def _advice(stopped: str, checkpoints: Path | None, wrong_inputs: Sequence[str]) -> str:
    if checkpoints is None:
        return ""
    if stopped == NOT_FINITE:
        saved = bool(checkpoint.numbered(checkpoints, "step"))
        state = f"The last good state is in {checkpoints}" if saved else "Nothing was saved yet"
        if wrong_inputs:
            return (
                f" The environment gave NaN or infinity ({', '.join(wrong_inputs)} of the batch). Correct it, or wrap "
                f"it, and start a new run; a resumed one meets these values again. {state}."
            )
        return f" {state}. All inputs were finite, so learning diverged; try a new run with a smaller learning_rate."
    return f" Continue with {resume_options(checkpoints.parent)}"
