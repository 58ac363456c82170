"""setup_ignite: attach everything that a run needs around its loop."""

import copy
import dataclasses
import logging
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING

from ignite.engine import Engine, Events
from torch import nn
from torch.optim import Optimizer

from lib.envs.checked_env import close_all
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.experience.interface import ExperienceSource, Stateful
from lib.experience.stream import without_actions
from lib.hyperparameters import Hyperparameters, RunParameters, as_hyperparameters
from lib.run import checkpoint, console, evaluation
from lib.run.arguments import RunOptions, describe, options_of_book
from lib.run.episode_player import EpisodePlayer
from lib.run.episodes import EpisodeEvents, EpisodeFile, Episodes, TrainingEvents, attach_as_last, register_events
from lib.run.folder import RunFolder, new_folder, read_json, require_spaces, write_json
from lib.run.policy import GreedyPolicy
from lib.run.speed import Speed
from lib.run.stopping import ENDED, SOLVED, STEPS, Stopper
from lib.run.tensorboard import FigureFunction, TensorBoard
from lib.system import memory
from lib.system.clock import since_process_start
from lib.system.log import show_progress, start_console
from lib.system.machine import choose_threads
from lib.system.seeds import RandomState, undisturbed

if TYPE_CHECKING:
    from lib.run.tracking import Tracker
    from lib.run.videos import Recorder

log = logging.getLogger(__name__)


def setup_ignite(
    engine: Engine,
    params: RunParameters | SimpleNamespace,
    source: ExperienceSource,
    run_name: str,
    extra_metrics: Sequence[str] = (),
    *,
    args: RunOptions | None = None,
    save: Mapping[str, Stateful] | None = None,
    figures: Mapping[str, FigureFunction] | None = None,
) -> RunFolder:
    """Attach everything that a run needs around its loop: telemetry, stopping, checkpoints, resume.

    Args:
        engine: training engine, which runs once. Its process function returns at least {"loss": float}. Every value is
            written as train/<name> every log_every iterations. A value that is a function is called only then.
        params: hyperparameters, or a namespace with the book's fields.
        run_name: name of the script.
        extra_metrics: names of further engine.state.metrics to write as train/<name>.
        args: options from the command line; None for a new run with the defaults, in runs/ of the current folder.
        save: objects that a checkpoint holds, by name, at least "net", and "optimizer" if the learning rate has to
            decay; None for no checkpoints. Their state_dicts consist of tensors and plain values without NaN. If a run
            is resumed, they are restored before this function returns.
        figures: functions that draw a figure for TensorBoard, by name. Those with a state_dict are saved, too.

    Returns:
        The run folder. When the run ends, engine.state.stopped is a key of stopping.EXIT_CODES.

    Raises:
        UsageError: if the run to resume is in use, if an option needs `save`, if the environment cannot be made again
            for evaluations or videos, or if a checkpoint does not fit.
        Fault: if no checkpoint of the run to resume can be read.
    """
    start_console()
    params, options = as_hyperparameters(params), args or options_of_book()
    save, figures = save or {}, figures or {}
    net = save.get("net")
    assert net is None or isinstance(net, nn.Module)
    if net is None and (options.resume or options.init or options.evaluate_every):
        raise UsageError("--resume, --init and --evaluate-every need the network; pass save={'net': net}")
    if options.owns_process and net is not None:
        choose_threads(net)
    show_progress(not options.quiet)
    began = 0.0 if options.owns_process else since_process_start()
    time_limit = None if options.time_limit is None else began + options.time_limit
    closing: list[Callable[[], object]] = [source.close]  # and environments of evaluations and videos
    with ExitStack() as undo:  # a run that is refused leaves nothing open, no new folder, and the files of an old one
        path = options.resume or new_folder(options.runs_dir, f"{params.run_name}-{run_name}{options.changes}")
        folder = RunFolder(path)

        def leave(kind: object, error: BaseException | None, trace: object) -> None:
            if isinstance(error, Exception) and not options.resume and not source.steps_done:
                shutil.rmtree(path, ignore_errors=True)
            folder.close()

        undo.push(leave)
        undo.callback(lambda: close_all(closing))
        if trained := options.resume or options.init:
            require_spaces(trained, params.env_name)
        if not options.resume:
            write_json(path / "params.json", describe(run_name, params, options, net))
        log.info("Run folder: %s", folder.path)
        episodes = Episodes(source, params.stop_reward, params.milestone, began)
        speed = Speed(source, params.log_every, has_replay=params.warm_up > 0)
        stopper = Stopper(lambda: source.steps_done, options.stop_after or params.max_steps, time_limit)
        source.stop_asked = stopper.should_stop
        source.traces = options.record_every is not None
        steps, stopped = stopper.steps, stopper.interrupted
        players: list[EpisodePlayer] = []
        recorder: Recorder | None = None
        with undisturbed():
            if options.evaluate_every:
                new_env = partial(make_env, params.env_name, tweaked=True, any_actions=True)
                players = evaluation.make_players(new_env, evaluation.EPISODES_BETWEEN)
                closing += [player.env.close for player in players]
            if options.record_every:
                from lib.run import videos  # few runs need it

                replayer = videos.EpisodeReplayer(params.env_name)
                closing.append(replayer.close)
                recorder = videos.Recorder(replayer, folder.path, options.record_every, episodes, speed.paused, stopped)

        # Restore all but the loop. This changes no file, because the run may still be refused.
        saved = {**save, **{name: figure for name, figure in figures.items() if isinstance(figure, Stateful)}}
        if isinstance(params, Hyperparameters) and not params.checkpoint_replay:
            saved.pop("replay", None)
        objects: dict[str, Stateful] = {"source": source, "episodes": episodes, **saved}
        content = checkpoint.newest(folder.checkpoints)  # of the checkpoint; {} without one
        warm_up = 0 if "replay" in content else params.warm_up  # agent steps until learning starts
        if content:
            if options.new_episodes:
                content["source"] = without_actions(content["source"])
            checkpoint.restore(objects, content)
            log.info("Resumed at step %s.", f"{source.steps_done:,}")
            if stopper.interrupted():
                raise UsageError(
                    f"the time limit of {options.time_limit} s ended the restore, which needs about "
                    f"{since_process_start() - began:.0f} s; give more, or --new-episodes"
                )
        elif options.init:
            checkpoint.load_initial_weights(options.init, saved)
        if options.resume:
            if not content:
                log.info("The run was stopped before its first checkpoint and starts again from the beginning.")
            source.start()
        tracker: Tracker | None = None
        if options.track:
            from lib.run import tracking

            settings = {"script": run_name, "seed": options.seed, **options.knobs, **dataclasses.asdict(params)}
            tracker = tracking.start(options.track, folder.path, settings, steps)
            undo.callback(tracker.attempt, tracker.close, 1)
        if options.resume:  # the run is accepted, and its files change from here on
            folder.add_session(options.device, options.knobs)
            checkpoint.restore_files(folder, content.get("files", {}), source.steps_done, episodes.count)
        board = TensorBoard(folder.path, tracker)
        undo.callback(board.close)

        # Handlers of an event run in the order in which they are attached.
        register_events(engine)
        loop: dict[str, Stateful] = {"average": board.average, "random": RandomState(options.device)}
        loop["iteration"] = checkpoint.Iteration(engine)
        if content:
            # When the loop starts, ignite resets the counter of iterations and the average. No handler draws random
            # numbers between this one and the first batch. A copy, because the content keeps the file open.
            content = copy.deepcopy({name: content[name] for name in loop})
            engine.add_event_handler(Events.EPOCH_STARTED(once=1), partial(checkpoint.restore, loop, content))
            # It has nothing to learn if it was stopped before its result or its evaluation was written.
            end = stopper.check if episodes.solved is None else stopper.solved
            engine.add_event_handler(Events.EPOCH_STARTED(once=1), end)
        folder.flush = board.writer.flush
        objects |= {**loop, "files": folder}
        if isinstance(params, Hyperparameters) and params.learning_rate_final is not None:
            _attach_decay(engine, params, saved["optimizer"], source)
        speed.attach(engine)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=20), memory.Trimmer())
        stopper.watch_loss(engine)  # before all that record or save an iteration
        engine.add_event_handler(Events.ITERATION_COMPLETED, episodes)
        board.attach_all(engine, speed, extra_metrics, figures)
        if net is not None and options.evaluate_every:
            arguments = GreedyPolicy(net), players, options.seed, steps, speed.paused, stopped
            evaluation.attach_evaluation(engine, options.evaluate_every, *arguments)
        engine.add_event_handler(speed.every, source.report, folder.path)
        if recorder is not None and tracker is not None:
            recorder.on_video = partial(tracker.attempt, tracker.upload)
        episode_file = EpisodeFile(folder.path / "episodes.csv", episodes, recorder or (lambda: ""))
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_file)

        if stopper.step_limit < warm_up:
            log.warning("The limit, step %d, is within the warm-up (replay_initial, %d).", stopper.step_limit, warm_up)

        def learning_started() -> None:
            folder.result.unlink(missing_ok=True)
            if warm_up and speed.warm_up.steps:  # an iterator of the user's own does not count them
                log.info("Replay warm-up: %s steps, %.0f steps/s.", f"{speed.warm_up.steps:,}", speed.warm_up.rate)
            ends = "stops; without save={'net': net} in setup_ignite, no network is saved"
            log.info("Learning. Ctrl-C %s.", ends if net is None else "stops and saves")

        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, learning_started)
        if not options.quiet:
            console.Screen(episodes, speed, warm_up, stopper.step_limit, time_limit).attach(engine)
        stopper.watch_ends(engine)  # after the episodes: one that solves the game at the limit counts
        if net is not None:  # after all that changes the state
            checkpoint.Checkpoints(objects, folder.checkpoints, params.checkpoint_every, stopper).attach(engine)

        def finish(engine: Engine) -> None:
            """Write the result, close everything, evaluate the network, draw the learning curve, unlock the folder."""
            reason = stopper.reason or ENDED
            engine.state.stopped = reason  # type: ignore[attr-defined]
            result = read_json(folder.result)
            if result.get("steps") != episodes.steps:  # unless the run was resumed only for its evaluation
                result = _describe_result(engine, episodes, speed) | source.report(folder.path)
            result["stopped"] = reason
            write_json(folder.result, result)
            board.write_end(result)
            console.log_result(engine, reason, episodes, speed, source.frame_skip)
            if "actors" in result:
                log.info(result["actors"])
            board.close()
            close_all(closing)
            stopper.release_signals()
            at_error.pop_all()
            engine.add_event_handler(Events.STARTED, _refuse_another_run)
            is_complete = reason == SOLVED or (reason == STEPS and options.stop_after is None)
            is_due = is_complete and "evaluation" not in result and episodes.count and not stopper.signals
            try:
                if net is not None and is_due:
                    arguments = net, params.env_name, options, folder, list(episodes.returns), result
                    _optional("evaluation", evaluation.evaluate_at_end, *arguments)
                if episodes.count:
                    from lib.run import curve  # late, because pandas and matplotlib take a second

                    _optional("learning curve", curve.draw_curve, folder.path, params.stop_reward)
                if tracker is not None:
                    _optional("tracking", tracker.finish, folder.path, result)
            finally:
                folder.close()  # not before: a run that is resumed meanwhile would have its result overwritten
            is_saved = bool(checkpoint.numbered(folder.checkpoints, "step"))
            console.log_next_steps(folder.path, params, options, episodes, reason, is_saved)

        def explain(kind: object, error: BaseException | None, trace: object) -> None:
            """Add the command that continues the run to an error, but not to Ctrl-C."""
            if isinstance(error, Exception) and checkpoint.numbered(folder.checkpoints, "step"):
                command = console.continue_command(path, params.env_name, options, options.stop_after)
                error.add_note(f"To continue: {command}")

        def abandon(engine: Engine, error: BaseException) -> None:
            """Close everything after an error, unlock the run, so that it can be resumed, and raise the error again.

            ignite does not raise an error that has a handler. What a handler raises is reported to all of them again.
            """
            stopper.release_signals()
            with suppress(OSError):  # such as a full disk, which may be the error
                at_error.__exit__(type(error), error, None)
            engine.add_event_handler(Events.STARTED, _refuse_another_run)
            raise error

        # After the handlers of the checkpoints: the state is saved before slow trackers and pictures.
        engine.add_event_handler(Events.COMPLETED, finish)
        attach_as_last(engine, Events.EXCEPTION_RAISED, abandon)
        undo.push(explain)
        at_error = undo.pop_all()
    return folder


def _refuse_another_run() -> None:
    raise RuntimeError("this run has ended; resume it, or start a new one, with a new Engine")


def _attach_decay(engine: Engine, params: Hyperparameters, optimizer: object, source: ExperienceSource) -> None:
    """Let the learning rate fall linearly from `learning_rate` to `learning_rate_final` over `learning_rate_steps`."""
    assert isinstance(optimizer, Optimizer)
    assert params.learning_rate_final is not None
    fall = 1.0 - params.learning_rate_final / params.learning_rate
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])

    @engine.on(Events.ITERATION_STARTED)
    def adapt() -> None:
        share = 1.0 - fall * min(1.0, source.steps_done / params.learning_rate_steps)
        for group in optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]


def _describe_result(engine: Engine, episodes: Episodes, speed: Speed) -> dict[str, object]:
    """Return the content of result.json. JSON has neither NaN nor infinity, so None stands for them."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "steps": episodes.steps,
        "iterations": engine.state.iteration,
        "episodes": episodes.count,
        "mean_100": finite(episodes.mean),
        "best_mean": finite(episodes.best_mean),
        "reached": episodes.reached,
        "seconds": episodes.seconds,
        "this_process": {
            "seconds": since_process_start(),
            "learning_since": speed.learning_since,
            "training_steps": speed.training.steps,
            "training_seconds": speed.training.seconds,
            "warm_up_steps_per_second": finite(speed.warm_up.rate),
            "steps_per_second": finite(speed.training.rate),
            "last_1000_steps_per_second": finite(speed.recent),
            "parts": speed.parts,
        },
    }


def _optional(name: str, work: Callable[..., object], *arguments: object) -> None:
    """Do work that Ctrl-C or an error may end, because the run is saved. The program goes on."""
    try:
        work(*arguments)
    except KeyboardInterrupt:
        log.info("The %s was stopped; the run is saved.", name)
    except Exception as error:
        log.warning("The %s failed; the run is saved. %s", name, error, exc_info=not isinstance(error, UsageError))
