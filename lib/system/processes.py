"""Child processes: start them, end them, and describe how they ended."""

import atexit
import fcntl
import functools
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.util import get_temp_dir
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import cloudpickle
import psutil

from lib.errors import Fault, UsageError
from lib.system.files import PROJECT
from lib.system.parent import MODULES_PATH, OURS, SAFE_PATH
from lib.system.shared_block import SharedBlock

Result = TypeVar("Result")
Handler = Callable[[int, FrameType | None], Any]

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they stop a run cleanly

OWNER = "pong-ladder.pid"  # file with this process's id, in multiprocessing's temporary folder

SERVER_DEATHS = 10  # attempts to start a process before a dying fork server is reported
LOST_WITH_SERVER = 255  # exit code that multiprocessing reports if the fork server has died; a child may have it, too
IMPORT_TIMEOUT = 120  # seconds for the fork server to finish its imports and start a process

# Never fork this process itself: a fork of a process that uses PyTorch threads or a GPU can hang. The fork server has
# only imported modules, so it forks quickly and safely.
context: Any = multiprocessing.get_context("forkserver")


class ChildLost(Fault):
    """A child process has died, has failed or hangs. The message names the process."""


def start_server() -> None:
    """Start the fork server, unless it runs.

    In the background, the server imports the modules of this project that this process has. Every child runs the main
    script's imports again, and finds them done.

    Raises:
        UsageError: if the path of the folder for temporary files is too long for its socket.
    """
    project = __name__.partition(".")[0]
    ours = [name for name in list(sys.modules) if name.partition(".")[0] == project]
    context.set_forkserver_preload(["lib.system.forkserver", *ours])
    folder = Path(get_temp_dir())
    _remove_folders_of_killed_processes(folder.parent)
    _own_folder(folder / OWNER)
    try:
        with signals_blocked():
            forkserver.ensure_running()
    except OSError as error:
        if "AF_UNIX" not in str(error):
            raise
        raise UsageError(
            f"no socket can be made in {folder}: {error}. Set TMPDIR to a folder with a shorter path, such as /tmp"
        ) from error


@functools.cache
def _own_folder(owner: Path) -> int:
    """Lock the file with this process's id and host for as long as the process lives, and return its descriptor."""
    descriptor = os.open(owner, os.O_RDWR | os.O_CREAT)
    with suppress(OSError):  # the file system may have no locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())
    # In case someone deletes it: multiprocessing deletes it at the end, and fails if it is gone.
    atexit.register(os.makedirs, owner.parent, exist_ok=True)
    return descriptor


def _remove_folders_of_killed_processes(parent: Path) -> None:
    """Remove the temporary folders, with the fork server's socket, of runs that were killed.

    A living run in another container may have an id that does not exist here, but its file is locked. Other machines
    may share the folder, and their locks may be unknown here.
    """
    for owner in parent.glob(f"pymp-*/{OWNER}"):
        with suppress(OSError, ValueError), owner.open() as file:  # another user's, locked, or just being removed
            pid, _, host = file.read().partition(" ")
            if host == socket.gethostname() and not psutil.pid_exists(int(pid)):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(owner.parent)


def to_shared_memory(payload: Any, name: str, advice: str) -> SharedBlock:
    """Pickle an object into shared memory, for a child process that is about to start.

    It is not sent through a pipe, because that would block forever if the child died while it started.

    Args:
        payload: object to send; the child reads it with `pickle.loads(block.memory)`.
        name: name of the object for the error message.
        advice: last sentence of the error message, without a full stop.

    Returns:
        A block of shared memory. Keep a reference to it until the child has read it.

    Raises:
        UsageError: if the object cannot be pickled, or there is no room for it.
    """
    content = pickled(payload, name, advice)
    block = SharedBlock(len(content))
    block.memory[:] = content
    return block


def pickled(payload: Any, name: str, advice: str) -> bytes:
    """Pickle an object for another process.

    Args:
        payload, name, advice: see to_shared_memory.

    Raises:
        UsageError: if the object cannot be pickled.
    """
    try:
        return bytes(cloudpickle.dumps(payload))
    except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
        raise UsageError(f"{name} cannot be sent to another process: {error}. {advice}") from error


class Child:
    """A child process and the connection to it. `launch` starts it.

    Attributes:
        name: name of the process in messages.
        process: the process, or None before `launch`.
        connection: the parent's end of a pipe, or None before `launch`. The child's function gets the other end.
    """

    def __init__(self, name: str):
        self.name = name
        self.process: Any = None
        self.connection: Any = None

    def launch(self, target: Callable[..., None], *arguments: Any) -> None:
        """Start the process.

        Store this child somewhere before. A signal may interrupt this call after the process has started.

        Args:
            target: function that runs in the child. Its arguments are the child's connection and `arguments`.
            arguments: further arguments of the function.

        Raises:
            ChildLost: if the fork server has not started the process after IMPORT_TIMEOUT seconds, or dies
                SERVER_DEATHS times.
        """
        self.connection, far_end = context.Pipe()
        self.process = context.Process(target=target, args=(far_end, *arguments), name=self.name.replace(" ", "-"))
        self._start()
        far_end.close()

    def _start(self) -> None:
        for _ in range(SERVER_DEATHS):
            try:
                return self._start_by_server()
            except FileNotFoundError as error:
                raise ChildLost(f"{self.name} could not be started, because {_deleted_folder()}") from error
            except (EOFError, ConnectionError):
                time.sleep(0.2)  # the fork server is dying; once it has died, a new one is started
        raise ChildLost(f"{self.name} could not be started, because the fork server died {SERVER_DEATHS} times")

    def _start_by_server(self) -> None:
        with signals_blocked():
            forkserver.ensure_running()  # here, because a server dies with the thread that started it
        # In a thread, because a stopped fork server would block the calling thread forever.
        starting = in_thread(self.process.start)
        try:
            wait([starting], IMPORT_TIMEOUT)
        except BaseException:  # of a signal handler
            starting.add_done_callback(lambda started: self.kill())
            raise
        if not starting.done():
            raise ChildLost(f"{self.name} could not be started within {IMPORT_TIMEOUT} seconds")
        starting.result()

    def hang_up(self) -> None:
        """Close the connection, which tells the process to end."""
        if self.connection is not None:
            self.connection.close()

    def end(self, patience: float = 1.0) -> None:
        """Close the connection, so that the process ends by itself, and kill it if it runs after `patience` seconds."""
        self.hang_up()
        if self.process is not None and self.process.is_alive():
            self.process.join(patience)
        self.kill()

    def kill(self) -> None:
        """Kill the process and its own child processes."""
        if self.process is not None and self.process.is_alive():
            kill_child(self.process)

    def fate(self) -> str:
        """Describe how the process ended."""
        self.process.join(timeout=1)
        code = self.process.exitcode
        if code is None:
            return f"{self} is gone"
        return f"{self} {describe_exit(code)}"

    def __str__(self) -> str:
        return f"{self.name} (process {self.process.pid})"


def _deleted_folder() -> str:
    """Describe which folder that processes need was deleted."""
    folder = get_temp_dir()
    if not os.path.exists(folder):
        return f"the folder for temporary files, {folder}, was deleted"
    try:
        return f"a file is missing in {folder} or in {os.getcwd()}"
    except FileNotFoundError:
        return "the current folder was deleted"


def describe_exit(code: int) -> str:
    """Describe an exit code, as in "was killed by SIGKILL"."""
    if code == LOST_WITH_SERVER:
        return "died with exit code 255, or was lost because the fork server died"
    if code >= 0:
        return f"died with exit code {code}"
    known = -code in set(signal.Signals)
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def kill_child(process: Any) -> None:
    """Kill a child process and its own child processes, and wait until its death is reported.

    Args:
        process: process of `context` that has been started.
    """
    descendants: list[psutil.Process] = []
    with suppress(psutil.Error):
        descendants = psutil.Process(process.pid).children(recursive=True)
    for descendant in descendants:
        with suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            descendant.kill()
    server = None
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid).parent()
        server = parent if parent is not None and parent.ppid() == os.getpid() else None
    process.kill()
    process.join(1.0)
    with suppress(psutil.NoSuchProcess):
        if process.is_alive() and server is not None and server.status() == psutil.STATUS_STOPPED:
            server.kill()  # while it is stopped, it cannot report the child's death
    process.join(10.0)


def in_thread(call: Callable[[], Result]) -> "Future[Result]":
    """Call a function in a thread that does not keep the process alive, and return the future of its result."""
    future: Future[Result] = Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the future raises it in the waiting thread
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future


@contextmanager
def handling(numbers: Iterable[signal.Signals], handler: Handler) -> Iterator[None]:
    """Handle signals by a function in this block, and restore the previous handlers at its end."""
    previous = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, before)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGNALS in processes that are started in this context, so that Ctrl-C reaches only their parent."""
    # If the resource tracker were started together with the process, it would unblock the signals.
    with _search_path_of_this_project():
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def signals_unblocked() -> Iterator[None]:
    """Unblock SIGNALS within `signals_blocked`, when the processes have started."""
    before = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _search_path_of_this_project() -> Iterator[None]:
    """Let processes started in this context search this project first for modules, and not the current folder.

    Another copy of this project may be installed, and the current folder may be somebody else's run folder. The
    children of the fork server get this process's search path with their first message, but the server imports earlier.
    """
    before = {name: os.environ.get(name) for name in (SAFE_PATH, MODULES_PATH)}
    os.environ[SAFE_PATH] = OURS
    os.environ[MODULES_PATH] = os.pathsep.join(filter(None, (str(PROJECT), before[MODULES_PATH])))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
