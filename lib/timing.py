"""Where the seconds go."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import psutil


class Stopwatch:
    """Adds up the seconds spent in named parts of a loop: `with stopwatch("act"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start


_PROCESS_START = time.monotonic() - (time.time() - psutil.Process().create_time())


def since_process_start() -> float:
    """Seconds since the operating system started this process, imports included."""
    return time.monotonic() - _PROCESS_START
