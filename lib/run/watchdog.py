"""Watch over calls of an environment that do not return."""

import logging
import os
import signal
import threading
from types import FrameType
from typing import ClassVar, NoReturn

from ignite.engine import Engine, Events

from lib.envs.checked_env import CheckedEnv
from lib.errors import Fault
from lib.system.clock import since_process_start

log = logging.getLogger(__name__)


class Watchdog:
    """Name an environment whose reset or step does not return, and end the run there after its time limit.

    A thread looks once a second. The call is interrupted by a signal, so that the state before it is saved. Native code
    that ignores the signal is ended with the process.

    Args:
        time_limit: seconds after which this process stops, or None for no limit.
    """

    PATIENCE = 60.0  # seconds in one call after which its environment is named
    GRACE = 10.0  # seconds after the time limit at which the call is interrupted, and later the process ended
    INTERVAL = 1.0
    _newest: ClassVar["Watchdog | None"] = None

    def __init__(self, time_limit: float | None):
        self.time_limit = time_limit
        self._ended = threading.Event()
        self._named: float | None = None  # start of the call that was named
        self._interrupted_at: float | None = None

    def attach(self, engine: Engine) -> None:
        """Watch from the start of an engine to the end of the process."""
        engine.add_event_handler(Events.STARTED, self.start)

    def start(self) -> None:
        """Watch from now to the end of the process, or until another watchdog starts.

        Only the main thread can be interrupted; elsewhere nothing is watched.
        """
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "SIGALRM"):
            if Watchdog._newest is not None:
                Watchdog._newest._ended.set()
            Watchdog._newest = self
            signal.signal(signal.SIGALRM, self._on_alarm)
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while not self._ended.wait(self.INTERVAL):
            call = CheckedEnv.call
            if call is None:
                continue
            seconds = call.seconds
            if seconds > self.PATIENCE and self._named != call.start:
                self._named = call.start
                log.warning("%s: a call has not returned for %.0f seconds.", call.describe(), seconds)
            over = -1.0 if self.time_limit is None else since_process_start() - self.time_limit
            if over > self.GRACE and seconds > self.GRACE:
                self._end(over)

    def _end(self, over: float) -> None:
        if self._interrupted_at is None:
            self._interrupted_at = over
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        elif over > self._interrupted_at + self.GRACE:
            os.write(2, f"error: {self._message()}. It ignored the interruption, so nothing was saved\n".encode())
            os._exit(Fault.exit_code)

    def _on_alarm(self, number: int, frame: FrameType | None) -> NoReturn:
        raise Fault(self._message())

    def _message(self) -> str:
        call = CheckedEnv.call
        where = "an environment" if call is None else call.describe()
        return f"{where}: a call did not return before the time limit. Correct the environment, or wrap it"
