"""Make the fork server end with its parent. The server imports this module first, before the imports that take long."""

import multiprocessing
import os
import sys
import traceback
from pathlib import Path
from types import TracebackType

from lib.system.parent import OURS, SAFE_PATH, kill_with_parent

kill_with_parent()
if os.environ.get(SAFE_PATH) == OURS:
    del os.environ[SAFE_PATH]  # programs that environments start are not concerned


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Show an error of a process that starts, except those of files and pipes that it shares with its parent.

    They are usual if the parent ends meanwhile, and a parent that goes on reports that the process has died.
    """
    frames = traceback.extract_tb(trace)
    in_multiprocessing = frames and Path(frames[-1].filename).parent == Path(multiprocessing.__file__).parent
    if not (in_multiprocessing and isinstance(error, OSError | EOFError)):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _show
