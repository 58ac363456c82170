"""Child side of the link to a parent process: end when the parent ends."""

import ctypes
import os
import signal
import sys
import threading
from multiprocessing import parent_process

PR_SET_PDEATHSIG = 1  # prctl(2)


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
