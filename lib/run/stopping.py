"""Why and how a run ends, and which exit code tells."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers import TerminateOnNan, TimeLimit

from lib.run.events import EpisodeEvents, TrainingEvents
from lib.system.clock import since_process_start
from lib.system.processes import SIGNALS

SOLVED, STEPS, TIME, NOT_FINITE = "solved", "step limit", "time limit", "loss not finite"


ENDED = "ended by the script"


EXIT_CODES = {SOLVED: 0, STEPS: 0, TIME: 0, ENDED: 0, NOT_FINITE: 1} | {number.name: 128 + number for number in SIGNALS}


class Interrupted(BaseException):
    """A signal came before there was anything to save."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Stopper:
    """Ends the run when it is solved, at a limit, on a loss that is no number, or on a signal.

    A signal lets the iteration end and the state be saved; a second one ends the process at once.

    Args:
        steps: function () -> agent steps so far.
        step_limit: agent steps to stop at.
        time_limit: seconds of this process to stop after, or None.

    Attributes:
        reason: a key of EXIT_CODES once the run has been told to end, else None.
    """

    def __init__(self, steps: Callable[[], int], step_limit: int, time_limit: int | None):
        self.steps = steps
        self.step_limit = step_limit
        self.time_limit = time_limit
        self.reason: str | None = None
        self._learning = False
        self._previous: dict[int, Any] = {}

    def watch_loss(self, engine: Engine) -> None:
        """Attach before all that records or saves an iteration: they ask `reason` whether its state is a good one."""
        self._attach(engine, TerminateOnNan(lambda output: output["loss"]), NOT_FINITE)

    def watch_ends(self, engine: Engine) -> None:
        """Attach after the episodes have been counted: solved goes before a limit reached in the same iteration."""
        if self.time_limit is not None:
            limit = TimeLimit(self.time_limit)
            limit.start_time -= since_process_start()
            self._attach(engine, limit, TIME)
        engine.add_event_handler(EpisodeEvents.BOUND_REWARD_REACHED, self.solved)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self._learning_started)
        engine.add_event_handler(Events.STARTED, self._catch_signals)

    def asked(self) -> bool:
        """Whether the run has been told to end, or is beyond its time: for what waits in the middle of an iteration."""
        if self.time_limit is not None and since_process_start() > self.time_limit:
            self.reason = self.reason or TIME
        return self.reason is not None

    def interrupted(self) -> bool:
        """Whether a signal has told the run to end: what can be left out is left out then."""
        return self.reason in {number.name for number in SIGNALS}

    def solved(self, engine: Engine) -> None:
        """End the run as solved, at its very beginning if an earlier process solved it."""
        self._stop(engine, SOLVED)

    def release_signals(self) -> None:
        """Give the signals back to whoever had them; called once the end of the run is saved."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _attach(self, engine: Engine, handler: Any, reason: str) -> None:
        handler.logger.disabled = True  # the run itself says why it ends

        def watch(engine: Engine) -> None:
            before = engine.should_terminate
            handler(engine)
            if engine.should_terminate and not before:
                # A bad state is bad whatever else was to end the run.
                self.reason = reason if reason == NOT_FINITE else self.reason or reason

        engine.add_event_handler(Events.ITERATION_COMPLETED, watch)

    def _stop(self, engine: Engine, reason: str) -> None:
        self.reason = self.reason or reason
        engine.terminate()

    def _iteration_completed(self, engine: Engine) -> None:
        if self.steps() >= self.step_limit:
            self._stop(engine, STEPS)
        elif self.reason is not None:  # a signal came; ending in the middle of an iteration would lose its learning
            engine.terminate()

    def _learning_started(self, engine: Engine) -> None:
        self._learning = True

    def _catch_signals(self, engine: Engine) -> None:
        def on_signal(number: int, frame: Any) -> None:
            self.reason = self.reason or signal.Signals(number).name
            if not self._learning:
                self.release_signals()
                raise Interrupted(number)
            for known, handler in self._previous.items():
                # A closing terminal says so more than once.
                hangs_up = signal.Signals(known).name == "SIGHUP"
                signal.signal(known, signal.SIG_IGN if hangs_up else handler)

        self._previous = {number: signal.signal(number, on_signal) for number in _heard()}


def _heard() -> list[signal.Signals]:
    # nohup has SIGHUP ignored, and that stays so; SIGINT is ignored in any script's background job.
    return [number for number in SIGNALS if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]


@contextmanager
def as_ctrl_c() -> Iterator[None]:
    """Within it every signal that ends a run is a KeyboardInterrupt."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in _heard()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
