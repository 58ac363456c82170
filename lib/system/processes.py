"""A process that this one starts, speaks with and ends."""

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

IMPORTING = 120  # seconds that there are to import what a process needs

# Signals that end a run in good order.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class ChildLost(Fault):
    """A process died, failed or is stuck; the message names it."""


def start_server() -> None:
    """Start the process that others are forked from, if the system can; it imports while this one goes on."""
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(
            ["lib.system.forkserver", "lib.actors.player_process", "lib.actors.process_worker"]
        )
        with _signals_blocked():
            forkserver.ensure_running()


def to_shared_memory(what: Any, name: str, instead: str) -> Any:
    """What a process needs, pickled, in shared memory: a pipe to one that dies while it starts would block for ever.

    Args:
        what: to be loaded there by `cloudpickle.loads(moved.raw)`; held here until it has been.
        name: of it, for the message.
        instead: what to do where it cannot be sent, a sentence without its full stop.

    Raises:
        UsageError: it cannot be pickled.
    """
    try:
        return context.RawArray("c", cloudpickle.dumps(what))
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        raise UsageError(f"{name} cannot be sent to another process: {error}. {instead}") from error


class Child:
    """A process and the link to it; nothing is started yet.

    Attributes:
        name: of the process, for messages.
        process: None until it is launched.
        link: this end of a pipe, whose other end is the first argument of what runs there.
    """

    def __init__(self, name: str):
        self.name = name
        self.process: Any = None
        self.link: Any = None
        self._server: psutil.Process | None = None

    def launch(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start the process.

        Args:
            target: what runs there, called with its end of the link and the arguments.

        Raises:
            ChildLost: it could not be started.
        """
        self.link, far_end = context.Pipe()
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
            except BaseException as error:  # noqa: BLE001 - raised below, by who waits for it
                failures.append(error)

        # In a thread, as a server that is stopped would have us wait for ever.
        thread = threading.Thread(target=start, daemon=True)
        thread.start()
        thread.join(IMPORTING)
        if failures:
            raise failures[0]
        if thread.is_alive():
            raise ChildLost(f"{self.name} could not be started in {IMPORTING} seconds")
        with suppress(psutil.NoSuchProcess):
            server = psutil.Process(self.process.pid).parent()
            if server is not None and server.ppid() == os.getpid():
                self._server = server

    def end(self, patience: float = 1.0) -> None:
        """Let the process end, or kill it."""
        if self.process is not None and self.process.is_alive():
            self.link.close()
            self.process.join(patience)
        self.kill()

    def kill(self) -> None:
        """End the process at once, and with it those that it has started."""
        if self.process is not None and self.process.is_alive():
            with suppress(psutil.NoSuchProcess):
                for each in psutil.Process(self.process.pid).children(recursive=True):
                    each.kill()
            self.process.kill()
            self.process.join(1.0)
            if self.process.is_alive() and self._server is not None:  # it is dead, and the server does not tell
                self._server.kill()
                self.process.join(1.0)

    def fate(self) -> str:
        """How the process ended."""
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is None:
            return f"{self} is gone"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"died with exit code {code}"
        return f"{self} {how}"

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """A process started meanwhile never hears the terminal's signals: its parent does, and ends it in good order."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # else it is started with the process, and unblocks them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Not forked from this process: a copy of one in which PyTorch's threads or a GPU are at work can hang. A server that
# has done nothing but import forks quickly and safely; where the system has none, every process imports for itself.
context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
