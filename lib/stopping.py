"""Why and how a run ends, and which exit code tells."""

import math
import signal
from collections.abc import Callable
from typing import Any

from ignite.engine import Engine, Events
from ignite.handlers import TerminateOnNan, TimeLimit
from ptan.ignite import EpisodeEvents

from lib.timing import TrainingEvents, since_process_start

SOLVED, STEPS, TIME, NOT_FINITE = "solved", "step limit", "time limit", "loss not finite"
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
EXIT_CODES = {SOLVED: 0, STEPS: 0, TIME: 0, NOT_FINITE: 1} | {number.name: 128 + number for number in SIGNALS}


class Interrupted(BaseException):
    """A signal came before there was anything to save."""

    def __init__(self, number: int):
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class Stopper:
    """Ends the run when it is solved, at a limit, on a loss that is no number, or on a signal.

    The first signal lets the iteration end, so that a whole state is saved; a second one ends the process.

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

    def attach(self, engine: Engine) -> None:
        """Attach first of all handlers: whoever saves asks `reason` whether the state is a good one."""
        engine.add_event_handler(
            Events.ITERATION_COMPLETED, self._quietly(TerminateOnNan(lambda output: output["loss"]))
        )
        if self.time_limit is not None:
            time_limit = self._quietly(TimeLimit(self.time_limit))
            time_limit.start_time -= since_process_start()
            engine.add_event_handler(Events.ITERATION_COMPLETED, time_limit)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._judge)
        engine.add_event_handler(TrainingEvents.LEARNING_STARTED, self._learning_started)
        engine.add_event_handler(EpisodeEvents.BOUND_REWARD_REACHED, self.stop, SOLVED)
        engine.add_event_handler(Events.STARTED, self._catch_signals)
        engine.add_event_handler(Events.COMPLETED, self._release_signals)

    def stop(self, engine: Engine, reason: str) -> None:
        """End the run after this iteration; the first reason given is kept."""
        self.reason = self.reason or reason
        engine.terminate()

    def _judge(self, engine: Engine) -> None:
        output: Any = engine.state.output
        if not math.isfinite(output["loss"]):
            self.reason = NOT_FINITE
        elif engine.should_terminate:
            self.reason = self.reason or TIME
        elif self.steps() >= self.step_limit:
            self.stop(engine, STEPS)

    def _learning_started(self, engine: Engine) -> None:
        self._learning = True

    def _catch_signals(self, engine: Engine) -> None:
        def on_signal(number: int, frame: Any) -> None:
            self._release_signals(engine)
            if not self._learning:
                raise Interrupted(number)
            self.stop(engine, signal.Signals(number).name)

        # nohup has SIGHUP ignored, and that stays so; SIGINT is ignored in any script's background job.
        heard = [number for number in SIGNALS if number.name != "SIGHUP" or signal.getsignal(number) != signal.SIG_IGN]
        self._previous = {number: signal.signal(number, on_signal) for number in heard}

    def _release_signals(self, engine: Engine) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    @staticmethod
    def _quietly(handler: Any) -> Any:
        handler.logger.disabled = True  # the run itself says why it ends
        return handler
