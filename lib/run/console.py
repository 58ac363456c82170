"""Console output of a run: a bar and lines while it trains, its result, and commands to copy."""

import logging
import math
import os
import shlex
import sys
import time
from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from statistics import fmean
from typing import NoReturn

import numpy as np
from ignite.engine import Engine, Events
from tqdm import tqdm

from lib.envs.single_env import EnvId
from lib.experience.interface import Episode
from lib.hyperparameters import RunParameters
from lib.run.arguments import DEFAULT_RUNS_DIR, RunOptions
from lib.run.checkpoint import BEST
from lib.run.episodes import WINDOW, EpisodeEvents, Episodes, TrainingEvents, format_return
from lib.run.folder import places, read_params
from lib.run.speed import Speed, format_rate
from lib.run.stopping import NOT_FINITE, SOLVED
from lib.system.clock import since_process_start
from lib.system.files import PROJECT
from lib.system.log import TaskProgress, bar_stream

log = logging.getLogger(__name__)


class Screen:
    """Bar and lines of a training run: on a terminal, a bar shows its state; in a file, its state is logged.

    Without a goal, the bar shows the way to the step limit. `warm_up` is in agent steps; for the limits, see Stopper.
    """

    # Seconds between two lines about episodes, and between two states of the run.
    TERMINAL, FILE = (5.0, 0.5), (10.0, 30.0)

    def __init__(self, episodes: Episodes, speed: Speed, warm_up: int, step_limit: int, time_limit: float | None):
        self.episodes, self.speed = episodes, speed
        self.warm_up, self.step_limit, self.time_limit = warm_up, step_limit, time_limit
        self._stream = bar_stream()
        self._intervals = self.FILE if self._stream is None else self.TERMINAL
        self._next_line, self._next_state = -math.inf, math.inf
        self._bar: tqdm[NoReturn] | None = None  # of the warm-up, or of the training
        self._recent: deque[Episode] = deque(maxlen=WINDOW)  # of this process

    def attach(self, engine: Engine) -> None:
        """Show bar and lines while the engine runs. Attach this after the episode counter."""
        engine.add_event_handler(Events.STARTED, self._start_warm_up)
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self._start_training)
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, self._episode_completed)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(Events.COMPLETED, self._close)

    def _start_warm_up(self) -> None:
        if self.warm_up > 0:
            self._bar = TaskProgress("Replay warm-up", self.warm_up)
            self.episodes.exp_source.on_step = self._bar.update  # which does nothing when the bar is closed

    def _start_training(self) -> None:
        self._close()
        if self._stream is not None:
            shape = "{percentage:3.0f}%|{bar}| {desc}"
            self._bar = tqdm(total=1.0, bar_format=shape, dynamic_ncols=True, leave=False, file=self._stream)
        self._next_state = time.monotonic() + self._intervals[1]

    def _episode_completed(self) -> None:
        episode, now = self.episodes.last, time.monotonic()
        self._recent.append(episode)
        if now >= self._next_line:
            self._next_line = now + self._intervals[0]
            line = "Episode %d: reward=%g, steps=%d, speed=%.1f f/s, elapsed=%s"
            elapsed = timedelta(seconds=int(self.episodes.seconds_at(episode.clock)))
            log.info(line, self.episodes.count, episode.total, episode.length, self.speed.recent, elapsed)

    def _iteration_completed(self) -> None:
        now = time.monotonic()
        if now >= self._next_state:
            self._next_state = now + self._intervals[1]
            if self._bar is None:
                log.info("Step %s, %s.", f"{self.episodes.steps:,}", self._state())
            else:
                self._bar.n = self._share()
                self._bar.set_description_str(self._state())

    def _share(self) -> float:
        """Return the share of the way to the goal that is covered, 0 to 1; without a goal, of the step limit."""
        episodes, goal = self.episodes, self.episodes.stop_reward
        if goal is None:
            return min(1.0, episodes.steps / self.step_limit)
        if not episodes.returns:
            return 0.0
        start = fmean(episodes.first)
        covered = (episodes.mean - start) / (goal - start) if goal > start else 1.0
        return min(max(0.0, covered), 1.0, len(episodes.returns) / WINDOW)

    def _state(self) -> str:
        """Return mean return, goal, speed, run time and time left. Without a goal, a bar shows the agent step."""
        episodes, number = self.episodes, len(self.episodes.returns)
        parts = [f"mean of {number}: {format_return(episodes.mean)}" if number else "no episode yet"]
        if episodes.stop_reward is not None:
            parts.append(f"goal {episodes.stop_reward:g}")
        elif self._bar is not None:
            parts.append(f"step {episodes.steps:,}")
        if self.speed.recent > 0:
            parts.append(f"{format_rate(self.speed.recent)} steps/s")
        return ", ".join([*parts, str(timedelta(seconds=int(episodes.seconds))), *self._left()])

    def _left(self) -> list[str]:
        """Return the estimated time until the goal or the first limit, whichever comes first; [] if unknown."""
        now, steps = since_process_start(), self.speed.training.steps
        to_limit = math.inf if self.time_limit is None else self.time_limit - now
        if steps:  # pauses for evaluations and videos count
            per_step = (now - self.speed.learning_since) / steps
            to_limit = min(to_limit, (self.step_limit - self.episodes.steps) * per_step)
        goal = self.episodes.stop_reward
        to_goal = math.inf if goal is None else seconds_to_rise(self._recent, goal - self.episodes.mean)
        if to_goal < to_limit:
            return [f"~{timedelta(minutes=math.ceil(to_goal / 60))} left"]
        return [f"limit in ~{timedelta(minutes=math.ceil(to_limit / 60))}"] if 0.0 < to_limit < math.inf else []

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def seconds_to_rise(episodes: Sequence[Episode], missing: float) -> float:
    """Return the seconds in which the regression line of the episodes' returns rises by `missing`.

    They are infinite for fewer than 20 episodes, and if they would be more than ten times those in which the episodes
    ended: chance alone gives every line some slope.
    """
    ends = np.array([episode.clock for episode in episodes])
    if len(episodes) < 20 or missing <= 0.0 or not np.ptp(ends):
        return math.inf
    slope = np.polyfit(ends - ends[-1], [episode.total for episode in episodes], 1)[0]
    return float(missing / slope) if slope * 10 * np.ptp(ends) >= missing else math.inf


def log_result(engine: Engine, stopped: str, episodes: Episodes, speed: Speed, frame_skip: int) -> None:
    """Log the training time by part, the speed, and the reason for the end, a key of stopping.EXIT_CODES."""
    if speed.training.steps:
        rate, updates = speed.training.rate, speed.updates / speed.training.seconds
        frames = f" ({format_rate(rate * frame_skip)} emulator frames/s)" if frame_skip > 1 else ""
        log.info("Training time by part:\n%s", speed.table())
        log.info("Speed: %s agent steps/s%s, %s learner updates/s.", format_rate(rate), frames, format_rate(updates))
    else:
        log.info("Too short to measure the speed." if speed.updates else "No update was made in this process.")
    if stopped == SOLVED and episodes.solved is not None:
        took, iterations = timedelta(seconds=int(episodes.solved["seconds"])), engine.state.iteration
        log.info("Game solved in %s, after %d episodes and %d iterations!", took, episodes.count, iterations)
    else:
        log.info("Stopped at step %s: %s.", f"{episodes.steps:,}", stopped)
    if stopped == NOT_FINITE:
        log.info("That update was not saved; try a new run with a smaller learning_rate.")


def log_next_steps(
    run: Path, params: RunParameters, options: RunOptions, episodes: Episodes, stopped: str, saved: bool
) -> None:
    """Log commands to copy, with their purpose. Without a checkpoint (`saved`), only a report can be shown."""
    env_id, limit = params.env_name, options.stop_after
    commands = {"watch it play": tool_command("play", run, env_id)} if saved else {}
    if episodes.count:
        commands["create a report"] = command(PROJECT / "tools/report.py", _name(run))
    if saved and (episodes.solved is not None or episodes.steps >= params.max_steps):
        commands["play 100 episodes"] = tool_command("evaluate", run, env_id)
    elif saved and stopped != NOT_FINITE and options.owns_process:
        is_below = limit is not None and episodes.steps < limit
        commands["continue the run"] = continue_command(run, env_id, options, limit if is_below else None)
    for purpose, line in commands.items():
        log.info("%s  # %s", line, purpose)


def continue_command(run: Path, env_id: str, options: RunOptions, stop_after: int | None = None) -> str:
    """Return the command that continues a run until `stop_after` or max_steps; its options if it is not a script."""
    words = ["--resume", _name(run), *env_option(env_id)]
    if not options.owns_process:
        return shlex.join(words)
    again = {  # options of this process that a resumed run does not take from params.json
        "--device": options.device if options.device.type != "cpu" else None,
        "--evaluate-every": options.evaluate_every,
        "--record-every": options.record_every,
        "--track": options.track,
        "--address": options.knobs.get("address"),  # because the cluster's nodes run code here
        "--stop-after": stop_after,
    }
    words += [word for option, value in again.items() if value is not None for word in (option, str(value))]
    line = command(Path(sys.argv[0]), *words)
    learners = os.environ.get("LOCAL_WORLD_SIZE")  # set by torchrun
    return f"torchrun --nproc-per-node {learners} --no-python {line}" if learners else line


def tool_command(tool: str, run: Path, env_id: str, *options: str, which: str = BEST) -> str:
    """Return the command of a tool that plays the agent of a checkpoint, such as "play"; `which` as in TrainedAgent."""
    words = env_option(env_id)
    if builder := read_params(run).get("network", {}).get("builder"):  # the file of the script's own network
        file, _, name = builder.rpartition(":")
        words += ["--network", f"{shown(Path(file))}:{name}"]
    if which != BEST:
        words += ["--checkpoint", which]
    return command(PROJECT / "tools" / f"{tool}.py", _name(run), *words, *options)


def env_option(env_id: str) -> list[str]:
    """Return the option that allows the import of an environment's module; none for gymnasium's own environments."""
    module, name, _ = EnvId.of(env_id)
    return ["--env-id", f"{module}:{name}"] if module else []


def command(script: Path, *words: str) -> str:
    return shlex.join([shown(Path(sys.executable)), shown(script), *words])


def _name(run: Path) -> str:
    """Return "last" for the newest of the project's runs, so that a command fits in a line, and the path of others."""
    return "last" if places("last", DEFAULT_RUNS_DIR)[-1] == run else shown(run)


def shown(path: Path) -> str:
    """Return a path relative to the current folder, or the absolute one if that is shorter."""
    return min(os.path.relpath(path), os.path.abspath(path), key=len)
