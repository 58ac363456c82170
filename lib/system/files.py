"""Files that are there as a whole or as they were before, whatever ends the process, and the power too."""

import os
from pathlib import Path
from typing import IO

PROJECT = Path(__file__).resolve().parents[2]  # the folder of the checkout


def write(path: Path, text: str) -> None:
    """Write a text file; until all of it is on the disk, what was there before stays.

    Raises:
        OSError: the disk refused it.
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


def sync(file: IO) -> None:
    """Wait until all that was written to an open file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until a folder's names are on the disk, where the system can be asked for that."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
