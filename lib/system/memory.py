"""Free memory, and the C library's allocator."""

import ctypes
import errno
import re
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import torch

from lib.errors import Fault, UsageError

# Parameters of mallopt(3), from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

# Largest block, in bytes, that glibc may serve from its heap.
HEAP_BLOCK = 32 * 2**20

# Free bytes that glibc may keep at the top of its heap before it returns them to the system.
KEPT = 8 * HEAP_BLOCK

# Files of a control group's limit, its usage, and the key of the reclaimable cache in its memory.stat.
VERSION_2 = ("memory.max", "memory.current", "inactive_file")
VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


LESS_DATA = "a smaller replay_size, batch_size or rollout with --set, fewer --envs or --actors, or a higher limit"
FEWER_THREADS = "a higher ulimit -u, or limit of the container on processes, fewer --actors, or more memory"
# Texts of errors that mean too little memory for a tensor, a C++ object, a thread or a library, and what helps.
SIGNS = {
    "DefaultCPUAllocator": LESS_DATA,
    "bad_alloc": LESS_DATA,
    "can't start new thread": FEWER_THREADS,
    "Resource temporarily unavailable": FEWER_THREADS,
    "failed to map segment": LESS_DATA,
}


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks instead of returning them to the system after every operation.

    The activations of a batch are blocks of some megabytes. By default glibc maps and unmaps each block, and the
    system clears it page by page. On two cores, a DQN batch of 32 then takes 23 ms, and 17.6 ms with this setting.
    Blocks above 32 MiB, such as a checkpoint's copy of the replay buffer, are still returned at once. Use a `Trimmer`
    to limit the memory that is kept.

    Returns:
        True if the setting was applied. Other C libraries do not have it and do not need it.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK) and mallopt(M_TRIM_THRESHOLD, KEPT))


class Trimmer:
    """Return free heap memory to the system whenever the process has grown by KEPT bytes.

    The activations of a batch leave gaps in the heap. Long-lived frames fill some of them, and the next batch needs
    new space. With large batches and one block per frame, the gaps add up to gigabytes.
    """

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
        self._last_rss = self._process.memory_info().rss

    def __call__(self) -> None:
        if self._trim is not None and self._process.memory_info().rss > self._last_rss + KEPT:
            self._trim(0)
            self._last_rss = self._process.memory_info().rss


def free(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still allocate.

    This is the smallest of three numbers: the machine's available memory, the rest of the limits of this process's
    control group and its parents (containers, systemd, Slurm), and the rest of `ulimit -v` and `ulimit -d`.

    Args:
        root: folder that holds proc and sys.
    """
    bounds = [psutil.virtual_memory().available, *_left_in_groups(root), *_left_of_limits()]
    return max(0, min(bounds))


def _left_in_groups(root: Path) -> Iterator[int]:
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # this system has no control groups
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, names = root / "sys/fs/cgroup", VERSION_2
        elif "memory" in controllers.split(","):
            top, names = root / "sys/fs/cgroup/memory", VERSION_1
        else:
            continue
        own = top / path.lstrip("/")
        for folder in (own, *own.parents):
            if folder.is_relative_to(top):  # in a container, the path may be that of the host, and not exist here
                yield from _left_in_group(folder, *names)


def _left_in_group(folder: Path, limit_name: str, usage_name: str, cache_name: str) -> Iterator[int]:
    try:
        limit = (folder / limit_name).read_text().strip()
        usage = int((folder / usage_name).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except OSError:
        return
    if limit != "max":
        yield int(limit) - usage + int(statistics[cache_name])


def _left_of_limits() -> Iterator[int]:
    if sys.platform != "linux":
        return
    pages = [int(number) for number in Path("/proc/self/statm").read_text().split()]
    for limit, used in ((resource.RLIMIT_AS, pages[0]), (resource.RLIMIT_DATA, pages[5])):
        soft, _ = resource.getrlimit(limit)
        if soft != resource.RLIM_INFINITY:
            yield soft - used * resource.getpagesize()


def shortage(error: BaseException) -> Fault | None:
    """Return the message for an error that was raised because memory ran out; None for any other error."""
    advice = ""
    if isinstance(error, torch.OutOfMemoryError):
        advice = "a smaller batch_size or minibatch with --set, no other programs on this GPU, or --device cpu"
    elif isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        advice = LESS_DATA
    elif isinstance(error, RuntimeError | ImportError):
        advice = next((helps for sign, helps in SIGNS.items() if sign in str(error)), "")
    if not advice:
        return None
    where = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
    problem = _first_sentence(error) or "an allocation failed"
    return Fault(f"{where} ran out: {problem}. What helps: {advice}. Files that were saved before are kept")


def _first_sentence(error: BaseException) -> str:
    """Return the first sentence of an error, without torch's place in its source."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else ""
    text = re.sub(r"^\[enforce fail.*?(?=DefaultCPUAllocator)", "", text)
    return re.split(r"(?<!\d)\. ", text)[0].rstrip(".")  # numpy writes "931. GiB"


def require(subject: str, amount: int, needed: int, advice: Callable[[int], str]) -> None:
    """Check that an allocation fits into the free memory.

    Args:
        subject: start of the error message, such as "a replay buffer of 1,000 steps needs".
        amount: requested size in the caller's unit, such as 1,000 steps.
        needed: bytes for that amount.
        advice: function that returns the last part of the message. Its argument is the amount that would fit into 80 %
            of the free memory.

    Raises:
        UsageError: if it does not fit.
    """
    bytes_free = free()
    if needed > bytes_free:
        fitting = int(0.8 * amount * bytes_free / needed)
        raise UsageError(
            f"{subject} {_gigabytes(needed)} GB of memory, and {_gigabytes(bytes_free)} GB are free; "
            f"{advice(fitting) if fitting else 'make room first'}"
        )


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:,.0f}" if number >= 100e9 else f"{number / 1e9:.3g}"
