"""Checkpoints that are read: the newest undamaged one, verified, without executable code."""

import logging
import math
import pickle
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from lib.errors import Fault
from lib.run.checkpoint_files import numbered
from lib.system import memory

log = logging.getLogger(__name__)

LARGEST = 2**256  # bound of the finite numbers in a checkpoint; states of random generators have 128 bits


class Damaged(Fault):
    """A checkpoint that is damaged, or a file that is none."""


def newest(folder: Path, damaged: list[Path] | None = None) -> dict[str, Any] | None:
    """Read the newest undamaged checkpoint, and log a warning for each damaged one.

    Args:
        folder: folder of the checkpoints.
        damaged: list to which damaged files are added, the newest first.

    Returns:
        Content of the checkpoint, or None if there are no checkpoints.

    Raises:
        Fault: if there are checkpoints, but all of them are damaged; or if the newest one cannot be read now.
    """
    damaged = [] if damaged is None else damaged
    for _, file in reversed(numbered(folder, "step")):
        try:
            content = load(file)
        except Damaged as fault:
            log.warning("%s", fault)
            damaged.append(file)
        else:
            return content
    if damaged:
        raise Damaged(
            f"none of the {len(damaged)} checkpoints in {folder} can be read. No file was changed. "
            "Restore one, or start a new run"
        )
    return None


def load(file: Path) -> dict[str, Any]:
    """Read one checkpoint into main memory.

    Raises:
        Damaged: if the file is damaged, or holds anything but a dictionary of tensors and plain values.
        Fault: if it cannot be read for another reason, which may pass, such as too little memory.
    """
    try:
        _verify(file)
        # Memory-mapped, so that a replay is not in memory twice while it is restored.
        content: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Damaged:
        raise
    except pickle.UnpicklingError as error:
        raise Damaged(f"{file} holds more than tensors and plain values, perhaps code; it was not loaded") from error
    except (OSError, MemoryError) as error:
        raise Fault(f"{file} cannot be read now: {first_line(error)}. No file was changed; try again") from error
    except Exception as error:  # the unpickler may raise anything on a damaged file
        if "Cannot allocate memory" in str(error) or memory.shortage(error):
            raise Fault(f"{file} cannot be read now: {first_line(error)}. No file was changed; try again") from error
        raise Damaged(f"{file} cannot be read: {first_line(error)}") from error
    if not isinstance(content, dict):
        raise Damaged(f"{file} holds a {type(content).__name__}, not a checkpoint of this project; it was not loaded")
    try:
        fit = numbers_fit(content)
        finite = all(bool(torch.isfinite(tensor).all()) for tensor in _weights(content))
    except RecursionError as error:
        raise Damaged(f"{file} holds an object that contains itself; it was not loaded") from error
    except RuntimeError as error:  # of tensors without numbers
        raise Damaged(f"{file} holds weights of an unknown kind; it was not loaded") from error
    if not fit or not finite:
        raise Damaged(f"{file} holds NaN or a number that is too large; it was not loaded")
    return content


def numbers_fit(content: Any) -> bool:
    """Return whether all numbers of a state are infinite, as a best mean at first, or not too large."""
    return all(abs(number) < LARGEST or abs(number) == math.inf for number in _numbers(content))


def _weights(content: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    for name in ("net", "target"):
        state = content.get(name)
        if isinstance(state, dict):
            yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _numbers(content: Any) -> Iterator[float]:
    if isinstance(content, int | float):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from _numbers(value)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _numbers(value)


def _verify(file: Path) -> None:
    """Verify the checksums inside a checkpoint: torch.load reads a flipped bit without a word.

    Raises:
        Damaged: if one is wrong.
        OSError: if the file cannot be read.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, zlib.error, struct.error) as error:
        raise Damaged(f"{file} is damaged: {error}") from error
    if damaged is not None:
        raise Damaged(f"{file} is damaged: the checksum of {damaged} in it is wrong")


def first_line(error: BaseException) -> str:
    """Return the first line of an error, without torch's place in its source."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return "the file is incomplete" if "unexpected pos" in line else re.sub(r"^\[enforce fail[^]]*\][\s.]*", "", line)
