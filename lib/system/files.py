"""Files: the project's folder, atomic writes and fsync."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# The root folder of the checkout.
PROJECT = Path(__file__).resolve().parents[2]

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. The old content of `path` stays until all of the new content is on the disk.

    Raises:
        OSError: if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            sync(file)
        temporary.replace(path)
    except OSError as error:
        error.filename = str(path)  # messages do not name the temporary file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically; see `replacing`."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


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
