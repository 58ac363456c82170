"""No process outlives the one that started it; what such a process needs to hear and to tell."""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from multiprocessing import parent_process
from typing import Any

import psutil

PR_SET_PDEATHSIG = 1  # prctl(2)


class ParentGone(BaseException):
    """Who started this process has ended, or wants no more of it."""


def end_with_parent() -> None:
    """Have the system end this process with the one that started it, where it can: even a process that is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_with_learner() -> None:
    """End this process when the learner ends, however that ends, and even where an environment hangs."""
    learner = parent_process()
    assert learner is not None

    def watch() -> None:
        learner.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    end_with_parent()


class Reaper:
    """Kills processes as soon as this one is gone, however that ends.

    Args:
        processes: that others start for us, and that do not look after that themselves.
    """

    CODE = """
import os, signal, sys
sys.stdin.read()
for pid in sys.argv[1:]:
    try:
        os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""

    def __init__(self, processes: Iterable[psutil.Process]):
        command = [sys.executable, "-I", "-S", "-c", self.CODE, *(str(process.pid) for process in processes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """Let them live."""
        self._process.kill()
        self._process.communicate()


def receive(link: Any) -> Any:
    """What the learner says next.

    Raises:
        ParentGone: it is gone.
    """
    try:
        return link.recv()
    except (EOFError, OSError) as error:
        raise ParentGone from error


def send(link: Any, what: Any) -> None:
    """Say something to the learner.

    Raises:
        ParentGone: it is gone.
    """
    try:
        link.send(what)
    except OSError as error:
        raise ParentGone from error
