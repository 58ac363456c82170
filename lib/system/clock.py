"""Process time, and a stopwatch for the parts of a loop."""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

STAT = Path("/proc/self/stat")
IMPORTED = time.monotonic()


class Stopwatch:
    """Add up the seconds spent in named parts of a loop: `with stopwatch("act"): ...`.

    Attributes:
        seconds: total seconds of each part.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start


def since_process_start() -> float:
    """Return the seconds since the operating system started this process; without /proc, since this file's import.

    The clock of the day is not used, because it may be changed.
    """
    return time.monotonic() - _process_start()


@cache
def _process_start() -> float:
    if not STAT.exists():
        return IMPORTED
    # Field 22 of proc(5): the start in clock ticks since boot. Field 2, the process's name, may contain spaces.
    ticks = int(STAT.read_bytes().rpartition(b")")[2].split()[19])
    running = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - running
