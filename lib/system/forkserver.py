"""Prepare the fork server and its children. The server imports this module first, before the imports that take long."""

import gc
import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

import numpy as np

from lib.system.parent import MODULES_PATH, OURS, SAFE_PATH, kill_with_parent

kill_with_parent()
if os.environ.get(SAFE_PATH) == OURS:  # restore the user's settings for programs that environments start
    del os.environ[SAFE_PATH]
    _, _, users_path = os.environ.pop(MODULES_PATH, "").partition(os.pathsep)
    if users_path:
        os.environ[MODULES_PATH] = users_path


def _begin_child() -> None:
    gc.freeze()  # a garbage collection would write to the objects of the server, which copies their pages
    # Children would draw the same numbers otherwise. Python seeds its own generator after a fork.
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


os.register_at_fork(after_in_child=_begin_child)


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error of a process that starts, except those of files and pipes that it shares with its parent.

    Such errors are normal if the parent ends first. A parent that goes on reports the death of the process itself.
    """
    frames = traceback.extract_tb(trace)
    in_multiprocessing = frames and Path(frames[-1].filename).parent == Path(multiprocessing.__file__).parent
    if not (in_multiprocessing and isinstance(error, OSError | EOFError)):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
