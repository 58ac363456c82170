"""The console: log lines, and the progress of long tasks, which is a bar on a terminal and a log line elsewhere."""

import logging
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

from tqdm import tqdm

from lib.system.files import PROJECT

# From Python 3.14 on, tqdm's own lock starts a process, which imports modules from the current folder.
tqdm.set_lock(threading.RLock())

INTERVAL = 30.0  # seconds between two log lines about the progress of a task

log = logging.getLogger(__name__)
_shown = False


class Console(logging.Handler):
    """Write log lines to standard output without breaking a progress bar. A line that cannot be written is lost."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError, ValueError), tqdm.external_write_mode(file=sys.stdout):
            print(self.format(record), flush=True)


def start_console() -> None:
    """Send this package's log lines to the console. A second call has no effect.

    Characters that the console's encoding lacks are written as escapes.
    """
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # not in a notebook
            stream.reconfigure(errors="backslashreplace")
    logger = logging.getLogger("lib")
    if not any(isinstance(handler, Console) for handler in logger.handlers):
        logger.addHandler(Console())
    logger.setLevel(logging.INFO)
    # ignite logs an exception twice before it raises it. The caller that catches it reports it once.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)


def show_progress(shown: bool) -> None:
    """Show or hide the progress of tasks in this process. It is hidden at first, as in the processes of actors."""
    global _shown
    _shown = shown


def bar_stream() -> TextIO | None:
    """Return the stream on which bars are drawn, or None without a terminal that can move its cursor."""
    if os.environ.get("TERM") == "dumb":
        return None
    return next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)


class TaskProgress(tqdm):  # type: ignore[type-arg] # tqdm is no generic class when it runs
    """Progress of one task, used as a context manager. Its size, `total`, counts in `unit`, a word in the plural.

    `shown` is None for the setting of this process; see show_progress.
    """

    monitor_interval = 0  # no thread that draws a bar between two updates

    def __init__(self, task: str, total: int | None = None, unit: str = "steps", shown: bool | None = None):
        options: dict[str, Any] = {"disable": not (_shown if shown is None else shown), "leave": False, "miniters": 1}
        if (stream := bar_stream()) is not None:
            options |= {"unit": f" {unit}", "dynamic_ncols": True, "file": stream}
        else:
            line = "{desc}: {n:,}" + (f" {unit}." if total is None else f" of {total:,} {unit}, {{remaining}} left.")
            options |= {"bar_format": line, "mininterval": INTERVAL, "delay": INTERVAL}
            options |= {"file": _LoggedLines(), "position": 0}
        super().__init__(desc=task, total=total, **options)


class _LoggedLines:
    """Stream whose lines are logged. tqdm clears a line by spaces."""

    def write(self, text: str) -> None:
        if line := text.strip():
            log.info(line)


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Discard the standard error of libraries, including those in C."""
    sys.stderr.flush()
    before = os.dup(2)
    try:
        with open(os.devnull, "wb") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(before, 2)
        os.close(before)


def install_command(extra: str) -> str:
    """Return the command that installs one of the project's extras, from any folder."""
    return shlex.join([sys.executable, "-m", "pip", "install", "-e", f"{PROJECT}[{extra}]"])
