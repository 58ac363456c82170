"""CPU times of this process and of other programs, and how long threads have waited for a core."""

import time
from pathlib import Path
from typing import NamedTuple

import psutil

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
