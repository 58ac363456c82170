"""What a run says on the console: a line an episode, progress bars, how it ended."""

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events
from tqdm import tqdm

from lib.run import checkpoint
from lib.run.episodes import Episodes
from lib.run.events import EpisodeEvents, TrainingEvents
from lib.run.speed import Speed
from lib.run.stopping import NOT_FINITE, SOLVED
from lib.system.clock import format_duration

log = logging.getLogger(__name__)


def attach_start(engine: Engine, speed: Speed, warm_up: int) -> None:
    """The line that says that the warm-up is over, and how fast it was.

    Args:
        warm_up: agent steps that it was to have; a resumed run has its replay, and PPO has none.
    """

    def learning_started(engine: Engine) -> None:
        steps, seconds = speed.warm_up
        if warm_up:
            log.info("Replay warm-up: %s steps in %.1f s, %.0f steps/s.", f"{steps:,}", seconds, speed.of_warm_up)
        log.info("Learning. Ctrl-C stops and saves.")

    engine.add_event_handler(TrainingEvents.LEARNING_STARTED, learning_started)


def attach_bars(engine: Engine, exp_source: Any, episodes: Episodes, limit: int, warm_up: int) -> None:
    """A progress bar for filling the replay and one for training, each with its own speed and time to go.

    tqdm itself and not ignite's ProgressBar, as that counts iterations and the ladder's clock is agent steps.

    Args:
        limit: agent steps at which the run gives up; training's time to go is the time until then, at most.
        warm_up: agent steps to be made before the first batch.
    """
    # Lively on a terminal, a line every half minute in a log file.
    manners: dict[str, Any] = {
        "unit": "step",
        "dynamic_ncols": True,
        "mininterval": 0.5 if sys.stderr.isatty() else 30.0,
    }
    bars: list[tqdm] = []

    def fill(engine: Engine) -> None:
        if warm_up > 0:
            bars.append(tqdm(total=warm_up, desc="Replay warm-up", leave=False, **manners))
            exp_source.on_step = bars[0].update

    def train(engine: Engine) -> None:
        exp_source.on_step = None
        close(engine)
        bars.append(tqdm(total=limit, desc="Training", initial=episodes.steps(), smoothing=0.1, **manners))

    def update(engine: Engine) -> None:
        for bar in bars:
            if episodes.returns:
                bar.set_postfix({"mean_100": f"{episodes.mean:.2f}"}, refresh=False)
            try:
                bar.update(episodes.steps() - bar.n)
            except OSError:
                bar.disable = True  # nobody watches any more

    def close(engine: Engine) -> None:
        while bars:
            bars.pop().close()

    engine.add_event_handler(Events.STARTED, fill)
    engine.add_event_handler(TrainingEvents.LEARNING_STARTED, train)
    engine.add_event_handler(Events.ITERATION_COMPLETED, update)
    engine.add_event_handler(Events.COMPLETED, close)


def attach_lines(engine: Engine, episodes: Episodes, speed: Speed) -> None:
    """The console's line an episode."""

    def episode_completed(engine: Engine) -> None:
        episode = episodes.last
        assert episode is not None
        in_warm_up = episode.clock < speed.learning_since
        log.info(
            "Episode %d: reward=%g, steps=%d, speed=%.1f f/s, elapsed=%s",
            episodes.count,
            episode.total,
            episode.length,
            speed.of_warm_up if in_warm_up else speed.now,
            format_duration(episodes.seconds_at(episode.clock)),
        )

    engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_completed)


def log_result(
    engine: Engine, stopped: str, episodes: Episodes, speed: Speed, frame_skip: int, checkpoints: Path | None
) -> None:
    """The last lines of a run: where the seconds went, how fast it was, how it ended and how to go on.

    Args:
        frame_skip: emulator frames in an agent step.
        checkpoints: their folder, or None where the run has none.
    """
    if speed.trained:
        log.info("Where the seconds of training went:\n%s", speed.table())
        log.info(
            "Speed of training: %.1f agent steps/s (%.0f emulator frames/s), %.1f learner updates/s.",
            *(speed.overall, speed.overall * frame_skip, speed.updates_per_second),
        )
    elif speed.updates:
        log.info("Too short to tell how fast it was: all steps were made before the learning began.")
    else:
        log.info("Nothing was learnt in this process.")
    if stopped == SOLVED and episodes.solved is not None:
        log.info(
            "Game solved in %s, after %d episodes and %d iterations!",
            *(format_duration(episodes.solved["seconds"]), episodes.count, engine.state.iteration),
        )
    else:
        log.info("Stopped at step %s: %s.%s", f"{episodes.steps():,}", stopped, _advice(stopped, checkpoints))


def log_evaluation(found: Mapping[str, Any]) -> None:
    """The line about an evaluation."""
    log.info(
        "Evaluation: mean return %.2f, standard deviation %.2f, %g to %g, over %d episodes (%d of them distinct).",
        *(found[name] for name in ("mean", "std", "min", "max", "episodes", "distinct")),
    )


def _advice(stopped: str, checkpoints: Path | None) -> str:
    if checkpoints is None:
        return ""
    if stopped == NOT_FINITE:
        saved = bool(checkpoint.numbered(checkpoints, "step"))
        state = f"The last good state is in {checkpoints}" if saved else "Nothing was saved yet"
        return f" {state}; try a new run with a smaller learning_rate."
    return f" Go on with --resume {checkpoints.parent}"
