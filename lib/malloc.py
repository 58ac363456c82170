"""A setting of the C library that a training step on the CPU is a quarter faster with."""

import ctypes
import sys

# Parameters of mallopt(3) in glibc's malloc.h, and the largest block that it lets its heap serve.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 32 * 2**20


def keep_freed_memory() -> bool:
    """Let glibc keep what PyTorch frees, in place of handing it back to the system after every operation.

    The activations of a batch are blocks of some megabytes. By default each is mapped, cleared page by page on
    first use and unmapped again: 23 ms for a DQN batch of 32 on two cores, 17.6 with this. Blocks above 32 MiB,
    such as the replay's copy in a checkpoint, still go back at once; at most 256 MiB are kept.

    Returns:
        Whether it was done; other C libraries have no such parameters and need none.
    """
    if sys.platform != "linux":
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_MMAP_THRESHOLD, LARGEST) and mallopt(M_TRIM_THRESHOLD, 8 * LARGEST))
