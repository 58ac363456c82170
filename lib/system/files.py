"""Files: atomic writes, fsync, digests, and remedies for system errors."""

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

# The root folder of the checkout.
PROJECT = Path(__file__).resolve().parents[2]


# Remedies for system errors, by errno.
REMEDIES = {
    errno.ENOSPC: "make room",
    errno.EDQUOT: "make room",
    errno.EFBIG: "allow larger files, by ulimit -f or on another file system",
    errno.EROFS: "make the disk writable",
    errno.EMFILE: "raise the limit on open files, for example by ulimit -n 4096",
    errno.EAGAIN: "raise the limit on processes, if it is reached, for example by ulimit -u 4096",
    errno.EEXIST: "move the existing file away",
}


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically: the old content stays until all of the new content is on the disk.

    Raises:
        OSError: if the file cannot be written.
    """
    write_all({path: content})


def write_all(contents: Mapping[Path, str | bytes]) -> None:
    """Write several files. All new contents are on the disk before any file is replaced, in the given order.

    Args:
        contents: content of each file; texts are encoded in UTF-8.

    Raises:
        OSError: if a file cannot be written.
    """
    with ExitStack() as stack:
        for path, content in reversed(list(contents.items())):  # the stack ends with the last one first
            temporary = stack.enter_context(_replacing(path))
            with temporary.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                sync(file)


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path. The file written there replaces the one at `path` when the block ends without error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except OSError as error:
        names = (error.filename, error.filename2)
        if names == (None, None) or str(temporary) in map(str, names):
            error.filename = str(path)  # messages do not name the temporary file
            del error.filename2
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Set the path of disk errors in this block that have none."""
    try:
        yield
    except OSError as error:
        set_path(error, path)
        raise


def set_path(error: OSError, path: Path) -> None:
    """Set the path of a disk error that has none, such as a full disk while a file is written."""
    if error.filename is None and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO):
        error.filename = str(path)


def sync(file: IO[Any]) -> None:
    """Wait until everything written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk, if the file system can tell."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):  # of shared folders without such a call
            raise
    finally:
        os.close(descriptor)


def digest(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of the first `size` bytes of a file, or of the whole file."""
    with path.open("rb") as file:
        if size is not None:
            return hashlib.sha256(file.read(size)).hexdigest()
        return hashlib.file_digest(file, "sha256").hexdigest()
