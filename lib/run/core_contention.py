"""Warn if other programs keep torch's threads waiting for a core."""

import logging
import time
from pathlib import Path
from typing import NamedTuple

import psutil
import torch
from ignite.engine import Engine, Events

from lib.system.machine import cores

log = logging.getLogger(__name__)

TASKS = Path("/proc/self/task")


class Reading(NamedTuple):
    """Counters, in seconds.

    Attributes:
        time: monotonic time.
        waiting: time that this process's threads have waited for a core, added up.
        others: CPU time of other programs on the cores that this process may use.
    """

    time: float
    waiting: float
    others: float


class CoreContention:
    """Warn once if other programs slow down torch's threads, which wait for each other at every layer.

    A thread that waits for another one occupies its core, so that neither the awaited thread nor the other program gets
    it. With one other busy program on two cores, two threads learned two to twenty times slower than one thread.
    """

    INTERVAL = 10.0  # seconds between two readings
    WAITING = 0.25  # average number of waiting threads
    OTHERS = 0.5  # average number of cores that other programs use. Actors and players of the run do not count

    def __init__(self) -> None:
        self._last: Reading | None = None
        self._warned = False

    def attach(self, engine: Engine) -> None:
        """Take a reading at most once per INTERVAL. Do nothing if the system does not report waiting times."""
        if any(TASKS.glob("*/schedstat")):
            engine.add_event_handler(Events.STARTED | Events.ITERATION_COMPLETED, self._look)

    def _look(self) -> None:
        last, threads = self._last, torch.get_num_threads()
        if self._warned or threads == 1 or (last is not None and time.monotonic() < last.time + self.INTERVAL):
            return
        now = self._last = read()
        if last is None or now is None:
            return
        seconds = now.time - last.time
        waiting, others = (now.waiting - last.waiting) / seconds, (now.others - last.others) / seconds
        if waiting < self.WAITING or others < self.OTHERS:
            return
        self._warned = True
        log.warning(
            "Other programs use %.1f of %d cores, which slows down torch's %d threads. End those programs, or restart "
            "with OMP_NUM_THREADS=%d, which is probably faster.",
            others,
            cores(),
            threads,
            max(1, min(threads - 1, cores() - round(others))),
        )


def read() -> Reading | None:
    """Take a reading; None if the system refuses it."""
    try:
        return Reading(time.monotonic(), seconds_waited(TASKS), _busy() - _own())
    except (OSError, psutil.Error):
        return None


def seconds_waited(tasks: Path) -> float:
    """Return the seconds that threads have waited for a core.

    Args:
        tasks: folder of a process's threads. The second number of `schedstat` is in nanoseconds.
    """
    nanoseconds = 0
    for file in tasks.glob("*/schedstat"):
        try:
            nanoseconds += int(file.read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
    return nanoseconds / 1e9


def _busy() -> float:
    """Return the CPU seconds of all programs on the cores that this process may use."""
    allowed = psutil.Process().cpu_affinity()
    times = [each for core, each in enumerate(psutil.cpu_times(percpu=True)) if core in allowed]
    return sum(each.user + each.nice + each.system + each.irq + each.softirq for each in times)


def _own() -> float:
    """Return the CPU seconds of this process and its descendants."""
    process = psutil.Process()
    seconds = 0.0
    for each in (process, *process.children(recursive=True)):
        try:
            seconds += sum(each.cpu_times()[:4])  # user and system, also of children that have ended
        except psutil.NoSuchProcess:
            continue
    return seconds
