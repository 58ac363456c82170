"""Watch over calls of an environment that do not return."""

import atexit
import contextlib
import faulthandler
import json
import logging
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar, NoReturn

from ignite.engine import Engine, Events

from lib.envs.checked_env import Call, CheckedEnv
from lib.errors import CallInterrupted, Fault
from lib.system.clock import since_process_start
from lib.system.forks import in_forked_children

log = logging.getLogger(__name__)


class Watchdog:
    """Report an environment whose reset or step does not return. End the run there after its time limit or a signal.

    A thread looks once a second. The call is interrupted by a signal, so that the state before it is saved. Native code
    that ignores the signal is ended with the process. If it holds the GIL, this thread cannot run; so a second process
    watches the thread, see lib.run.watcher.

    Args:
        time_limit: seconds after which this process stops, or None for no limit.
    """

    PATIENCE = 60.0  # seconds in one call after which its environment is reported
    # Seconds from the time limit or a signal to the interruption of a call, and from there to the end of the process.
    GRACE = 10.0
    INTERVAL = 1.0
    _newest: ClassVar["Watchdog | None"] = None
    _watcher: ClassVar["WatcherProcess | None"] = None
    _handler_before: ClassVar[Any] = signal.SIG_DFL  # of SIGALRM

    def __init__(self, time_limit: float | None):
        self.time_limit = time_limit
        self._ended = threading.Event()
        self._reported: float | None = None  # start of the call that was reported
        self._interrupted: float | None = None  # start of the call that was interrupted last
        self._interrupted_at = 0.0
        self._signal: tuple[int, float] | None = None  # the first one, and its time by time.monotonic()

    def attach(self, engine: Engine) -> None:
        """Watch from each start of an engine to the end of the process."""
        # A new one, because an engine may run again after a signal.
        engine.add_event_handler(Events.STARTED, lambda: Watchdog(self.time_limit).start())

    def start(self, *, reports_end: bool = True) -> None:
        """Watch from now to the end of the process, or until another watchdog starts.

        Only the main thread can be interrupted; elsewhere nothing is watched.

        Args:
            reports_end: report it if this process is killed. A child's end is reported by its parent.
        """
        if threading.current_thread() is threading.main_thread():
            if Watchdog._newest is not None:
                Watchdog._newest._ended.set()
            handler = signal.signal(signal.SIGALRM, self._on_alarm)
            if getattr(handler, "__func__", None) is not Watchdog._on_alarm:
                Watchdog._handler_before = signal.SIG_DFL if handler is None else handler
            Watchdog._newest = self
            if Watchdog._watcher is None:
                try:
                    Watchdog._watcher = WatcherProcess(self.PATIENCE, self.GRACE, self.INTERVAL, reports_end)
                except OSError as error:  # such as too many processes
                    log.warning(
                        "The watcher process could not be started (%s). A call that holds the GIL (Python's global "
                        "lock) will be neither reported nor ended. Raise ulimit -u.",
                        error,
                    )
            self._send_heartbeat()
            threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        looked, awake_since = time.monotonic(), -math.inf
        while not self._ended.wait(self.INTERVAL):
            now = time.monotonic()
            if now - looked > self.INTERVAL + self.GRACE / 2:  # the process was suspended, as by Ctrl-Z
                awake_since = now
            looked = now
            self._send_heartbeat()
            call = CheckedEnv.call
            if call is None:
                continue
            seconds = min(call.seconds, now - awake_since)
            if seconds > self.PATIENCE and self._reported != call.start:
                self._reported = call.start
                log.warning("%s: a call has not returned for %.0f seconds.", call.describe(), seconds)
            over = max(self._over_limit(), self._over_signal())
            # Calls after the interrupted one come from close(), and get less time.
            if over > self.GRACE and seconds > (self.GRACE if self._interrupted is None else self.GRACE / 5):
                self._end(call, over)

    @staticmethod
    def deadline() -> float:
        """Return when this process reaches its time limit, by time.monotonic(); infinity without a limit."""
        newest = Watchdog._newest
        return math.inf if newest is None else time.monotonic() - newest._over_limit()

    @staticmethod
    def for_child(deadline: float) -> "Watchdog":
        """Return a watchdog for a process that another one started.

        Args:
            deadline: the other's `deadline`.
        """
        left = deadline - time.monotonic()
        return Watchdog(since_process_start() + left if math.isfinite(left) else None)

    @staticmethod
    def note_signal(number: int) -> None:
        """Note that the run has received a signal that ends it."""
        if Watchdog._newest is not None and Watchdog._newest._signal is None:
            Watchdog._newest._signal = (number, time.monotonic())

    @staticmethod
    def dismiss_watcher() -> None:
        """Kill the second process, from a signal's handler, because this process ends with a message of its own."""
        if Watchdog._watcher is not None:
            Watchdog._watcher.dismiss()

    @staticmethod
    def stop() -> None:
        """Stop watching: this process becomes another program, or the run of a script or notebook has ended."""
        if threading.current_thread() is not threading.main_thread() or Watchdog._newest is None:
            return
        Watchdog._newest._ended.set()
        Watchdog._newest = None
        signal.signal(signal.SIGALRM, Watchdog._handler_before)
        if Watchdog._watcher is not None:
            Watchdog._watcher.close()
            Watchdog._watcher = None

    def _over_limit(self) -> float:
        """Return the seconds since the time limit; negative before it."""
        return -math.inf if self.time_limit is None else since_process_start() - self.time_limit

    def _over_signal(self) -> float:
        """Return the seconds since the first signal, or minus infinity before it."""
        return -math.inf if self._signal is None else time.monotonic() - self._signal[1]

    def _send_heartbeat(self) -> None:
        watcher = Watchdog._watcher  # `stop` may forget it meanwhile
        if watcher is not None:
            watcher.send_heartbeat(-self._over_limit(), CheckedEnv.newest)

    def _end(self, call: Call, over: float) -> None:
        if self._interrupted != call.start:
            self._interrupted, self._interrupted_at = call.start, over
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        elif over > self._interrupted_at + self.GRACE:
            os.write(
                2, f"error: {self._message()}. It could not be interrupted; earlier checkpoints are kept\n".encode()
            )
            if Watchdog._watcher is not None:
                Watchdog._watcher.kill()
            os._exit(self._exit_code())

    def _on_alarm(self, number: int, frame: FrameType | None) -> NoReturn:
        raise CallInterrupted(self._message(), self._exit_code())

    def _exit_code(self) -> int:
        return Fault.exit_code if self._signal is None else 128 + self._signal[0]

    def _message(self) -> str:
        call = CheckedEnv.call
        where = "an environment" if call is None else call.describe()
        when = "before the time limit" if self._signal is None else f"after {signal.Signals(self._signal[0]).name}"
        return f"{where}: a call did not return {when}. Correct the environment"


class WatcherProcess:
    """The process of lib.run.watcher. It ends with this one.

    Args:
        patience: see Watcher.
        grace: see Watcher.
        interval: see Watcher.
        reports_end: see Watcher.
    """

    def __init__(self, patience: float, grace: float, interval: float, reports_end: bool):
        # The reading end stays open here, so that writing is no error if the process is killed.
        self._reading, self._stream = os.pipe()
        os.set_blocking(self._stream, False)
        numbers = map(str, (os.getpid(), patience, grace, interval, int(reports_end)))
        program = Path(__file__).with_name("watcher.py")
        command = [sys.executable, "-I", "-S", str(program), *numbers]
        self._process = subprocess.Popen(command, stdin=self._reading)
        # Traceback and signal numbers are written by C code, which does not need the GIL.
        faulthandler.register(signal.SIGUSR2, file=self._stream, all_threads=False)
        other = signal.set_wakeup_fd(self._stream, warn_on_full_buffer=False)
        self._gets_signals = other < 0
        if not self._gets_signals:  # an event loop, such as a notebook's, needs them
            signal.set_wakeup_fd(other)
        atexit.register(self.close)
        in_forked_children(self, WatcherProcess._leave)

    def send_heartbeat(self, left: float, environment: Callable[[], str] | None) -> None:
        """Send a heartbeat.

        Args:
            left: seconds until its time limit.
            environment: function that returns the name of the environment that was called last.
        """
        name = "" if environment is None else environment()[:1000]  # a short line is written as a whole
        # Ray ends this process from C++ if it loses its own processes on this machine.
        message = {"limit": left if math.isfinite(left) else None, "environment": name, "ray": "ray" in sys.modules}
        with contextlib.suppress(OSError):  # it was killed and the stream is full, or this process ends
            os.write(self._stream, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """End the process. A second call does nothing."""
        atexit.unregister(self.close)
        if self._stream >= 0:
            self.kill()  # first, because SIGUSR2 would end this process without its handler
            self._leave()

    def kill(self) -> None:
        """End the process, from any thread. This process has to end, too, because nothing watches it any more."""
        self._process.kill()
        self._process.wait()

    def dismiss(self) -> None:
        """Kill the process without waiting for it, because a signal's handler may have interrupted that."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGKILL)

    def _leave(self) -> None:
        """Close the stream. Forked children do so, too."""
        if self._stream >= 0:
            faulthandler.unregister(signal.SIGUSR2)
            if self._gets_signals:
                signal.set_wakeup_fd(-1)
            stream, self._stream = self._stream, -1  # first, because the thread of the watchdog still runs
            os.close(stream)
            os.close(self._reading)
