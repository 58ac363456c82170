"""Child processes: start them, end them, describe how they ended, and let them end with their parent."""

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, parent_process, resource_tracker
from multiprocessing.process import BaseProcess

import psutil

from lib.system.files import PROJECT

PR_SET_PDEATHSIG = 1  # prctl(2)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they stop a run cleanly

# Never fork this process itself: a fork of a process that uses PyTorch threads or a GPU can hang. The fork server has
# only imported modules, so it forks quickly and safely.
context = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Start the fork server, unless it runs. It imports the project's modules that this process has.

    A child repeats the main script's imports, which takes no time, because the server has made them.
    """
    project = __name__.partition(".")[0]
    ours = [name for name in list(sys.modules) if name.partition(".")[0] == project]
    context.set_forkserver_preload(["lib.system.forkserver", *ours])
    with signals_blocked():
        forkserver.ensure_running()


def describe_exit(code: int) -> str:
    """Describe an exit code, as in "was killed by SIGKILL"."""
    if code >= 0:
        return f"died with exit code {code}"
    return f"was killed by {signal.Signals(-code).name}"


def kill_child(process: BaseProcess) -> None:
    """Kill a started process of `context` and its own child processes, and wait until its death is reported."""
    descendants: list[psutil.Process] = []
    with suppress(psutil.Error):
        descendants = psutil.Process(process.pid).children(recursive=True)
    for descendant in descendants:
        with suppress(psutil.Error):  # it has ended meanwhile, or is another user's
            descendant.kill()
    process.kill()
    process.join(10.0)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGNALS in processes that are started in this context, so that Ctrl-C reaches only their parent.

    A fork server imports this copy of the project, and nothing from the current folder, which may be somebody else's
    run folder. The server's children get this process's search path.
    """
    environment = dict(os.environ)
    search_path = os.pathsep.join(filter(None, (str(PROJECT), environment.get("PYTHONPATH"))))
    os.environ |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": search_path}
    resource_tracker.ensure_running()  # if it were started together with the process, it would unblock the signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.environ.clear()
        os.environ |= environment


def kill_with_parent() -> None:
    """Have Linux kill this process when its parent ends, even if this process is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_learner() -> None:
    """End this process when the learner, which started it, ends for any reason, even if an environment hangs.

    SIGTERM does nothing, because it may reach all processes of a job, and the learner needs this one for its last
    iteration.
    """
    learner = parent_process()
    assert learner is not None

    def watch() -> None:
        learner.join()
        os._exit(1)

    kill_with_parent()
    # Neither ignored nor blocked, because programs that an environment starts would inherit that.
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    threading.Thread(target=watch, daemon=True).start()
