"""setup_ignite: attach everything that a run needs around its loop.

`_Setup` has a method for each step. setup_ignite calls them from top to bottom, because the order in which handlers are
attached is the order in which they run. The objects of a run are in run_parts.py, what its checkpoints hold in
saved_state.py, and its end in run_end.py.
"""

import logging
import multiprocessing
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

from ignite.engine import Engine, Events
from torch import nn

from lib.errors import UsageError
from lib.experience.interface import ExperienceSource, Stopped
from lib.hyperparameters import Hyperparameters, RunParameters, as_hyperparameters
from lib.run import checkpoint, console, learning_rate, tracking, videos
from lib.run.console import Screen, continue_command
from lib.run.episodes import EpisodeFile, first_returns
from lib.run.evaluation import FinalEvaluation
from lib.run.events import EpisodeEvents, TrainingEvents, attach_periods
from lib.run.folder import RunFolder
from lib.run.options import RunOptions, options_of_book
from lib.run.ptan_source import RewardsSource, adapt_source
from lib.run.restoring import Stateful, require_readable
from lib.run.run_end import RunEnd
from lib.run.run_parts import RunParts
from lib.run.saved_state import SavedState
from lib.run.tensorboard import FigureFunction
from lib.system import memory
from lib.system.log import start_console
from lib.system.progress import show_progress

log = logging.getLogger(__name__)

_engines: weakref.WeakSet[Engine] = weakref.WeakSet()  # those that setup_ignite was called with


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

    A program without cli.main may run the engine again after Ctrl-C or an error. So the environments that this function
    makes for evaluations and videos stay open until the program ends.

    Args:
        engine: training engine. Its process function returns at least {"loss": float}. Every value is written as
            train/<name>. If a value is a function, its result at that moment is written.
        params: hyperparameters, or a namespace with the book's fields.
        exp_source: experience source, or a plain PTAN source.
        run_name: name of the script.
        extra_metrics: names of further engine.state.metrics to write as train/<name>.
        args: options from the command line; None for a new run with the defaults, in runs/ of the current folder.
        save: objects that a checkpoint holds, by name, at least "net"; None for no checkpoints. Their state_dicts
            consist of tensors and plain values without NaN. If a run is resumed, they are restored before this function
            returns. A run that is solved, or ends at max_steps, ends with an evaluation of "net".
        figures: functions that draw a figure for TensorBoard, by name. Those with a state_dict are saved, too.

    Returns:
        The run folder. When the run ends, engine.state.stopped is a key of stopping.EXIT_CODES.

    Raises:
        UsageError: if the run to resume is in use, at its limit or changed, if its episodes cannot be recorded or
            evaluated, or if the network of --init does not fit; if a run without `save` is to be resumed, or has --init
            or --evaluate-every.
        Fault: if no checkpoint of the run to resume can be read.
        TypeError: if checkpoints are saved and exp_source is a plain PTAN source, if `save` has no "net", or if
            extra_metrics is one text.
        ValueError: if the engine already has a run, if a field of the hyperparameters is missing or out of range, or if
            the learning rate has to decay and `save` has no "optimizer".
        RuntimeError: if it is called while a child process imports the main program, which has no
            `if __name__ == "__main__":`.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "setup_ignite was called while a child process imports this program; put the lines that start the run "
            'under if __name__ == "__main__":'
        )
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
    parts = RunParts(engine, checked, source, run_name, options, save, figures or {}, is_book_script=args is None)
    _engines.add(engine)
    setup = _Setup(parts)
    try:
        setup.restore_and_open()
        setup.attach_learning_rate()
        setup.attach_telemetry(extra_metrics)
        setup.attach_evaluation()
        setup.attach_episode_records()
        setup.attach_console()
        setup.attach_final_evaluation()
        setup.attach_stopping()
        setup.attach_checkpoints()
        setup.attach_end()
    except Exception:
        parts.abort_setup()
        parts.discard_if_new()
        raise
    except BaseException:  # of a signal; the run can be resumed
        parts.abort_setup()
        raise
    return parts.run


class _Setup:
    """A run that is being set up."""

    def __init__(self, parts: RunParts):
        self._parts = parts
        self._saved = SavedState(parts)
        self._final_evaluation: FinalEvaluation | None = None
        self._checkpointer: checkpoint.Checkpointer | None = None

    def restore_and_open(self) -> None:
        """Restore a resumed run, and open the run's files. A refused resume changes no file."""
        parts = self._parts
        content = self._saved.restore()
        if parts.options.resume:
            parts.source_is_started = True
            parts.source.start()
        if parts.options.track:
            config = {"script": parts.script, **self._saved.settings().state_dict()}
            parts.tracker = tracking.start(parts.options.track, parts.run.path, config, parts.steps)
        if parts.options.resume:
            parts.run.add_session()
        self._saved.restore_files(content)
        parts.engine.add_event_handler(TrainingEvents.LEARNING_STARTED, parts.run.discard_result)
        parts.open_board()
        self._saved.attach(content)

    def attach_learning_rate(self) -> None:
        """Decay the learning rate to Hyperparameters.learning_rate_final."""
        parts = self._parts
        if isinstance(parts.params, Hyperparameters) and parts.params.learning_rate_final is not None:
            learning_rate.attach_decay(parts.engine, parts.params, (parts.save or {}).get("optimizer"), parts.steps)

    def attach_telemetry(self, extra_metrics: Sequence[str]) -> None:
        """Measure the speed, count episodes, write TensorBoard's scalars and figures."""
        parts = self._parts
        parts.speed.attach(parts.engine)
        parts.engine.add_event_handler(Events.ITERATION_COMPLETED(every=20), memory.Trimmer())
        parts.stopper.watch_loss(parts.engine)
        parts.episodes.attach(parts.engine)
        parts.board.attach(parts.engine, parts.speed, extra_metrics)
        attach_periods(parts.engine)
        if parts.figures:
            parts.board.attach_figures(parts.engine, parts.steps, parts.figures)

    def attach_evaluation(self) -> None:
        """Evaluate the network during training, with --evaluate-every."""
        parts = self._parts
        if parts.periodic_evaluation is not None:
            parts.board.attach_evaluation(parts.engine, parts.periodic_evaluation, parts.steps)
            parts.periodic_evaluation.attach(parts.engine, self._untimed)

    @contextmanager
    def _untimed(self) -> Iterator[None]:
        """Do not count the time of an evaluation as training. Save the run if the evaluation fails."""
        try:
            with self._parts.speed.paused():
                yield
        except Stopped:
            raise
        except Exception as error:
            assert self._checkpointer is not None
            self._checkpointer.rescue(self._parts.engine, error)
            raise

    def attach_episode_records(self) -> None:
        """Write episodes.csv, and videos with --record-every."""
        parts = self._parts
        episode_file = EpisodeFile(parts.run.path / "episodes.csv", parts.episodes)
        if parts.replayer is not None and parts.options.record_every:
            recorder = videos.Recorder(
                parts.replayer,
                parts.run.path,
                parts.options.record_every,
                parts.episodes,
                parts.source.native,
                parts.speed.paused,
                parts.stopper.interrupted,
            )
            if parts.tracker is not None:
                recorder.on_video = parts.tracker.send
            episode_file.video = lambda: recorder.video
            parts.engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, recorder)
        parts.engine.add_event_handler(EpisodeEvents.EPISODE_COMPLETED, episode_file)

    def attach_console(self) -> None:
        """Log the run on the console."""
        parts = self._parts
        console.attach_start(parts.engine, parts.speed, parts.warm_up, parts.save is not None)
        if parts.options.quiet:
            return
        Screen(
            parts.source,
            parts.episodes,
            parts.speed,
            parts.warm_up,
            first_returns(parts.run.path, Screen.FIRST),
            parts.stopper.step_limit,
            parts.time_limit,
        ).attach(parts.engine)

    def attach_final_evaluation(self) -> None:
        """Prepare the final evaluation."""
        parts = self._parts
        if parts.save is None:
            return
        self._final_evaluation = FinalEvaluation(
            parts.policy(),
            parts.params,
            parts.options,
            parts.run,
            parts.episodes,
        )

    def attach_stopping(self) -> None:
        """Stop when the game is solved, at a limit, or on a signal."""
        parts = self._parts
        parts.stopper.watch_ends(parts.engine)

    def attach_checkpoints(self) -> None:
        """Save checkpoints."""
        parts = self._parts
        parts.engine.add_event_handler(Events.EXCEPTION_RAISED, self._on_error)
        if parts.save is None:
            return
        if not parts.options.resume:
            # The replay may be large. This project's own can be read.
            checked = {name: each for name, each in parts.save.items() if name != "replay"}
            parts.engine.add_event_handler(Events.ITERATION_COMPLETED(once=1), lambda engine: require_readable(checked))
        self._checkpointer = checkpoint.Checkpointer(
            self._saved.objects(),
            parts.run.checkpoints,
            parts.params.checkpoint_every,
            parts.stopper,
            parts.params.warm_up > 0,
            partial(continue_command, parts.run.path, parts.params.env_name, parts.options, parts.options.stop_after),
        )
        self._checkpointer.attach(parts.engine)

    def _on_error(self, engine: Engine, error: BaseException) -> None:
        """Remove a new run that was refused."""
        if isinstance(error, UsageError):
            self._parts.discard_if_new()

    def attach_end(self) -> None:
        """Write the result, close everything, evaluate the network, draw the learning curve, unlock the folder."""
        RunEnd(self._parts, self._final_evaluation).attach()
