"""Atomic writes of text files, waiting until data is on the disk, and digests."""

import hashlib
import os
from pathlib import Path
from typing import IO, Any

# The root folder of the checkout.
PROJECT = Path(__file__).resolve().parents[2]


def write(path: Path, text: str) -> None:
    """Write a text file atomically: the old content stays until all of the new content is on the disk.

    Raises:
        OSError: if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            sync(file)
        temporary.replace(path)
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
