"""Warn if other programs keep torch's threads waiting for a core."""

import logging
import math
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import torch
from ignite.engine import Engine

from lib.system.machine import cores

log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """Seconds at one moment.

    Attributes:
        time: of the clock.
        waiting: that threads of this process were ready to run, but had no core, added up.
        others: of CPU time that other programs have used.
    """

    time: float
    waiting: float
    others: float


class CoreContention:
    """Warn once if other programs slow down torch's threads, which wait for each other at every layer.

    A thread that waits for another one occupies its core, so that neither the awaited thread nor the other program gets
    it. Beside one busy program on two cores, two threads learned two to twenty times slower than one.
    """

    INTERVAL = 10.0  # seconds between two readings
    WAITING = 0.25  # threads that wait for a core, on average; actors and players make the learner wait less
    OTHERS = 0.5  # cores that other programs use

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._warned = False

    def attach(self, engine: Engine, event: Any) -> None:
        """Look on an event, every INTERVAL seconds at most, where /proc tells how long threads wait."""
        if Path("/proc/self/schedstat").exists():
            engine.add_event_handler(event, self._look)

    def _look(self) -> None:
        last = self._last
        if self._warned or (last is not None and time.monotonic() < last.time + self.INTERVAL):
            return
        now = self._last = read()
        threads = torch.get_num_threads()
        if last is None or threads == 1:
            return
        waiting, others = ((new - old) / (now.time - last.time) for old, new in zip(last[1:], now[1:], strict=True))
        if waiting < self.WAITING or others < self.OTHERS:
            return
        self._warned = True
        log.warning(
            "Other programs use %.1f of %d cores, so torch's %d threads wait for a core and for each other. End those "
            "programs, or start runs with OMP_NUM_THREADS=%d, which is probably much faster beside them.",
            others,
            cores(),
            threads,
            max(1, min(threads - 1, cores() - round(others))),
        )


def read() -> Reading:
    """Read the clock, the waiting time of this process, and the CPU time of other programs."""
    return Reading(time.monotonic(), _waiting(), _busy() - _own())


def _waiting() -> float:
    nanoseconds = 0
    for file in Path("/proc/self/task").glob("*/schedstat"):
        try:
            nanoseconds += int(file.read_text().split()[1])
        except OSError:  # the thread has ended
            continue
    return nanoseconds / 1e9


def _busy() -> float:
    """Return the CPU seconds of all programs."""
    times = psutil.cpu_times()
    return math.fsum(times) - times.idle - times.iowait - times.steal - times.guest - times.guest_nice


def _own() -> float:
    """Return the CPU seconds of this process and its descendants."""
    process = psutil.Process()
    seconds = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            seconds += math.fsum(each.cpu_times()[:4])  # user and system, also of children that have ended
        except psutil.Error:  # it has ended
            continue
    return seconds
