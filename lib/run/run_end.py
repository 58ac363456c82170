"""The end of a run: write the result, close everything, evaluate, draw the learning curve, unlock the folder."""

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from ignite.engine import Engine, Events

from lib.envs.checked_env import Closable, close_all
from lib.errors import Fault, UsageError
from lib.run import checkpoint_files, console
from lib.run.curve import draw_or_warn
from lib.run.evaluation import FinalEvaluation
from lib.run.events import attach_as_last
from lib.run.result import describe_result
from lib.run.run_parts import RunParts
from lib.run.stopping import ENDED, NOT_FINITE, SOLVED, STEPS
from lib.system import memory

log = logging.getLogger(__name__)


class RunEnd:
    """Handlers for the end of a run.

    Args:
        parts: parts of the run.
        final_evaluation: evaluation of a run that is solved or has reached max_steps; None if the run has no
            checkpoints.
    """

    def __init__(self, parts: RunParts, final_evaluation: FinalEvaluation | None):
        self._parts = parts
        self._final_evaluation = final_evaluation
        self._failure: BaseException | None = None

    def attach(self) -> None:
        """Attach the handlers, after those of the checkpoints: the state is saved before slow trackers and pictures."""
        engine = self._parts.engine
        engine.add_event_handler(Events.COMPLETED, self._completed)
        if not self._parts.options.owns_process:
            attach_as_last(engine, Events.COMPLETED, self._return_to_script)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._abandon)
        attach_as_last(engine, Events.EXCEPTION_RAISED, self._raise)

    def _completed(self, engine: Engine) -> None:
        parts = self._parts
        stopped = parts.stopper.reason or ENDED
        engine_state: Any = engine.state
        engine_state.stopped = stopped
        result = describe_result(engine, stopped, parts.episodes, parts.speed, parts.run.read_result())
        self._write_result(result)
        self._close()
        try:
            self._attempt("evaluation", partial(self._evaluate, stopped, result))
            self._attempt("learning curve", self._draw_curve)
            if parts.tracker is not None:
                self._attempt("tracking", partial(parts.tracker.finish, parts.run.path))
        finally:
            parts.run.close()  # not before: a run that is resumed meanwhile would have its result overwritten
        self._log_next_steps(stopped)

    def _return_to_script(self, engine: Engine) -> None:
        """Let a program that goes on after its run have its signals, and start another loop with the engine."""
        if self._parts.is_book_script:
            _forget_loop(engine)

    def _evaluate(self, stopped: str, result: Mapping[str, Any]) -> None:
        """Evaluate a run that is solved, or has ended at max_steps and not at --stop-after."""
        evaluation = self._final_evaluation
        is_complete = stopped == STEPS and self._parts.options.stop_after is None
        if evaluation is None or not (stopped == SOLVED or is_complete) or not self._parts.episodes.count:
            return
        if not self._parts.stopper.signals:
            evaluation.write(result)

    def _attempt(self, name: str, work: Callable[[], object]) -> None:
        """Do work that Ctrl-C or an error may end, because the run is saved. Lack of disk or memory is raised."""
        try:
            work()
        except KeyboardInterrupt:
            log.info("The %s was stopped; the run is saved.", name)
        except Exception as error:  # such as one of the environment
            if isinstance(error, OSError) or memory.shortage(error):
                raise
            traced = not isinstance(error, UsageError | Fault)
            log.warning("The %s failed; the run is saved. %s", name, error, exc_info=traced)

    def _write_result(self, result: Mapping[str, Any]) -> None:
        parts = self._parts
        parts.run.write_json("result.json", dict(result))
        parts.board.write_end(self._hyperparameters(), result, parts.steps())
        console.log_result(
            parts.engine,
            result["stopped"],
            parts.episodes,
            parts.speed,
            parts.source.frame_skip,
        )

    def _hyperparameters(self) -> dict[str, Any]:
        """Return seed, script, its options and the hyperparameters, for TensorBoard."""
        parts = self._parts
        first = {"seed": parts.options.seed, "script": parts.script}
        return first | parts.options.knobs | dataclasses.asdict(parts.params)

    def _close(self) -> None:
        """Close everything."""
        parts = self._parts
        parts.board.close()
        parts.source.close()
        parts.stopper.release_signals()
        close_all(self._no_longer_needed())

    def _no_longer_needed(self) -> Sequence[Closable]:
        """Return the environments of evaluations and videos, unless a notebook may run the engine again."""
        return self._parts.opened if self._parts.options.owns_process else ()

    def _abandon(self, engine: Engine, error: BaseException) -> None:
        """Close everything after an error, draw the curve, and unlock the run, so that it can be resumed.

        ignite may report the same error twice.
        """
        parts = self._parts
        at_once = isinstance(error, KeyboardInterrupt) and parts.options.owns_process
        is_new = error is not self._failure and not at_once
        self._failure = error
        if is_new and parts.tracker is not None:
            parts.tracker.fail()
        with suppress(OSError):
            parts.board.close()
        if is_new:
            close_all([parts.source, *self._no_longer_needed()])
        if is_new and not isinstance(error, KeyboardInterrupt) and parts.run.path.exists():
            self._draw_curve()
        with suppress(OSError):
            parts.run.close()
        parts.stopper.release_signals()

    def _raise(self, engine: Engine, error: BaseException) -> None:
        """Raise the error again. If an error has a handler, ignite ends the run without raising it.

        ignite reports the error a second time then, to all handlers.
        """
        _forget_loop(engine)
        raise error

    def _draw_curve(self) -> None:
        if not self._parts.episodes.count:
            log.info("There is no learning curve, because no episode has ended yet.")
            return
        draw_or_warn(self._parts.run.path, self._parts.params.stop_reward)

    def _log_next_steps(self, stopped: str) -> None:
        parts = self._parts
        commands = console.next_steps(
            parts.run.path,
            parts.params.env_name,
            parts.options,
            saved=bool(checkpoint_files.numbered(parts.run.checkpoints, "step")),
            has_episode=parts.episodes.count > 0,
            complete=parts.episodes.solved is not None or parts.steps() >= parts.params.max_steps,
            diverged=stopped == NOT_FINITE,
            steps=parts.steps(),
        )
        for purpose, command in commands.items():
            log.info("%s  # %s", command, purpose)


def _forget_loop(engine: Engine) -> None:
    """Let the next engine.run begin a loop of its own. ignite would go on with the one that an error has ended."""
    engine._internal_run_generator = None
