"""Free memory, and the C library's allocator."""

import ctypes
import sys
from collections.abc import Callable
from contextlib import suppress
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

# Control group of this process, and the folder of all groups.
GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")

LESS_DATA = "a smaller replay_size, batch_size or rollout with --set, or fewer --envs or --actors"
KEPT_FILES = "Files that were saved before are kept"


def keep_freed_memory() -> bool:
    """Let glibc keep freed blocks instead of returning them to the system after every operation.

    The activations of a batch are blocks of some megabytes. By default glibc maps and unmaps each block, and the
    system clears it page by page. On two cores, a DQN batch of 32 then takes 23 ms, and 17.6 ms with this setting.
    Blocks above 32 MiB, such as a checkpoint's copy of the replay buffer, are still returned at once. A `Trimmer`
    limits the memory that is kept.

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


def free() -> int:
    """Return the bytes that can still be allocated, on the machine and in this process's control groups (version 2)."""
    bounds = [psutil.virtual_memory().available]
    group = GROUPS / GROUP.read_text().rpartition("0::/")[2].strip() if GROUP.exists() else GROUPS
    for folder in (group, *group.parents):
        with suppress(OSError, ValueError):  # not a visible group, or its limit is "max"
            limit = int((folder / "memory.max").read_text())
            usage = int((folder / "memory.current").read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            bounds.append(limit - usage + int(statistics["inactive_file"]))
    return max(0, min(bounds))


def shortage(error: BaseException) -> Fault | None:
    """Return the message for an error that was raised because memory ran out; None for any other error."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        advice = "a smaller batch_size or minibatch with --set, no other programs on this GPU, or --device cpu"
        return Fault(f"the GPU's memory ran out: {text.split('. ')[0]}. What helps: {advice}. {KEPT_FILES}")
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text):
        return Fault(f"memory ran out: {text or 'an allocation failed'}. What helps: {LESS_DATA}. {KEPT_FILES}")
    return None


def require(subject: str, amount: int, needed: int, advice: Callable[[int], str]) -> None:
    """Raise UsageError if an allocation does not fit into the free memory.

    Args:
        subject: start of the error message, such as "a replay buffer of 1,000 steps needs".
        amount: requested size in the caller's unit, such as 1,000 steps.
        needed: bytes for that amount.
        advice: function that returns the last part of the message, given the amount that would fit into 80 % of the
            free memory.
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
