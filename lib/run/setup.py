"""setup_ignite: attach everything that a run needs around its loop.

`_Setup` has a method for each step. setup_ignite calls them from top to bottom, because the order in which handlers are
attached is the order in which they run.
"""

import copy
import dataclasses
import logging
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
from ignite.engine import Engine, Events
from torch import nn

from lib.envs.checked_env import close_all
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.experience.episodes import Episode
from lib.experience.interface import ExperienceSource, Stopped
from lib.hyperparameters import Hyperparameters, RunParameters, as_hyperparameters
from lib.run import (
    checkpoint,
    checkpoint_files,
    checkpoint_reading,
    console,
    evaluation,
    learning_rate,
    run_folder,
    run_json,
    tracking,
    videos,
)
from lib.run.checkpoint import Stateful
from lib.run.curve import draw_or_warn
from lib.run.episodes import EpisodeFile, Episodes, first_returns, last_step
from lib.run.events import EpisodeEvents, TrainingEvents, attach_as_last, attach_periods, register_events
from lib.run.final_evaluation import FinalEvaluation
from lib.run.goal_progress import GoalProgress
from lib.run.growing_files import GrowingFiles
from lib.run.initial_weights import load_initial_weights
from lib.run.next_steps import continue_command, next_steps
from lib.run.optional_work import run_optional
from lib.run.options import RunOptions, affecting_results, options_of_book
from lib.run.policy import GreedyPolicy
from lib.run.ptan_source import RewardsSource, adapt_source
from lib.run.result import describe_result
from lib.run.screen import Screen
from lib.run.speed import Speed
from lib.run.stopping import ENDED, NOT_FINITE, SOLVED, STEPS, Stopper, pass_on
from lib.run.tensorboard import FigureFunction, TensorBoard
from lib.run.video_file import Animation
from lib.run.watchdog import Watchdog
from lib.system import files, memory
from lib.system.clock import since_process_start
from lib.system.console_log import start_console
from lib.system.progress import show_progress
from lib.system.seeds import RandomState, undisturbed

log = logging.getLogger(__name__)

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()  # those that setup_ignite was called with

TUNER_REWARD_MIN = -19.0  # least smoothed return of a Pong trial; the lowest return is -21


def setup_ignite(
    engine: Engine,
    params: RunParameters | SimpleNamespace,
    exp_source: ExperienceSource | RewardsSource,
    run_name: str,
    extra_metrics: Sequence[str] = (),
    tuner_reward_episode: int = 100,
    tuner_reward_min: float | None = None,
    *,
    args: RunOptions | None = None,
    save: Mapping[str, Stateful] | None = None,
    figures: Mapping[str, FigureFunction] | None = None,
) -> run_folder.Run:
    """Attach everything that a run needs around its loop: telemetry, stopping, checkpoints, resume.

    Args:
        engine: training engine. Its process function returns at least {"loss": float}. Every value is written as
            train/<name>. If a value is a function, its result at that moment is written.
        params: hyperparameters, or a namespace with the book's fields.
        exp_source: experience source, or a plain PTAN source.
        run_name: name of the script.
        extra_metrics: names of further engine.state.metrics to write as train/<name>.
        tuner_reward_episode: number of episodes after which a trial, see Hyperparameters.tuner_mode, stops if its
            smoothed return is below `tuner_reward_min`.
        tuner_reward_min: see `tuner_reward_episode`; None: -19 in Pong, no minimum elsewhere.
        args: options from the command line; None for a new run with the defaults, in runs/ of the current folder.
        save: objects that a checkpoint holds, by name, at least "net"; None for no checkpoints. Their state_dicts
            consist of tensors and plain values without NaN. If a run is resumed, they are restored before this function
            returns. A run that is solved, or ends at max_steps, ends with an evaluation of "net".
        figures: functions that draw a figure for TensorBoard, by name. Those with a state_dict are saved, too.

    Returns:
        The run folder. When the run ends, engine.state.stopped is a key of stopping.EXIT_CODES.

    Raises:
        UsageError: if the run to resume is in use, at its limit or changed, if its episodes cannot be recorded or
            evaluated, or if the network of --init does not fit.
        Fault: if no checkpoint of the run to resume can be read.
        TypeError: if checkpoints are saved and exp_source is a plain PTAN source, if `save` has no "net", or if
            extra_metrics is one text.
        ValueError: if the engine already has a run, if a field of the hyperparameters is missing or out of range, or if
            the learning rate has to decay and `save` has no "optimizer".
    """
    start_console()
    if engine in _engines:
        raise ValueError("setup_ignite was called with this engine before; make a new Engine for each run")
    if isinstance(extra_metrics, str):
        raise TypeError(f"extra_metrics is {extra_metrics!r}; it has to be a list of names, [{extra_metrics!r}]")
    checked = as_hyperparameters(params)
    if save is not None and not isinstance(save.get("net"), nn.Module):
        raise TypeError(f"save['net'] is {type(save.get('net')).__name__}; it has to be the network, an nn.Module")
    source = adapt_source(exp_source, engine, saved=save is not None)
    options = args or options_of_book()
    show_progress(not options.quiet)
    setup = _Setup(engine, checked, source, run_name, options, save, figures or {}, is_book_script=args is None)
    _engines.add(engine)
    try:
        with files.named(setup.run.path):
            setup.resume()
        setup.attach_learning_rate()
        setup.attach_telemetry(extra_metrics)
        setup.attach_evaluation()
        setup.attach_episode_records()
        setup.attach_console()
        setup.attach_final_evaluation()
        setup.attach_stopping(tuner_reward_episode, tuner_reward_min)
        setup.attach_checkpoints()
        setup.attach_end()
    except Exception:
        setup.undo()
        raise
    except BaseException:  # of a signal; the run can be resumed
        setup.close()
        raise
    return setup.run


def _forget_loop(engine: Engine) -> None:
    """Let the next engine.run begin a loop of its own. ignite would go on with the one that an error has ended."""
    engine._internal_run_generator = None


class _Setup:
    """A run that is being set up."""

    def __init__(
        self,
        engine: Engine,
        params: RunParameters,
        source: ExperienceSource,
        script: str,
        options: RunOptions,
        save: Mapping[str, Stateful] | None,
        figures: Mapping[str, FigureFunction],
        is_book_script: bool,
    ):
        learning_rate.require(params, options.stop_after)
        self.engine = engine
        self.params = params
        self.source = source
        self.script = script
        self.options = options
        self.save = save
        self.figures = figures
        self.is_book_script = is_book_script  # it does not read engine.state.stopped
        # Only cli.main makes options of a resumable run. A book's script or a notebook may do other work before and
        # after the run.
        self.owns_process = options.resumable
        self.time_limit: float | None = options.time_limit  # in seconds since the process started
        if self.time_limit is not None and not self.owns_process:
            self.time_limit += since_process_start()
        self.warm_up = params.warm_up
        self.tracker: tracking.Tracker | None = None
        # Created before the run folder, so that an environment that cannot be recorded leaves no folder behind.
        with undisturbed():
            self.replayer = videos.EpisodeReplayer(params.env_name) if options.record_every else None
        if options.init is not None and options.resume is None:
            load_initial_weights(options.init, save or {})
        register_events(engine)
        try:
            self.run = run_folder.Run(script, params, options, (save or {}).get("net"))
        except BaseException:
            if self.replayer is not None:
                self.replayer.close()
            raise
        log.info("Run folder: %s", self.run.path)
        self.episodes = Episodes(
            source,
            params.stop_reward,
            params.milestone,
            trained=options.init is not None,
            owns_process=self.owns_process,
        )
        if options.init is not None:
            source.begin_trained()
        self.speed = Speed(source, params.log_every)
        every = None if save is None else options.evaluate_every
        self.periodic_evaluation = evaluation.PeriodicEvaluation(every) if every else None
        self._started_source = False  # only here; otherwise the loop starts it
        self._failure: BaseException | None = None
        self._damaged: list[Path] = []  # checkpoints that could not be read
        # Environments of evaluations and videos.
        self._opened: list[gym.Env | videos.EpisodeReplayer] = [] if self.replayer is None else [self.replayer]
        self.stopper = Stopper(
            self.steps, options.stop_after or params.max_steps, self.time_limit, saves=save is not None
        )
        source.stop_asked = self.stopper.should_stop

    def steps(self) -> int:
        """Return the agent steps so far."""
        return self.source.steps_done

    def resume(self) -> None:
        """Restore the newest checkpoint of a run that is resumed, and open TensorBoard's files."""
        content = self._read_checkpoint() if self.options.resume else {}
        if content:
            if "settings" in content:  # earlier versions did not save them
                checkpoint.restore({"settings": self._settings()}, content)
            state = self._run_state()
            for name in set(self.figures) - set(content):  # of an earlier version; it selects new states
                state.pop(name, None)
            checkpoint.restore(state, content)
            log.info("Resumed at step %s.", f"{self.steps():,}")
        elif self.options.resume and self.options.init:  # stopped before its first checkpoint
            load_initial_weights(self.options.init, self.save or {})
        if "replay" in content:
            self.warm_up = 0
        if "speed" in content and not self.warm_up:  # earlier versions did not save it
            checkpoint.restore({"speed": self.speed}, content)
        self._require_steps_left()
        GrowingFiles(self.run.path).require_unchanged(content.get("files", {}))

        # A refused resume must not change any file, so all changes come after these checks.
        if self.options.resume:
            self._started_source = True
            self.source.start()
        self._start_tracker()
        if self.options.resume:
            self.run.add_session()
            for damaged in self._damaged:  # renamed, so that the rotation of the checkpoints does not count them
                damaged.rename(damaged.with_suffix(".damaged"))
            checkpoint_files.set_aside_newer(self.run.checkpoints, self.steps())
            videos.cut_back(self.run.path, self.episodes.count)
        if content:
            checkpoint.restore({"files": self._growing_files()}, content)
        else:
            self._growing_files().load_state_dict({})
        # A notebook may run the engine a second time, too.
        self.engine.add_event_handler(Events.STARTED, self.run.take)
        self.engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self.run.discard_result)
        self.board = TensorBoard(self.run.path)
        if self.tracker is not None:
            self.board.add_mirror(self.tracker)
        if content:
            self._restore_loop(content)

    def _start_tracker(self) -> None:
        if not self.options.track:
            return
        settings = {"script": self.script, **self._settings().state_dict()}
        self.tracker = tracking.start(self.options.track, self.run.path, settings, self.steps)

    def undo(self) -> None:
        """After an error in the set-up, remove the folder of a new run, and unlock that of a resumed one."""
        self.close()
        self._discard_if_new()

    def close(self) -> None:
        """Close everything that the set-up has opened, and unlock the run's folder."""
        if self.tracker is not None:
            self.tracker.fail()
        if hasattr(self, "board"):
            with suppress(OSError):
                self.board.close()
        close_all([self.source, *self._opened] if self._started_source else self._opened)
        self.run.close()

    def _discard_if_new(self) -> None:
        """Remove the folder of a new run that was refused before it played."""
        if not self.options.resume and not self.steps():
            self.run.discard()

    def _read_checkpoint(self) -> dict[str, Any]:
        content = checkpoint_reading.newest(self.run.checkpoints, self._damaged)
        if content is None and self._has_saved():
            raise UsageError(f"{self.run.path} has no step-* checkpoint; restore one, or start a new run")
        if content is None:
            log.info("The run was stopped before its first checkpoint and starts again from the beginning.")
        return content or {}

    def _has_saved(self) -> bool:
        """Return whether the run has saved a checkpoint, which is recorded in files.json before it is written."""
        step, file = last_step(self.run.path), self.run.path / "files.json"
        is_early = step < self.params.warm_up + self.params.checkpoint_every
        if is_early and any(self.run.checkpoints.glob("*.tmp")):  # it was killed while it wrote the first one
            return False
        if not file.exists():  # earlier versions did not write it
            return step > self.params.warm_up
        return bool(run_json.read_json(file, run_json.FILES)["files"])

    def _require_steps_left(self) -> None:
        """Refuse a run at its step limit, unless its result, evaluation or confirmation is still missing."""
        result = self.run.read_result()
        is_played = self.options.stop_after is None and self.episodes.count > 0  # the evaluation, see attach_end
        lacks_evaluation = is_played and "evaluation" not in result
        if self._at_limit() and (not result or lacks_evaluation or self.episodes.awaits_confirmation):
            return
        learning_rate.require_above_zero(self.params, self.run.path, self.steps())
        if self.steps() + self.warm_up >= self.stopper.step_limit:
            filling = f" and first fills its replay with {self.warm_up:,} more steps" if self.warm_up else ""
            raise UsageError(
                f"{self.run.path} is already at step {self.steps():,}{filling}; give a larger --stop-after"
            )

    def _at_limit(self) -> bool:
        return self.steps() >= self.stopper.step_limit

    def _restore_loop(self, content: Mapping[str, Any]) -> None:
        """Restore the loop's state when the loop starts.

        ignite resets the iteration counter and the running averages on STARTED. No handler draws random numbers
        between EPOCH_STARTED and the first batch.
        """
        # A copy, because the handler is kept, and would keep the file of the checkpoint.
        state = copy.deepcopy({name: content[name] for name in self._loop_state() if name in content})

        def restore(engine: Engine) -> None:
            objects = self._loop_state()
            if "evaluations" not in state:  # the saved run had none
                objects.pop("evaluations", None)
            checkpoint.restore(objects, state)
            self.episodes.request_confirmation(engine)  # the run may have been stopped before it was confirmed
            if self.episodes.solved is not None:
                self.stopper.solved(engine)
            elif self._at_limit():
                self.stopper.limit_reached(engine)
            elif self.stopper.reason is not None:
                engine.terminate()

        self.engine.add_event_handler(Events.EPOCH_STARTED(once=1), restore)

    def _run_state(self) -> dict[str, Stateful]:
        """Return the objects that are restored before the loop starts."""
        state: dict[str, Stateful] = {"source": self.source, "episodes": self.episodes, **(self.save or {})}
        for name, figure in self.figures.items():
            if isinstance(figure, Stateful):
                state[name] = figure
        if isinstance(self.params, Hyperparameters) and not self.params.checkpoint_replay:
            state.pop("replay", None)
        return state

    def _settings(self) -> checkpoint.Settings:
        knobs = affecting_results(self.options.knobs)
        return checkpoint.Settings({**dataclasses.asdict(self.params), **knobs, "seed": self.options.seed})

    def _loop_state(self) -> dict[str, Stateful]:
        """Return the objects that are restored when the loop starts."""
        state: dict[str, Stateful] = {
            "iteration": checkpoint.Iteration(self.engine),
            "average": self.board.average,
            "random": RandomState(self.options.device),
        }
        return state if self.periodic_evaluation is None else state | {"evaluations": self.periodic_evaluation}

    def attach_learning_rate(self) -> None:
        """Decay the learning rate to Hyperparameters.learning_rate_final."""
        if isinstance(self.params, Hyperparameters) and self.params.learning_rate_final is not None:
            learning_rate.attach_decay(self.engine, self.params, (self.save or {}).get("optimizer"), self.steps)

    def attach_telemetry(self, extra_metrics: Sequence[str]) -> None:
        """Measure the speed, count episodes, write TensorBoard's scalars and figures."""
        self.speed.attach(self.engine)
        self.engine.add_event_handler(Events.ITERATION_COMPLETED(every=20), memory.Trimmer())
        self.stopper.watch_loss(self.engine)
        self.episodes.attach(self.engine)
        self.board.attach(self.engine, self.speed, extra_metrics)
        attach_periods(self.engine)
        if self.figures:
            self.board.attach_figures(self.engine, self.steps, self.figures)

    def attach_evaluation(self) -> None:
        """Evaluate the network during training, with --evaluate-every."""
        if self.periodic_evaluation is None:
            return
        envs: list[gym.Env] = []
        with undisturbed():
            for _ in range(evaluation.EPISODES_BETWEEN):
                try:
                    envs.append(make_env(self.params.env_name))
                except UsageError as error:
                    raise UsageError(
                        f"--evaluate-every needs {evaluation.EPISODES_BETWEEN} more environments. Leave it out, or "
                        f"correct the environment: {error}"
                    ) from error
                self._opened.append(envs[-1])
        evaluating = evaluation.evaluator(self._policy(), envs, self.options.seed, self.stopper.interrupted)
        self.board.attach_evaluation(evaluating, evaluation.SPREAD, self.steps)
        self.periodic_evaluation.attach(self.engine, evaluating, self.steps, self._evaluating)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        """Do not count the time of an evaluation as training. Save the run if the evaluation fails."""
        try:
            with self.speed.paused():
                yield
        except Stopped:
            raise
        except Exception:
            self.checkpointer.rescue(self.engine)
            raise

    def attach_episode_records(self) -> None:
        """Write episodes.csv, and videos with --record-every."""
        episode_file = EpisodeFile(self.run.path / "episodes.csv", self.episodes)
        if self.replayer is not None and self.options.record_every:
            recorder = videos.Recorder(
                self.replayer,
                self.run.path,
                self.options.record_every,
                self.episodes,
                self.source.native,
                self.speed.paused,
                self.stopper.interrupted,
            )
            recorder.on_video = lambda animation, episode: self._send_video(recorder, animation, episode)
            episode_file.video = lambda: recorder.video
            self.engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, recorder)
        self.engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_file)

    def _send_video(self, recorder: videos.Recorder, animation: Animation, episode: Episode) -> None:
        self.board.write_video(animation, episode.step)
        if self.tracker is not None:
            self.tracker.video(self.run.path / recorder.video)

    def attach_console(self) -> None:
        """Log the run on the console."""
        console.attach_start(self.engine, self.speed, self.warm_up, self.save is not None)
        if self.options.quiet:
            return
        goal_progress = None
        if self.params.stop_reward is not None:
            goal_progress = GoalProgress(self.episodes, first_returns(self.run.path, GoalProgress.FIRST))
        Screen(
            self.source,
            self.episodes,
            self.speed,
            self.warm_up,
            goal_progress,
            self.stopper.step_limit,
            goal_progress is None or self.options.stop_after is not None,
            self.time_limit,
            self.options.verbose,
        ).attach(self.engine)

    def attach_final_evaluation(self) -> None:
        """Prepare the final evaluation, which decides whether the game is solved if `confirm` is set."""
        if self.save is None:
            return
        self.final_evaluation = FinalEvaluation(
            self._policy(),
            self.params,
            self.options,
            self.run,
            self.episodes,
            self.stopper.should_stop,
            self._evaluating,
        )
        if self.params.confirm:
            self.episodes.confirm = self.final_evaluation.confirm
            self.engine.add_event_handler(Events.ITERATION_COMPLETED, self.episodes.request_confirmation)

    def attach_stopping(self, tuner_reward_episode: int, tuner_reward_min: float | None) -> None:
        """Stop when the game is solved, at a limit, or on a signal; stop a hopeless trial."""
        self.stopper.watch_ends(self.engine)
        Watchdog(self.time_limit).attach(self.engine)
        if isinstance(self.params, Hyperparameters) and self.params.tuner_mode:
            max_episodes = 1.1 * self.params.episodes_to_solve
            if tuner_reward_min is None:
                tuner_reward_min = TUNER_REWARD_MIN if "Pong" in self.params.env_name else -math.inf
            self.stopper.watch_trial(self.engine, self.episodes, max_episodes, tuner_reward_episode, tuner_reward_min)

    def attach_checkpoints(self) -> None:
        """Save checkpoints."""
        self.engine.add_event_handler(Events.EXCEPTION_RAISED, self._failed)
        if self.save is None:
            return
        if not self.options.resume:
            # The replay may be large. This project's own can be read.
            checked = {name: each for name, each in self.save.items() if name != "replay"}
            self.engine.add_event_handler(
                Events.ITERATION_COMPLETED(once=1), lambda engine: checkpoint.require_readable(checked)
            )
        growing = {"files": self._growing_files(self.board.flush)}
        own: dict[str, Stateful] = {"settings": self._settings(), "speed": self.speed}
        objects = own | self._run_state() | self._loop_state() | growing
        self.checkpointer = checkpoint.Checkpointer(
            objects,
            self.run.checkpoints,
            self.params.checkpoint_every,
            self.stopper,
            self.params.warm_up > 0,
            partial(continue_command, self.run.path, self.params.env_name, self.options),
        )
        self.checkpointer.attach(self.engine)

    def attach_end(self) -> None:
        """Write the result, close everything, evaluate a solved or complete run, and draw the learning curve."""

        signals: list[int] = []  # those that ended the run or the work after it

        @self.engine.on(Events.COMPLETED)
        def completed(engine: Engine) -> None:
            stopped = self.stopper.reason or ENDED
            signals[:] = self.stopper.signals
            engine_state: Any = engine.state
            engine_state.stopped = stopped
            result = describe_result(engine, stopped, self.episodes, self.speed, self.run.read_result())
            self._write_result(result)
            self._finish(result)
            try:
                is_evaluated = self.save is not None and (stopped == SOLVED or self._is_complete(stopped))
                if is_evaluated and self.episodes.count and (not signals or self.final_evaluation.is_played):
                    evaluate = partial(self.final_evaluation.add_to, result)
                    signals.extend(run_optional("evaluation", evaluate, may_fail=self.is_book_script))
                signals.extend(run_optional("learning curve", self._draw_curve))
                if self.tracker is not None:
                    finish = partial(self.tracker.finish, self.run.read_result(), self.run.path / "curve.png")
                    signals.extend(run_optional("tracking", finish))
            finally:
                self.run.close()  # not before: a run that is resumed meanwhile would have its result overwritten
            self._log_next_steps(stopped)

        def end(engine: Engine) -> None:
            Watchdog.stop()
            if self.is_book_script:
                _forget_loop(engine)
                pass_on(signals)

        if not self.owns_process:
            attach_as_last(self.engine, Events.COMPLETED, end)
        self.engine.add_event_handler(Events.EXCEPTION_RAISED, self._abandon)
        attach_as_last(self.engine, Events.EXCEPTION_RAISED, self._raise)

    def _is_complete(self, stopped: str) -> bool:
        """Whether the run has ended at its own limit, `max_steps`, and not at --stop-after."""
        return stopped == STEPS and self.options.stop_after is None

    def _write_result(self, result: Mapping[str, Any]) -> None:
        self.run.write_json("result.json", dict(result))
        self.board.write_end(self._described(), result, self.steps())
        checkpoints = None if self.save is None else self.run.checkpoints
        console.log_result(
            self.engine,
            result["stopped"],
            self.episodes,
            self.speed,
            self.source.frame_skip,
            checkpoints,
            self.stopper.wrong_inputs,
        )

    def _growing_files(self, flush: Callable[[], object] = lambda: None) -> GrowingFiles:
        """Return the growing files. Their digests are also written to a file, which tools read if the run is killed."""
        return GrowingFiles(self.run.path, flush, lambda state: self.run.write_json("files.json", {"files": state}))

    def _described(self) -> dict[str, Any]:
        """Return seed, script, its options and the hyperparameters, for TensorBoard."""
        settings = {"seed": self.options.seed, "script": self.script}
        return settings | self.options.knobs | dataclasses.asdict(self.params)

    def _finish(self, result: dict[str, Any]) -> None:
        """Write the sizes of the closed files into the result, and close everything else."""
        self.board.close()
        result["files"] = GrowingFiles(self.run.path).state_dict()
        self.run.write_json("result.json", result)
        self.source.close()
        self.stopper.release_signals()
        close_all(self._opened)

    def _failed(self, engine: Engine, error: BaseException) -> None:
        """Name the run in a disk error that names no file, and remove a new run that was refused."""
        if isinstance(error, OSError):
            files.set_path(error, self.run.path)
        if isinstance(error, UsageError):
            self._discard_if_new()

    def _abandon(self, engine: Engine, error: BaseException) -> None:
        """Close everything after an error, draw the curve, and unlock the run, so that it can be resumed.

        The state is saved before, because trackers and pictures may take long. ignite may report the same error twice.
        """
        at_once = isinstance(error, KeyboardInterrupt) and self.owns_process
        is_new = error is not self._failure and not at_once
        self._failure = error
        if is_new and self.tracker is not None:
            self.tracker.fail()
        with suppress(OSError):
            self.board.close()
        if is_new:
            close_all([self.source, *self._opened])
        if is_new and not isinstance(error, KeyboardInterrupt) and self.run.path.exists():
            self._draw_curve()
        with suppress(OSError):
            self.run.close()
        self.stopper.release_signals()

    def _raise(self, engine: Engine, error: BaseException) -> None:
        """Raise the error again. If an error has a handler, ignite ends the run without raising it.

        ignite reports the error a second time then, to all handlers.
        """
        if not self.owns_process:
            Watchdog.stop()
        _forget_loop(engine)
        raise error

    def _draw_curve(self) -> None:
        if not self.episodes.count:
            log.info("There is no learning curve, because no episode has ended yet.")
            return
        draw_or_warn(self.run.path, self.params.stop_reward)

    def _log_next_steps(self, stopped: str) -> None:
        saved = bool(checkpoint_files.numbered(self.run.checkpoints, "step"))
        at_limit = self.steps() >= self.params.max_steps
        commands = next_steps(
            self.run.path,
            self.params.env_name,
            self.options,
            saved=saved,
            solved=stopped == SOLVED,
            cannot_improve=stopped == NOT_FINITE or (at_limit and learning_rate.falls_to_zero(self.params)),
            steps_done=self.steps() if at_limit else None,
            has_episode=self.episodes.count > 0,
        )
        for purpose, command in commands.items():
            log.info("%s  # %s", command, purpose)

    def _policy(self) -> GreedyPolicy:
        assert self.save is not None
        net = self.save["net"]
        assert isinstance(net, nn.Module)
        return GreedyPolicy(net)
