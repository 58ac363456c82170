"""Types and checks of command line options. Each type turns the text of an option into its value."""

import argparse
import math
import os
from pathlib import Path

import torch

from lib.errors import UsageError, divisors


def whole(text: str) -> int:
    """Parse a whole number, which may be written as 1e5."""
    try:
        return parse_whole(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number that fits in 64 bits") from error


def positive(text: str) -> int:
    """Parse a whole number of at least 1."""
    value = whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def seed(text: str) -> int:
    """Parse a seed, a whole number from 0 to 2**32 - 1."""
    value = whole(text)
    if not 0 <= value < 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and {2**32 - 1}")
    return value


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    value = _number(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return value


def above_zero(text: str) -> float:
    """Parse a finite number above 0."""
    value = _number(text)
    if not 0.0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def folder(text: str) -> Path:
    """Parse the path of a folder. An empty text, as from an unset variable, is not the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("the folder's name is empty")
    return Path(text)


def usable_device(name: str) -> torch.device:
    """Return a device of this machine.

    Raises:
        UsageError: if this machine does not have the device.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda", "mps"):
        raise UsageError(f"unknown device {name!r}; use cpu, cuda, cuda:N or mps")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(
            f"{name} asks for a GPU, and PyTorch {torch.__version__} finds {torch.cuda.device_count()} of them; use "
            "the device cpu, which is the default"
        )
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UsageError("mps asks for an Apple GPU, and this machine has none; use the device cpu")
    return device


def writable(path: Path, option: str) -> Path:
    """Check early that a file can be written later, and return its absolute path. A link is followed.

    Args:
        path: path of the file.
        option: option that names it, for the message.

    Raises:
        UsageError: if the folder does not exist or cannot be written, if the path is a folder or a device, or if the
            file belongs to a run, except for its evaluation.json.
    """
    try:
        target = path.resolve()
    except RuntimeError:  # raised for a link to itself before Python 3.13; later ones return the link
        target = path
    if target.is_symlink():
        raise UsageError(f"{path} is a link that leads to itself; give {option} another file")
    if (target.exists() and not target.is_file()) or not os.access(target.parent, os.W_OK):
        raise UsageError(f"{path} cannot be written; give {option} a file in a folder that exists and can be written")
    if (target.parent / "params.json").exists() and target.name in ("params.json", "episodes.csv", "result.json"):
        raise UsageError(f"{path} belongs to a run and would be lost; give {option} another file")
    return target


def quotient(option: str, whole: int, part: int) -> int:
    """Return whole / part, for an option that has to divide a batch.

    Raises:
        UsageError: if part does not divide whole.
    """
    if whole % part:
        raise UsageError(f"{option} {part} does not divide the batch of {whole}; give one of {divisors(whole)}")
    return whole // part


def parse_whole(text: str) -> int:
    """Parse a whole number that fits in 64 bits. It may be written as 1e5.

    Raises:
        ValueError: if the text is not a whole number.
        OverflowError: if the number needs more than 64 bits.
    """
    try:
        value = int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        value = int(number)
    if abs(value) >= 2**63:
        raise OverflowError(text)
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from error
