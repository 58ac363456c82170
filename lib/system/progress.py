"""Progress of long tasks: a bar on a terminal, a log line every half minute elsewhere."""

import logging
import os
import sys
import time
from typing import Any, Self

from tqdm import tqdm

from lib.system.clock import format_estimate

log = logging.getLogger(__name__)

INTERVAL = 30.0  # seconds between two log lines
FIRST = 3.0  # seconds until the first one; shorter tasks log nothing

_shown = False


def show_progress(shown: bool) -> None:
    """Show or hide the progress of tasks in this process. It is hidden at first, as in the processes of actors."""
    global _shown
    _shown = shown


def bar_stream() -> Any | None:
    """Return the stream on which bars are drawn, or None without a terminal that can move its cursor."""
    if os.environ.get("TERM") == "dumb":
        return None
    return next((stream for stream in (sys.stderr, sys.stdout) if stream.isatty()), None)


class TaskProgress:
    """Progress of one task, used as a context manager.

    Args:
        task: description of the task, such as "Evaluation".
        total: size of the task, or None if unknown.
        unit: plural of what is counted.
        shown: whether to show anything; None for the setting of this process, see show_progress.
    """

    def __init__(self, task: str, total: int | None = None, unit: str = "steps", shown: bool | None = None):
        self._task, self._total, self._unit = task, total, unit
        self._shown = _shown if shown is None else shown
        self._start = time.monotonic()
        self._done = 0
        self._first: tuple[float, int] | None = None  # time and count of the first units: processes may start before
        self._next = self._start + FIRST
        stream = bar_stream() if self._shown else None
        self._bar: tqdm[Any] | None = None
        if stream is not None:
            self._bar = tqdm(desc=task, total=total, unit=f" {unit}", dynamic_ncols=True, leave=False, file=stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def advance(self, count: int = 1) -> None:
        """Count finished units, and show them if an update is due."""
        self._done += count
        now = time.monotonic()
        self._first = self._first or (now, self._done)
        if self._bar is not None:
            self._bar.update(count)
        elif self._shown and now >= self._next:
            self._next = now + INTERVAL
            of_total = f" of {self._total:,}" if self._total else ""
            log.info("%s: %s%s %s%s.", self._task, f"{self._done:,}", of_total, self._unit, self._left(now))

    def _left(self, now: float) -> str:
        """Return the estimated remaining time, as in ", 3 min left"; "" if unknown."""
        assert self._first is not None
        since, before = self._first
        if self._total is None or self._done == before:
            return ""
        left = (now - since) / (self._done - before) * max(0, self._total - self._done)
        return f", {format_estimate(left)} left"

    def count_seconds(self) -> None:
        """Advance to the seconds since the start, for a task whose `total` is an estimate in seconds."""
        self.advance(int(time.monotonic() - self._start) - self._done)

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._shown = False
