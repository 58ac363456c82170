"""setup_ignite: attach everything that a run needs around its loop."""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

from ignite.engine import Engine, Events
from torch import nn
from torch.optim import Optimizer

from lib.envs.checked_env import Closable, close_all
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.experience.interface import ExperienceSource
from lib.hyperparameters import Hyperparameters, RunParameters, as_hyperparameters
from lib.run import console, tracking, videos
from lib.run.checkpoint import Checkpoints, Iteration, RunState, Stateful, load_initial_weights, numbered
from lib.run.console import Screen, continue_command
from lib.run.curve import draw_or_warn
from lib.run.episodes import EpisodeFile, Episodes
from lib.run.evaluation import EPISODES_BETWEEN, PeriodicEvaluation, evaluate_at_end
from lib.run.events import EpisodeEvents, TrainingEvents, attach_as_last, attach_periods, register_events
from lib.run.folder import RunFolder, read_json, write_json
from lib.run.options import RunOptions, options_of_book
from lib.run.policy import GreedyPolicy
from lib.run.ptan_source import RewardsSource, adapt_source
from lib.run.speed import Speed
from lib.run.stopping import ENDED, SOLVED, STEPS, Stopper
from lib.run.tensorboard import FigureFunction, TensorBoard
from lib.system import memory
from lib.system.clock import since_process_start
from lib.system.log import start_console
from lib.system.progress import show_progress
from lib.system.seeds import RandomState, undisturbed

log = logging.getLogger(__name__)


def setup_ignite(
    engine: Engine,
    params: RunParameters | SimpleNamespace,
    exp_source: ExperienceSource | RewardsSource,
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
            written as train/<name>. If a value is a function, its result at that moment is written.
        params: hyperparameters, or a namespace with the book's fields.
        exp_source: experience source, or a plain PTAN source, with which no checkpoints are saved.
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
        UsageError: if the run to resume is in use or at its limit, if an option needs `save`, if the environment cannot
            be made again for evaluations or videos, or if a checkpoint does not fit.
        Fault: if no checkpoint of the run to resume can be read.
        TypeError, ValueError: if another argument is wrong.
    """
    start_console()
    params, options = as_hyperparameters(params), args or options_of_book()
    source, net = adapt_source(exp_source, engine, saved=save is not None), _require_network(save, options)
    show_progress(not options.quiet)
    began = 0.0 if options.owns_process else since_process_start()
    time_limit = None if options.time_limit is None else began + options.time_limit
    figures = figures or {}
    opened: list[Closable] = [source]
    with ExitStack() as undo:  # a run that is refused leaves nothing open, no new folder, and the files of an old one
        folder = RunFolder(run_name, params, options, net)
        undo.push(lambda kind, error, trace: folder.leave(is_refused=isinstance(error, Exception)))
        undo.callback(lambda: close_all(opened))
        log.info("Run folder: %s", folder.path)
        stopper = Stopper(lambda: source.steps_done, options.stop_after or params.max_steps, time_limit)
        source.stop_asked = stopper.should_stop
        steps, stopped = stopper.steps, stopper.interrupted
        periodic: PeriodicEvaluation | None = None
        replayer: videos.EpisodeReplayer | None = None
        with undisturbed():
            if net is not None and options.evaluate_every:
                envs = [make_env(params.env_name) for _ in range(EPISODES_BETWEEN)]
                opened += envs
                periodic = PeriodicEvaluation(
                    options.evaluate_every, GreedyPolicy(net), envs, options.seed, steps, stopped
                )
            if options.record_every:
                replayer = videos.EpisodeReplayer(params.env_name)
                opened.append(replayer)

        episodes = Episodes(source, params.stop_reward, params.milestone, began)
        speed = Speed(source, params.log_every)
        saved = {**(save or {}), **{name: figure for name, figure in figures.items() if isinstance(figure, Stateful)}}
        if isinstance(params, Hyperparameters) and not params.checkpoint_replay:
            saved.pop("replay", None)
        state = RunState(folder, {"source": source, "episodes": episodes, "speed": speed, **saved})
        warm_up = state.restore(params.warm_up) if options.resume else params.warm_up
        if source.steps_done:
            log.info("Resumed at step %s.", f"{source.steps_done:,}")
        elif options.init:
            load_initial_weights(options.init, saved)
        if options.resume:
            _require_steps_left(folder, options, episodes, warm_up, stopper.step_limit)
            source.start()
        settings = {"script": run_name, "seed": options.seed, **options.knobs, **dataclasses.asdict(params)}
        tracker: tracking.Tracker | None = None
        if options.track:
            tracker = tracking.start(options.track, folder.path, settings, steps)
            undo.callback(tracker.fail)
        if options.resume:  # the run is accepted, and its files change from here on
            folder.add_session()
            state.restore_files(source.steps_done)
            videos.cut_back(folder.path, episodes.count)
        board = TensorBoard(folder.path, tracker)
        undo.callback(board.close)

        # Handlers of an event run in the order in which they are attached.
        register_events(engine)
        random_state = RandomState(options.device)
        loop: dict[str, Stateful] = {"iteration": Iteration(engine), "average": board.average, "random": random_state}
        if periodic is not None:
            loop["evaluations"] = periodic
        state.attach(engine, loop, board.flush)
        if options.resume:
            engine.add_event_handler(Events.EPOCH_STARTED(once=1), partial(_end_if_done, episodes, stopper))
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, lambda: folder.result.unlink(missing_ok=True))
        if isinstance(params, Hyperparameters) and params.learning_rate_final is not None:
            _attach_decay(engine, params, saved.get("optimizer"), source)
        speed.attach(engine)
        engine.add_event_handler(Events.ITERATION_COMPLETED(every=20), memory.Trimmer())
        stopper.watch_loss(engine)  # before all that record or save an iteration
        episodes.attach(engine)
        board.attach(engine, speed, extra_metrics)
        attach_periods(engine)
        if figures:
            board.attach_figures(engine, steps, figures)
        if periodic is not None:
            board.attach_evaluation(engine, periodic, steps)
            periodic.attach(engine, speed.paused)
        episode_file = EpisodeFile(folder.path / "episodes.csv", episodes)
        if replayer is not None and options.record_every:
            recorder = videos.Recorder(replayer, folder.path, options.record_every, episodes, speed.paused, stopped)
            episode_file.video = lambda: recorder.video
            if tracker is not None:
                recorder.on_video = tracker.send
            engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, recorder)
        engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_file)
        console.attach_start(engine, speed, warm_up, save is not None)
        if not options.quiet:
            Screen(episodes, speed, warm_up, stopper.step_limit, time_limit).attach(engine)
        stopper.watch_ends(engine)  # after the episodes: one that solves the game at the limit counts
        if save is not None:
            Checkpoints(
                state.objects, folder.checkpoints, params.checkpoint_every, stopper, warms_up=params.warm_up > 0
            ).attach(engine)  # after all that changes the state
        Run(settings, params, options, folder, episodes, speed, stopper, board, tracker, net, opened).attach(engine)
        undo.pop_all()
    return folder


@dataclasses.dataclass
class Run:
    """A run that has been set up, and its end."""

    settings: dict[str, Any]  # hyperparameters and options by name
    params: RunParameters
    options: RunOptions
    folder: RunFolder
    episodes: Episodes
    speed: Speed
    stopper: Stopper
    board: TensorBoard
    tracker: tracking.Tracker | None
    net: nn.Module | None  # None if the run has no checkpoints
    opened: list[Closable]  # the source, and environments of evaluations and videos
    has_ended: bool = False

    def attach(self, engine: Engine) -> None:
        """Attach the handlers, after those of the checkpoints: the state is saved before slow trackers and pictures."""
        engine.add_event_handler(Events.STARTED, self._require_first)
        engine.add_event_handler(Events.COMPLETED, self._finish)
        attach_as_last(engine, Events.EXCEPTION_RAISED, self._abandon)

    def _require_first(self) -> None:
        if self.has_ended:
            raise RuntimeError("this run has ended; resume it, or start a new one, with a new Engine")

    def _finish(self, engine: Engine) -> None:
        """Write the result, close everything, evaluate the network, draw the learning curve, unlock the folder."""
        self.has_ended = True
        stopped = self.stopper.reason or ENDED
        state: Any = engine.state
        state.stopped = stopped
        result = read_json(self.folder.result)
        if result.get("steps") == self.episodes.steps:  # a run that was resumed only for its evaluation
            result["stopped"] = stopped
        else:
            result = _describe_result(engine, stopped, self.episodes, self.speed)
        write_json(self.folder.result, result)
        self.board.write_end(self.settings, result, self.episodes.steps)
        console.log_result(engine, stopped, self.episodes, self.speed, self.episodes.exp_source.frame_skip)
        self.board.close()
        close_all(self.opened)
        self.stopper.release_signals()
        is_complete = stopped == SOLVED or (stopped == STEPS and self.options.stop_after is None)
        is_due = is_complete and "evaluation" not in result and self.episodes.count and not self.stopper.signals
        try:
            if self.net is not None and is_due:
                policy, training = GreedyPolicy(self.net), list(self.episodes.returns)
                arguments = policy, self.params.env_name, self.options, self.folder, training
                _optional("evaluation", partial(evaluate_at_end, *arguments))
            if self.episodes.count:
                _optional("learning curve", partial(draw_or_warn, self.folder.path, self.params.stop_reward))
            if self.tracker is not None:
                _optional("tracking", partial(self.tracker.finish, self.folder.path))
        finally:
            self.folder.close()  # not before: a run that is resumed meanwhile would have its result overwritten
        saved, path = bool(numbered(self.folder.checkpoints, "step")), self.folder.path
        commands = console.next_steps(path, self.params, self.options, self.episodes, stopped, saved)
        for purpose, command in commands.items():
            log.info("%s  # %s", command, purpose)

    def _abandon(self, engine: Engine, error: BaseException) -> None:
        """Close everything after an error, draw the curve, unlock the run, so that it can be resumed, and raise again.

        ignite does not raise an error that has a handler. What the handler raises is reported to all handlers again.
        """
        self.stopper.release_signals()
        is_urgent = isinstance(error, KeyboardInterrupt)  # a second Ctrl-C, or one in the warm-up
        if not is_urgent and any(self.folder.checkpoints.glob("step-*.pt")):
            command = continue_command(self.folder.path, self.params.env_name, self.options, self.options.stop_after)
            note = f"To continue: {command}"
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        if not self.has_ended:
            self.has_ended = True
            with suppress(OSError):  # such as a full disk, which may be the error
                self.board.close()
            if not (is_urgent and self.options.owns_process):
                if self.tracker is not None:
                    self.tracker.fail()
                close_all(self.opened)
            if self.episodes.count and not is_urgent:
                draw_or_warn(self.folder.path, self.params.stop_reward)
            self.folder.leave(is_refused=isinstance(error, UsageError) and not self.episodes.steps)
        raise error


def _require_network(save: Mapping[str, Stateful] | None, options: RunOptions) -> nn.Module | None:
    """Return the network of a run that saves checkpoints; None for a run without `save`."""
    net = (save or {}).get("net")
    if isinstance(net, nn.Module):
        return net
    if save is not None:
        raise TypeError(f"save['net'] is {type(net).__name__}; it has to be the network, an nn.Module")
    for name in ("resume", "init", "evaluate_every"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} needs the network, which this script does not pass to setup_ignite; "
                "leave it out, or pass save={'net': net}"
            )
    return None


def _require_steps_left(
    folder: RunFolder, options: RunOptions, episodes: Episodes, warm_up: int, step_limit: int
) -> None:
    """Refuse a resumed run at its step limit, unless its result or its final evaluation is still missing."""
    result = read_json(folder.result)
    is_evaluated_at_end = episodes.solved is not None or options.stop_after is None
    if episodes.steps + warm_up >= step_limit and result and ("evaluation" in result or not is_evaluated_at_end):
        filling = f" and first fills its replay with {warm_up:,} more steps" if warm_up else ""
        raise UsageError(f"{folder.path} is already at step {episodes.steps:,}{filling}; give a larger --stop-after")


def _end_if_done(episodes: Episodes, stopper: Stopper, engine: Engine) -> None:
    """End a resumed run that has nothing to learn: it was stopped before its result or its evaluation was written."""
    if episodes.solved is None:
        stopper.check(engine)
    else:
        stopper.solved(engine)


def _attach_decay(engine: Engine, params: Hyperparameters, optimizer: object, source: ExperienceSource) -> None:
    """Let the learning rate fall linearly from `learning_rate` to `learning_rate_final` over `learning_rate_steps`."""
    if not isinstance(optimizer, Optimizer):
        raise ValueError("learning_rate_final needs an optimizer in `save`, as {..., 'optimizer': optimizer}")
    assert params.learning_rate_final is not None
    fall = 1.0 - params.learning_rate_final / params.learning_rate
    for group in optimizer.param_groups:
        group.setdefault("initial_lr", group["lr"])

    def adapt() -> None:
        share = 1.0 - fall * min(1.0, source.steps_done / params.learning_rate_steps)
        for group in optimizer.param_groups:
            group["lr"] = share * group["initial_lr"]

    engine.add_event_handler(Events.ITERATION_STARTED, adapt)


def _describe_result(engine: Engine, stopped: str, episodes: Episodes, speed: Speed) -> dict[str, Any]:
    """Return the content of result.json. JSON has neither NaN nor infinity, so None stands for them."""

    def finite(value: float) -> float | None:
        return value if math.isfinite(value) else None

    return {
        "stopped": stopped,
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


def _optional(name: str, work: Callable[[], object]) -> None:
    """Do work that Ctrl-C or an error may end, because the run is saved. The program goes on."""
    try:
        work()
    except KeyboardInterrupt:
        log.info("The %s was stopped; the run is saved.", name)
    except Exception as error:
        is_plain = isinstance(error, UsageError | Fault)
        log.warning("The %s failed; the run is saved. %s", name, error, exc_info=not is_plain)
