"""Observations of any space, converted into states: images, boards, vectors, or one vector of several of these.

image     uint8 (84, 84), grey, later stacked to (4, 84, 84); or (channels, 84, 84), which is not stacked
board     float32 (channels, height, width), smaller than an image
vector    float32 (numbers,); float64 if float32 could not hold the observation's numbers
"""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import cv2
import numpy as np
from gymnasium import spaces

from lib.envs.atari import SCREEN
from lib.envs.masks import NUMERIC
from lib.errors import UsageError

log = logging.getLogger(__name__)

MIN_IMAGE_SIDE = 36  # pixels; the smallest side that the convolutions for images can process
Place = tuple[str | int, ...]  # names and indices that lead to a part of an observation
UNBOUNDED = np.iinfo(np.int32).max  # larger bounds are only the range of the data type
LUMINANCE = np.array([0.2125, 0.7154, 0.0721])  # of red, green and blue, as in gymnasium's GrayscaleObservation


def observation_kind(shape: tuple[int, ...]) -> Literal["image", "board", "vector"]:
    """Return the kind of a state of shape (numbers,) or (channels, height, width), which decides on its network.

    Raises:
        ValueError: if the shape has another number of dimensions.
    """
    if len(shape) == 3:
        return "image" if min(shape[1:]) >= MIN_IMAGE_SIDE else "board"
    if len(shape) != 1:
        raise ValueError(f"the shape of a state is {shape}; it has to be (channels, height, width) or (numbers,)")
    return "vector"


class Conversion:
    """Conversion of some parts of an observation into one state: functions that are applied one after the other.

    Args:
        parts: spaces of the parts, by their places. Several parts are converted together, as a tuple.

    Attributes:
        name: the places as they are written in Python, such as "['hand'][0]"; empty for a whole observation.
        space: space of the states.
        notes: what the functions do, for people.
    """

    def __init__(self, parts: Mapping[Place, spaces.Space[Any]]):
        self.name = ", ".join(map(_name_of, parts))
        self.space: Any = spaces.Tuple(parts.values()) if len(parts) > 1 else next(iter(parts.values()))
        self.notes = [f"from {self.name}"] if self.name else []
        self._places = list(parts)
        self._functions: list[Callable[[Any], Any]] = []

    def __call__(self, observation: Any) -> Any:
        parts = [functools.reduce(lambda whole, name: whole[name], place, observation) for place in self._places]
        state = tuple(parts) if len(parts) > 1 else parts[0]
        for function in self._functions:
            state = function(state)
        return state

    def add(self, note: str, function: Callable[[Any], Any], space: spaces.Space[object] | None = None) -> None:
        """Add a function. Its space is given, or that of the function's values for the bounds of the space so far."""
        if space is None:
            low, high = function(self.space.low), function(self.space.high)
            space = spaces.Box(low, high, dtype=low.dtype.type)
        self.space = space
        self.notes.append(note)
        self._functions.append(function)


def prepare(space: spaces.Space[object], env_id: str, channel_axis: object = None) -> list[Conversion]:
    """Return how observations become states: a conversion for each image or board, and one for all other parts.

    Parts of a Dict or Tuple that no network here can use are left out, with a warning. All parts that are no image or
    board are flattened into one vector by gymnasium's flatten, which encodes a Discrete number as a one-hot vector.
    MultiBinary and MultiDiscrete spaces of several dimensions, such as MultiBinary([15, 15]), are boards. Integers
    become real numbers; each is divided by the largest absolute value that its space allows. Axes of length 1 are
    removed.

    A Box with bounds is a board if a side is below 36. Otherwise it is an image if its numbers go up to 255, or if it
    has three or four channels or 84 x 84 cells. All other grids are flattened: resizing would destroy their numbers,
    and without bounds, these may need the precision and the normalisation of a vector.

    Args:
        space: any observation space.
        env_id: gymnasium id, for messages.
        channel_axis: which of three axes holds the channels, 0, 1 or 2; None for the usual one, see _layout.

    Raises:
        UsageError: if the observations cannot be converted.
    """
    if channel_axis not in (None, 0, 1, 2):
        raise UsageError(f"{env_id} has channel_axis={channel_axis!r}; it has to be 0, 1 or 2")
    parts = dict(_leaves(space))
    usable = {place: part for place, part in parts.items() if isinstance(part, NUMERIC)}
    if not usable:
        raise UsageError(
            f"{env_id} has the observation space {space}, which no network here can use; it has to be "
            "a Box, Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict of these"
        )
    if unusable := [_name_of(place) for place in parts if place not in usable]:
        text = f"{env_id}: observation entries are left out, because no network here can use them: "
        log_once(logging.WARNING, f"{text}{', '.join(unusable)}.")
    groups = [{place: part} for place, part in usable.items() if _is_picture(part)]
    if others := {place: part for place, part in usable.items() if not _is_picture(part)}:
        groups.append(others)
    conversions = [Conversion(group) for group in groups]
    for each in conversions:
        _fill(each, env_id if len(conversions) == 1 else f"{env_id}, {each.name}", channel_axis)
    return conversions


def _leaves(space: spaces.Space[object], place: Place = ()) -> Iterator[tuple[Place, spaces.Space[object]]]:
    """Yield the innermost parts of nested Dict and Tuple spaces, with their places."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for name, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
            yield from _leaves(part, (*place, name))
    else:
        yield place, space


def _name_of(place: Place) -> str:
    return "".join(f"[{each!r}]" for each in place)


def _is_picture(space: spaces.Space[object]) -> bool:
    """Return whether a space holds images or boards."""
    return len(_without_ones(space)) in (2, 3)


def _without_ones(space: spaces.Space[object]) -> tuple[int, ...]:
    """Return the shape of a space without axes of length 1, but with at least one axis."""
    return tuple(length for length in space.shape or () if length != 1) or (1,)


def _layout(shape: tuple[int, ...], channel_axis: Any = None) -> tuple[int | None, int, int, int]:
    """Return which of two or three axes holds the channels, if any does, and the channels, height and width.

    Usually, two neighbours of equal length are the height and the width. Otherwise the last axis holds the channels,
    unless the first one is the shortest.
    """
    if len(shape) == 2:
        return None, 1, *shape
    if channel_axis is None:
        first, middle, last = shape
        is_first = middle == last if (first == middle) != (middle == last) else first < min(middle, last)
        channel_axis = 0 if is_first else 2
    height, width = shape[:channel_axis] + shape[channel_axis + 1 :]
    return channel_axis, shape[channel_axis], height, width


def _fill(conversion: Conversion, name: str, channel_axis: object) -> None:
    """Add the functions that make a state of one image or board, or of other parts; see prepare."""
    original = conversion.space = _board_of(conversion.space) or conversion.space
    if not isinstance(original, spaces.Box):
        flat = spaces.flatten_space(original)
        note = "flattened; Discrete and MultiDiscrete numbers are one-hot"
        conversion.add(note, functools.partial(spaces.flatten, original), flat)
    shape = _without_ones(conversion.space)
    if conversion.space.shape != shape:
        conversion.add(f"reshaped to {shape}", lambda array: array.reshape(shape))
    if 0 in shape or len(shape) > 3:
        raise UsageError(
            f"{name} has the observation space {original}, of {len(shape)} dimensions; it has to be a vector (n,), or "
            "a board or image (height, width) with or without channels. gymnasium's TransformObservation converts it"
        )
    if len(shape) == 1:
        _to_real(conversion, original)
        return
    axis, channels, height, width = _layout(shape, channel_axis)
    low, high = float(conversion.space.low.min()), float(conversion.space.high.max())
    has_bounds = max(-low, high) < UNBOUNDED
    is_board = has_bounds and min(height, width) < MIN_IMAGE_SIDE
    is_image = has_bounds and low < high and (high == 255 or channels in (3, 4) or height == width == SCREEN)
    if not is_board and not is_image:
        reason = "an image would have numbers up to 255, three or four channels, or 84 x 84 cells"
        conversion.add(f"flattened: {reason if has_bounds else 'an image or board would have bounds'}", np.ravel)
    elif axis is not None:
        note = f"axis {axis}, the channels, in front"
        conversion.add(note, lambda grid: np.ascontiguousarray(np.moveaxis(grid, axis, 0)))
    elif is_board:
        conversion.add("one channel", lambda board: board[None])
    if is_image and not is_board:
        _to_image(conversion, low, high)
    else:
        _to_real(conversion, original)


def _board_of(space: spaces.Space[object]) -> spaces.Box | None:
    """Return the Box that equals a MultiBinary or MultiDiscrete space of boards; None for all other spaces."""
    box: spaces.Box
    if isinstance(space, spaces.MultiBinary):
        box = spaces.Box(0, 1, space.shape, np.int8)
    elif isinstance(space, spaces.MultiDiscrete):
        box = spaces.Box(space.start, space.start + space.nvec - 1, dtype=np.int64)
    else:
        return None
    return box if _is_picture(box) and min(_layout(_without_ones(box))[2:]) < MIN_IMAGE_SIDE else None


def _to_image(conversion: Conversion, low: float, high: float) -> None:
    """Convert images, (channels, height, width) or grey ones (height, width), from [low, high] to uint8.

    Grey and RGB images become (84, 84), all others (channels, 84, 84).
    """
    bytes_of = functools.partial(spaces.Box, 0, 255, dtype=np.uint8)
    shape = conversion.space.shape
    if conversion.space != bytes_of(shape):
        low = min(0.0, low)
        scale = 255.0 / (high - low)
        conversion.add(
            f"from [{low:g}, {high:g}] to [0, 255], rounded and clipped, uint8",
            lambda image: ((image - low) * scale).round().clip(0, 255).astype(np.uint8),
            bytes_of(shape),
        )
    if len(shape) == 3 and shape[0] == 3:
        conversion.add(
            "grey, as gymnasium's GrayscaleObservation",
            lambda image: np.sum(image * LUMINANCE[:, None, None], axis=0).astype(np.uint8),
            bytes_of(shape[1:]),
        )

    def resize(image: np.ndarray) -> np.ndarray:
        if image.ndim == 3:  # one by one, as OpenCV takes four channels at most
            return np.stack([resize(channel) for channel in image])
        resized: np.ndarray = cv2.resize(image, (SCREEN, SCREEN), interpolation=cv2.INTER_AREA)
        return resized

    conversion.add(f"resized to {SCREEN} x {SCREEN} by area", resize)


def _to_real(conversion: Conversion, original: spaces.Space[object]) -> None:
    """Convert to float32 or float64, and divide each integer of the original space by its largest absolute value.

    Vectors of float64, or of integers without bounds such as times, become float64.
    """
    space = conversion.space
    parts: list[Any] = [part for _, part in _leaves(original)]
    is_integer = np.concatenate([np.full(spaces.flatdim(part), part.dtype.kind in "iu") for part in parts])
    largest = np.maximum(np.abs(space.low.astype(np.float64)), np.abs(space.high.astype(np.float64)))
    largest = np.where(is_integer.reshape(space.shape), largest, 0.0)
    divisors = np.where((largest > 1) & (largest < UNBOUNDED), largest, 1.0).astype(np.float32)
    is_divided = bool(divisors.max() > 1)
    is_precise = (largest >= UNBOUNDED).any() or any(part.dtype == np.float64 for part in parts)
    dtype = np.dtype(np.float64 if is_precise and len(space.shape) == 1 else np.float32)
    if space.dtype != dtype or is_divided:
        by = f"{divisors.max():g}" if (divisors == divisors.max()).all() else str(divisors.tolist())
        divided = f", divided by {by}" if is_divided else ""
        conversion.add(f"{dtype}{divided}", lambda numbers: np.asarray(numbers, dtype) / divisors)


@functools.cache
def log_once(level: int, message: str) -> None:
    log.log(level, message)
