"""Blocks of memory that processes share. Their space is reserved before it is used.

`multiprocessing.RawArray` only maps its memory. Where /dev/shm is too small, as it often is in a container, the first
write then kills the process with SIGBUS.
"""

import mmap
import os
import tempfile
import weakref
from multiprocessing import heap

from lib.errors import UsageError

# On Linux; elsewhere, a temporary file is mapped.
FOLDER = "/dev/shm" if os.path.isdir("/dev/shm") else tempfile.gettempdir()


class SharedBlock:
    """Zeroed memory that a child process shares if the block is among the arguments with which it is started.

    A UsageError says that FOLDER has no room for `size` bytes.
    """

    def __init__(self, size: int):
        size = max(1, size)
        if not hasattr(os, "posix_fallocate"):  # as on macOS
            self._arena = heap.Arena(size)
            return
        descriptor = _reserved(size)
        self._arena = heap.Arena(size, descriptor)
        # An arena closes only descriptors that it has opened itself.
        weakref.finalize(self._arena, os.close, descriptor).atexit = False

    @property
    def memory(self) -> mmap.mmap:
        """The memory as a writable buffer."""
        buffer: mmap.mmap = self._arena.buffer
        return buffer


def _reserved(size: int) -> int:
    """Return a descriptor of an unlinked file for which `size` bytes are reserved."""
    file, path = tempfile.mkstemp(dir=FOLDER)
    os.unlink(path)
    try:
        os.posix_fallocate(file, 0, size)
    except OSError as error:
        os.close(file)
        raise UsageError(
            f"{size / 1e6:,.1f} MB of memory to share with other processes do not fit into {FOLDER}: "
            f"{error.strerror}. Make room there (in a container, with --shm-size), use fewer environments or processes "
            "or shorter rollouts, or keep everything in one process"
        ) from error
    return file
