"""The end of a run: its reasons, its exit codes, and signals."""

import faulthandler
import math
import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from ignite.engine import Engine, Events

from lib.errors import CallInterrupted, Fault, Interrupted
from lib.run.episodes import EpisodeEvents, TrainingEvents
from lib.system.clock import since_process_start
from lib.system.processes import SIGNALS

# Reasons for the end of a run, besides the names of the signals.
SOLVED, STEPS, TIME = "solved", "step limit", "time limit"
NOT_FINITE, ENDED = "loss not finite", "ended by the script"

EXIT_CODES = {SOLVED: 0, STEPS: 0, TIME: 0, ENDED: 0, NOT_FINITE: 1} | {number.name: 128 + number for number in SIGNALS}


class Stopper:
    """End the run when it is solved, at a limit, on a loss that is not finite, or on a signal.

    On a signal the current iteration is completed and the state is saved. A second Ctrl-C ends the process at once.
    A further SIGTERM or SIGHUP is ignored, because launchers and closing terminals may repeat theirs.

    A call of an environment that does not return is interrupted 2 * GRACE seconds after a signal or the time limit,
    and the steps since the last checkpoint are lost. Native code cannot be interrupted. An iteration, or a step of
    an evaluation, that takes longer than PATIENCE seconds prints the line at which each thread is.

    `steps` returns the agent steps so far. `time_limit` counts in seconds from the start of this process.
    """

    GRACE = 5.0  # seconds
    PATIENCE = 300.0  # seconds

    def __init__(self, steps: Callable[[], int], step_limit: int, time_limit: float | None):
        self.steps, self.step_limit, self.time_limit = steps, step_limit, time_limit
        self.reason: str | None = None  # a key of EXIT_CODES as soon as the run has a reason to end
        self.signals: list[int] = []  # numbers of the signals that the run has received
        self._learning = False
        self._previous_handlers: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}
        self._report_due = math.inf  # when the report of a long iteration is next postponed, by time.monotonic()
        self._call: FrameType | None = None  # call of an environment at the last alarm

    def watch_loss(self, engine: Engine) -> None:
        """Stop on a loss that is not finite. Attach this before the handlers that record or save an iteration."""

        def check_loss(engine: Engine) -> None:
            if not math.isfinite(engine.state.output["loss"]):  # type: ignore[index]
                self.reason = NOT_FINITE  # even if there was another reason, because the state must not be saved
                engine.terminate()

        engine.add_event_handler(Events.ITERATION_COMPLETED, check_loss)

    def watch_ends(self, engine: Engine) -> None:
        """Stop when solved, at a limit, or on a signal. Attach this after the counter of the episodes."""
        engine.add_event_handler(EpisodeEvents.BOUND_REWARD_REACHED, self.solved)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self.check)
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self._learning_started)
        engine.add_event_handler(Events.STARTED, self._start)

    def should_stop(self) -> bool:
        """Return whether the run has a reason to end, for code that waits within an iteration."""
        self._postpone_report()
        if self._is_over_time():
            self.reason = self.reason or TIME
        return self.reason is not None

    def interrupted(self) -> bool:
        """Return whether the run has to end at once, so that optional work, such as an evaluation, is skipped."""
        self._postpone_report()
        return bool(self.signals) or self._is_over_time() or self.reason == NOT_FINITE

    def _is_over_time(self) -> bool:
        return self.time_limit is not None and since_process_start() > self.time_limit

    def solved(self, engine: Engine) -> None:
        """End the run as solved, even if it has reached a limit in the same iteration."""
        engine.state.solved = True  # type: ignore[attr-defined]
        self.reason = SOLVED if self.reason in (None, TIME, STEPS) else self.reason
        engine.terminate()

    def check(self, engine: Engine) -> None:
        """End the run if it has reached a limit or received a signal. The update of this iteration is kept."""
        if self.steps() >= self.step_limit:
            self.reason = self.reason or STEPS
        if self.should_stop():
            engine.terminate()

    def release_signals(self) -> None:
        """Restore the previous signal handlers. Called when the end of the run is saved, or an error has ended it."""
        if self._previous_handlers:
            signal.setitimer(signal.ITIMER_REAL, 0)
            faulthandler.cancel_dump_traceback_later()
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)
        self._previous_handlers, self._call, self._report_due = {}, None, math.inf

    def _learning_started(self, engine: Engine) -> None:
        self._learning = True

    def _start(self, engine: Engine) -> None:
        engine.state.solved = False  # type: ignore[attr-defined]
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread can handle signals
        handlers = {signal.SIGALRM: self._on_alarm} | dict.fromkeys(SIGNALS, self._on_signal)
        if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
            del handlers[signal.SIGHUP]  # under nohup
        self._previous_handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        self._report_due = 0.0
        self._postpone_report()
        if self.time_limit is not None:
            left = max(0.0, self.time_limit - since_process_start())
            signal.setitimer(signal.ITIMER_REAL, left + self.GRACE, self.GRACE)

    def _postpone_report(self) -> None:
        """Postpone the report of a long iteration or step of an evaluation, because one has ended."""
        if time.monotonic() > self._report_due:  # not every time: the call takes 50 microseconds
            self._report_due = time.monotonic() + 1.0
            faulthandler.dump_traceback_later(self.PATIENCE, file=2)

    def _on_alarm(self, number: int, frame: FrameType | None) -> None:
        """Interrupt a call of an environment that was running at the last alarm, too."""
        call = frame
        while call is not None and not call.f_globals.get("__name__", "").startswith("lib.envs."):
            call = call.f_back
        if frame is None or call is None or call is not self._call:
            self._call = call
            return
        when = f"after {signal.Signals(self.signals[0]).name}" if self.signals else "before the time limit"
        raise CallInterrupted(
            f"a call of the environment did not return {when}. It was at line {frame.f_lineno} of "
            f"{frame.f_code.co_filename} ({frame.f_code.co_name}). Correct the environment",
            128 + self.signals[0] if self.signals else Fault.exit_code,
        )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.reason = self.reason or signal.Signals(number).name
        self.signals.append(number)
        if not self._learning:
            self.release_signals()
            raise Interrupted(128 + number)
        # Not by the log, because the signal may have interrupted a line of it. "^C" stands on the current line.
        with suppress(OSError):
            os.write(2, b"\nStopping after this update ... (a second Ctrl-C stops at once, without saving)\n")
        signal.signal(signal.SIGINT, self._previous_handlers[signal.SIGINT])
        for other in {signal.SIGTERM, signal.SIGHUP} & self._previous_handlers.keys():
            signal.signal(other, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, self.GRACE, self.GRACE)
