"""Free memory, and the C library's allocator."""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import torch

from lib.errors import Fault, UsageError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of mallopt(3), from glibc's malloc.h
HEAP_BLOCK = 32 * 2**20  # largest block, in bytes, that glibc may serve from its heap
KEPT = 8 * HEAP_BLOCK  # free bytes that glibc may keep at the top of its heap

GROUP = Path("/proc/self/cgroup")  # control group of this process
GROUPS = Path("/sys/fs/cgroup")  # folder of all groups


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks instead of returning them to the system after every operation.

    The activations of a batch are blocks of some megabytes. By default glibc maps and unmaps each block, and the
    system clears it page by page. On two cores, a DQN batch of 32 then takes 23 ms, and 17.6 ms with this setting.
    Blocks above 32 MiB, such as a checkpoint's copy of the replay buffer, are still returned at once.
    """
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(M_MMAP_THRESHOLD, HEAP_BLOCK)
        mallopt(M_TRIM_THRESHOLD, KEPT)


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
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error):
        text = str(error).split(". GPU")[0]  # torch goes on with the state of the GPU
        return Fault(
            f"memory ran out: {text or 'an allocation failed'}. What helps: a smaller replay_size, batch_size, "
            "minibatch or rollout with --set, fewer --envs or --actors, or for a GPU, no other programs on it or "
            "--device cpu. Files that were saved before are kept"
        )
    return None


def require(steps: int, needed: int) -> None:
    """Raise UsageError if a replay buffer of this number of agent steps, `needed` bytes, exceeds the free memory."""
    left = free()
    if needed > left:
        raise UsageError(
            f"a replay buffer of {steps:,} steps needs {needed / 1e9:,.1f} GB of memory, and {left / 1e9:,.1f} GB are "
            f"free; --set replay_size={int(0.8 * steps * left / needed)} would fit"
        )
