"""Process time, and a stopwatch for the parts of a loop."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import psutil


class Stopwatch:
    """Add up the seconds spent in named parts of a loop: `with stopwatch("act"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)  # of each part, since the last call of `pop`

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[part] += time.perf_counter() - start

    def pop(self) -> dict[str, float]:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, defaultdict(float)
        return dict(seconds)


def since_process_start() -> float:
    """Return the seconds since the operating system started this process, also if the system's time is changed."""
    return time.monotonic() - _process_start()


@cache
def _process_start() -> float:
    return time.monotonic() - (time.time() - psutil.Process().create_time())
