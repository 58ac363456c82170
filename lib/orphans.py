"""No process outlives the one that started it; what such a process needs to hear and to tell."""

import ctypes
import os
import signal
import sys
import threading
from multiprocessing import parent_process
from typing import Any

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


def hear(link: Any) -> Any:
    """What the learner says next.

    Raises:
        ParentGone: it is gone.
    """
    try:
        return link.recv()
    except (EOFError, OSError) as error:
        raise ParentGone from error


def tell(link: Any, what: Any) -> None:
    """Say something to the learner.

    Raises:
        ParentGone: it is gone.
    """
    try:
        link.send(what)
    except OSError as error:
        raise ParentGone from error
