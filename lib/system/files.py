"""Files: the project's folder, atomic writes and fsync."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).resolve().parents[2]  # root folder of the checkout
FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for writing. The old content of `path` stays until all of the new content is on the disk."""
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
    folder = os.open(path.parent, os.O_RDONLY)
    with suppress(OSError):  # shared folders may not be able to synchronise their entries
        os.fsync(folder)
    os.close(folder)


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically; see `replacing`."""
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def sync(file: IO[bytes]) -> None:
    """Wait until everything written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())
