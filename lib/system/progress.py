"""Progress of long tasks: a bar on a terminal, a log line every half minute elsewhere."""

import logging
import os
import sys
import time
from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from lib.system.clock import format_estimate

log = logging.getLogger(__name__)

ON_TERMINAL, IN_FILE = 0.5, 30.0  # seconds between two updates
FIRST_IN_FILE = 3.0  # seconds until the first one; shorter tasks log nothing
MIN_BAR = 18  # columns that a text has to leave for the percentage and the bar

_shown = False


def show_progress(shown: bool) -> None:
    """Show or hide the progress of tasks in this process. It is hidden at first, as in the processes of actors."""
    global _shown
    _shown = shown


def is_terminal(stream: Any) -> bool:
    """Return whether a bar can be drawn on a stream: on a terminal, unless it cannot move its cursor."""
    return bool(stream.isatty()) and os.environ.get("TERM") != "dumb"


def bar_stream() -> Any | None:
    """Return the stream on which bars are drawn, or None without a terminal."""
    return next((stream for stream in (sys.stderr, sys.stdout) if is_terminal(stream)), None)


class TaskProgress:
    """Progress of one task, used as a context manager.

    Args:
        task: description of the task, such as "Evaluation".
        total: size of the task, or None if unknown.
        unit: plural of what is counted.
        shown: whether to show anything; None for the setting of this process, see show_progress.
        from_first: whether the estimate excludes the time before the first unit, in which processes may start.

    Attributes:
        on_terminal: whether a bar is drawn. Otherwise lines are logged.
    """

    def __init__(
        self,
        task: str,
        total: int | None = None,
        unit: str = "steps",
        shown: bool | None = None,
        from_first: bool = False,
    ):
        stream = bar_stream()
        self.on_terminal = stream is not None
        self._task = task
        self._total = total
        self._unit = unit
        self._shown = _shown if shown is None else shown
        self._done = 0
        self._start = time.monotonic()
        # Time and finished units at the start of the estimate; None before the first unit.
        self._since: tuple[float, int] | None = None if from_first else (self._start, 0)
        self._next = self._start + (ON_TERMINAL if self.on_terminal else FIRST_IN_FILE)
        self._bar: tqdm[Any] | None = None
        if self._shown and stream is not None:
            self._stream = stream
            self._bar = tqdm(total=1.0, bar_format="{desc}", dynamic_ncols=True, leave=False, file=stream)
            self.show(None if total is None else 0.0, f"{task} ...")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def due(self) -> bool:
        """Whether it is time for the next update."""
        return self._shown and time.monotonic() >= self._next

    def advance(self, count: int = 1) -> None:
        """Count finished units, and show them if an update is due."""
        self._done += count
        self._since = self._since or (time.monotonic(), self._done)
        if not self.due:
            return
        if not self._total:
            self.show(None, f"{self._task}: {self._done:,} {self._unit}")
            return
        text = f"{self._done:,} of {self._total:,} {self._unit}{self._remaining(self._total)}"
        self.show(min(1.0, self._done / self._total), f"{self._task}: {text}", text)

    def _remaining(self, total: int) -> str:
        """Return the estimated remaining time, as in ", 3 min left"; "" while it is unknown."""
        assert self._since is not None
        since, before = self._since
        if self._done == before:
            return ""
        per_unit = (time.monotonic() - since) / (self._done - before)
        return f", {format_estimate(per_unit * max(0, total - self._done))} left"

    def count_seconds(self) -> None:
        """Show the seconds since the start, if an update is due. For tasks whose `total` is an estimate in seconds."""
        seconds = time.monotonic() - self._start
        if self.due and self._total:
            self.show(min(1.0, seconds / self._total), f"{self._task}: {seconds:.0f} of about {self._total} s")

    def show(self, share: float | None, *texts: str) -> None:
        """Show the progress now.

        Args:
            share: part of the task that is done, 0 to 1; None if unknown.
            texts: the same description in decreasing length. A bar has the first one that fits beside it; a log line
                has the first one.
        """
        self._next = time.monotonic() + (ON_TERMINAL if self.on_terminal else IN_FILE)
        if self._bar is None:
            if self._shown:
                log.info("%s.", texts[0])
            return
        room = _columns(self._stream) - MIN_BAR
        self._bar.bar_format = "{desc}" if share is None else "{percentage:3.0f}%|{bar}| {desc}"
        self._bar.n = share or 0.0
        self._bar.set_description_str(next((text for text in texts if len(text) <= room), texts[-1]))

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        self._shown = False


def _columns(stream: Any) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
