"""Blocks of memory that processes share. Their space is reserved before it is used.

`multiprocessing.RawArray` only maps its memory. Where /dev/shm is too small, as it often is in a container, the first
write then kills the process with SIGBUS.
"""

import errno
import mmap
import os
import tempfile
import weakref
from multiprocessing import heap

from lib.errors import UsageError

SHARED_MEMORY = "/dev/shm"  # on Linux; elsewhere, and where it is full, a temporary file is mapped


class SharedBlock:
    """Zeroed memory that a child process shares if the block is among the arguments with which it is started.

    Args:
        size: bytes.

    Raises:
        UsageError: if neither /dev/shm nor the folder of temporary files has room for it.
    """

    def __init__(self, size: int):
        size = max(1, size)
        if hasattr(os, "posix_fallocate"):
            descriptor = _reserved(size)
            self._arena = heap.Arena(size, descriptor)
            # An arena closes only descriptors that it has opened itself.
            weakref.finalize(self._arena, os.close, descriptor).atexit = False
        else:
            self._arena = heap.Arena(size)

    @property
    def memory(self) -> mmap.mmap:
        """The memory as a writable buffer."""
        buffer: mmap.mmap = self._arena.buffer
        return buffer


def has_room(size: int) -> bool:
    """Return whether /dev/shm or the folder of temporary files has room for so many bytes."""
    if not hasattr(os, "posix_fallocate"):
        return True
    try:
        os.close(_reserved(size))
    except UsageError:
        return False
    return True


def _reserved(size: int) -> int:
    """Return a descriptor of an unlinked file for which `size` bytes are reserved."""
    folders = [folder for folder in dict.fromkeys((SHARED_MEMORY, tempfile.gettempdir())) if os.path.isdir(folder)]
    for folder in folders:
        try:
            file, path = tempfile.mkstemp(dir=folder)
        except OSError:
            continue  # read-only, or full
        os.unlink(path)
        try:
            os.posix_fallocate(file, 0, size)
        except OSError as error:
            os.close(file)
            if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
                raise
        else:
            return file
    raise UsageError(
        f"{size / 1e6:,.1f} MB of memory to share with other processes do not fit into {' or '.join(folders)}; make "
        "room there (in a container, with --shm-size), use fewer environments or processes or shorter rollouts, or "
        "keep everything in one process"
    )
