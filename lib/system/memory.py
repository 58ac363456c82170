"""How much memory there is, and how the C library treats it."""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

from lib.errors import UsageError

# Parameters of mallopt(3) in glibc's malloc.h, and the largest block that it lets its heap serve.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


LARGEST = 32 * 2**20


KEPT = 8 * LARGEST  # bytes that may lie free in the heap before they are handed back


# The files of a control group, versions 2 and 1: limit, use, statistics, and in these the cache that can be dropped.
GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def keep_freed_memory() -> bool:
    """Let glibc keep what PyTorch frees, in place of handing it back to the system after every operation.

    The activations of a batch are blocks of some megabytes. By default each is mapped, cleared page by page on
    first use and unmapped again: 23 ms for a DQN batch of 32 on two cores, 17.6 with this. Blocks above 32 MiB,
    such as the replay's copy in a checkpoint, still go back at once. What is kept has to be looked after by a Trimmer.

    Returns:
        Whether it was done; other C libraries have no such parameters and need none.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, KEPT))


class Trimmer:
    """Hands back what lies free between blocks that are in use, every time that the process has grown by KEPT bytes.

    A batch's activations leave gaps, into which long-lived frames are put; the next batch then needs a new place. The
    gaps come to gigabytes where batches are large and each frame is a block of its own.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._low = self._process.memory_info().rss

    def __call__(self) -> None:
        if self._trim is not None and self._process.memory_info().rss > self._low + KEPT:
            self._trim(0)
            self._low = self._process.memory_info().rss


def free(groups: tuple[tuple[str, str, str, str], ...] = GROUPS) -> int:
    """Bytes that this process can still take: the machine's, or what its control group leaves of its limit."""
    bounds = [psutil.virtual_memory().available]
    for folder, limit_name, use_name, cache_name in groups:
        try:
            limit = (Path(folder) / limit_name).read_text().strip()
            use = int((Path(folder) / use_name).read_text())
            statistics = dict(line.split() for line in (Path(folder) / "memory.stat").read_text().splitlines())
        except OSError:
            continue  # no such group on this system
        if limit != "max":
            bounds.append(int(limit) - use + int(statistics[cache_name]))
    return max(0, min(bounds))


def require(wanted: str, amount: int, needed: int, way_out: Callable[[int], str]) -> None:
    """See that what is wanted fits.

    Args:
        wanted: how the message begins, such as "a replay of 1,000 steps needs".
        amount: how much of it is wanted, such as 1,000.
        needed: bytes for that.
        way_out: says what to do, from the amount that would fit and leave a fifth of what is free.

    Raises:
        UsageError: it would not fit into the memory that is free.
    """
    bytes_free = free()
    if needed > bytes_free:
        fitting = int(0.8 * amount * bytes_free / needed)
        raise UsageError(
            f"{wanted} {_gigabytes(needed)} GB of memory, and {_gigabytes(bytes_free)} GB are free; "
            f"{way_out(fitting) if fitting else 'make room first'}"
        )


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:,.0f}" if number >= 100e9 else f"{number / 1e9:.3g}"
