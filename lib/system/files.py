"""Atomic writes of text files, waiting until data is on the disk, and digests."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

# The root folder of the checkout.
PROJECT = Path(__file__).resolve().parents[2]


def write(path: Path, text: str) -> None:
    """Write a text file atomically: the old content stays until all of the new content is on the disk.

    Raises:
        OSError: if the file cannot be written.
    """
    with _replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        sync(file)


def copy(source: Path, target: Path) -> None:
    """Copy a file atomically: an old target stays until the whole copy is on the disk.

    Raises:
        OSError: if it cannot be copied.
    """
    with _replacing(target) as temporary:
        shutil.copyfile(source, temporary)
        with temporary.open("rb+") as file:
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
            error.filename, error.filename2 = str(path), None  # messages do not name the temporary file
        raise
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync(file: IO[Any]) -> None:
    """Wait until everything written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's entries are on the disk. Do nothing on systems other than POSIX."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def digest(path: Path, size: int | None = None) -> str:
    """Return the SHA-256 of the first `size` bytes of a file, or of the whole file."""
    with path.open("rb") as file:
        if size is not None:
            return hashlib.sha256(file.read(size)).hexdigest()
        return hashlib.file_digest(file, "sha256").hexdigest()
