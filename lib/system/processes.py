"""Child processes: start, end, and describe how they ended."""

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from typing import Any

import cloudpickle
import psutil

from lib.errors import Fault, UsageError

# Signals that end a run in good order.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

IMPORT_TIMEOUT = 120  # seconds for a child process to import what it needs

# Never fork this process itself: a copy of a process with PyTorch threads or a GPU in use can hang. The fork server
# has only imported modules, so it forks quickly and safely. Systems without a fork server spawn each child.
context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


class ChildLost(Fault):
    """A child process has died, failed or hangs. The message names it."""


def start_server(*modules: str) -> None:
    """Start the fork server, if the system has one and it is not running. It imports the modules in the background."""
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["lib.system.forkserver", *modules])
        with _signals_blocked():
            forkserver.ensure_running()


def to_shared_memory(payload: Any, name: str, advice: str) -> Any:
    """Pickle an object into shared memory. A pipe to a child that dies while it starts would block forever.

    Args:
        payload: object to send; the child reads it with `cloudpickle.loads(array.raw)`.
        name: name of the object for the error message.
        advice: what to do if the object cannot be pickled, as a sentence without its full stop.

    Returns:
        Array in shared memory. Keep a reference until the child has read it.

    Raises:
        UsageError: if the object cannot be pickled.
    """
    try:
        return context.RawArray("c", cloudpickle.dumps(payload))
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        raise UsageError(f"{name} cannot be sent to another process: {error}. {advice}") from error


class Child:
    """A child process and the connection to it. `launch` starts it.

    Attributes:
        name: name of the process in messages.
        process: the process, or None before `launch`.
        connection: this end of a pipe; the other end is the first argument of the child's function.
    """

    def __init__(self, name: str):
        self.name = name
        self.process: Any = None
        self.connection: Any = None
        self._server: psutil.Process | None = None

    def launch(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start the process.

        Args:
            target: function that runs in the child, called with its connection and the arguments.

        Raises:
            ChildLost: if the process could not be started.
        """
        self.connection, far_end = context.Pipe()
        self.process = context.Process(target=target, args=(far_end, *arguments), name=self.name.replace(" ", "-"))
        self._start()
        far_end.close()

    def _start(self) -> None:
        if context.get_start_method() != "forkserver":
            with _signals_blocked():
                self.process.start()
            return
        failures: list[BaseException] = []

        def start() -> None:
            try:
                self.process.start()
            except BaseException as error:  # noqa: BLE001 - raised below, in the calling thread
                failures.append(error)

        # In a thread, because a stopped fork server would block the calling thread forever.
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join(IMPORT_TIMEOUT)
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise ChildLost(f"{self.name} could not be started in {IMPORT_TIMEOUT} seconds")
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.process.pid).parent()
            if server is not None and server.ppid() == os.getpid():
                self._server = server

    def end(self, patience: float = 1.0) -> None:
        """Close the connection, so that the process ends by itself; kill it after `patience` seconds."""
        if self.process is not None and self.process.is_alive():
            self.connection.close()
            self.process.join(patience)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its own child processes."""
        if self.process is not None and self.process.is_alive():
            with suppress(psutil.NoSuchProcess):
                for descendant in psutil.Process(self.process.pid).children(recursive=True):
                    descendant.kill()
            self.process.kill()
            self.process.join(1.0)
            if self.process.is_alive() and self._server is not None:  # dead, but a stopped server cannot report it
                self._server.kill()
                self.process.join(1.0)

    def fate(self) -> str:
        """Describe how the process ended."""
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is None:
            return f"{self} is gone"
        reason = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"died with exit code {code}"
        return f"{self} {reason}"

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Start processes that ignore the terminal's signals: their parent receives them and ends its children."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # otherwise it is started together with the process, and unblocks the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
