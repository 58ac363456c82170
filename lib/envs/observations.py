"""Observations of any environment, converted into images, boards or vectors.

image     uint8 (84, 84), grey, later stacked to (4, 84, 84); or (channels, 84, 84), which is not stacked
board     float32 (channels, height, width), smaller than an image
vector    float32 (numbers,); float64 if float32 could not hold the observation's numbers
"""

import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Literal

import cv2
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    FlattenObservation,
    GrayscaleObservation,
    ReshapeObservation,
    ResizeObservation,
    TransformObservation,
)

from lib.envs.atari import SCREEN
from lib.envs.checked_env import wrappers
from lib.envs.masks import MaskedBox
from lib.errors import UsageError

log = logging.getLogger(__name__)

MIN_IMAGE_SIDE = 36  # pixels; the smallest side that the convolutions for images can process
NOTES = "_pong_ladder_conversions"  # attribute of a wrapper; see noted
Place = tuple[str | int, ...]  # names and indices that lead to a part of an observation
USABLE = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)  # others than Dict and Tuple
ONE_HOT = "Discrete and MultiDiscrete numbers are one-hot"
UNBOUNDED = np.iinfo(np.int32).max  # larger bounds are only the range of the data type


def observation_kind(observation: spaces.Space[object] | tuple[int, ...]) -> Literal["image", "board", "vector"]:
    """Return the kind of an observation, which decides which network encodes it.

    Args:
        observation: Box, or shape: (numbers,) or (channels, height, width). The mask of a MaskedBox is ignored.

    Raises:
        ValueError: if the shape has another number of dimensions.
    """
    space = observation.plain if isinstance(observation, MaskedBox) else observation
    shape = (space.shape or ()) if isinstance(space, spaces.Space) else space
    if len(shape) == 3:
        return "image" if min(shape[1:]) >= MIN_IMAGE_SIDE else "board"
    if len(shape) != 1:
        raise ValueError(f"the shape of a state is {shape}; it has to be (channels, height, width) or (numbers,)")
    return "vector"


def prepare(env: gym.Env, env_id: str, channel_axis: object = None) -> gym.Env:
    """Wrap an environment so that its observations are images, boards or vectors.

    Spaces other than Box, such as Discrete, Tuple or Dict, are flattened into a vector by gymnasium's
    FlattenObservation, which encodes a Discrete number as a one-hot vector. But MultiBinary and MultiDiscrete spaces of
    several dimensions, such as MultiBinary([15, 15]), become boards. Integers become real numbers; each is divided by
    the largest absolute value that its space allows. Axes of length 1 are removed.

    A Box whose height and width are at least 36 is an image if its numbers go up to 255, or if it has three channels
    with bounds. A larger grid of other numbers is flattened, because an image's resizing would lose them.

    Args:
        env: environment with observations of any space.
        env_id: gymnasium id, for messages.
        channel_axis: which of three axes holds the channels, 0, 1 or 2; None for the usual one, see _layout.

    Raises:
        UsageError: if the observations cannot be converted.
    """
    if channel_axis not in (None, 0, 1, 2):
        raise UsageError(f"{env_id} has channel_axis={channel_axis!r}; it has to be 0, 1 or 2")
    if not isinstance(env.observation_space, spaces.Box):
        env = _flatten(env, env_id)
    shape = _without_ones(env.observation_space)
    if env.observation_space.shape != shape:
        env = noted(ReshapeObservation(env, shape), f"reshaped to {shape}")
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    if 0 in shape or len(shape) > 3:
        raise UsageError(
            f"{env_id} has the observation space {space}, of {len(shape)} dimensions; the networks here take "
            "vectors (n,), boards and images (height, width), with or without channels. Wrap it in gymnasium's "
            "ReshapeObservation or FlattenObservation"
        )
    if len(shape) == 1:
        return _to_real(env, env_id)
    axis, channels, height, width = _layout(shape, channel_axis)
    if min(height, width) < MIN_IMAGE_SIDE:
        note = "one channel" if axis is None else f"axis {axis}, the channels, in front"
        moved = _transform(_to_real(env, env_id), lambda board: np.ascontiguousarray(_channels_first(board, axis)))
        return noted(moved, note)
    if _is_image(space, channels):
        _log_once(logging.INFO, f"{env_id}: the observations, {space}, are used as images of {SCREEN} x {SCREEN}.")
        return _image(env, axis)
    _log_once(
        logging.WARNING,
        f"{env_id}: the observations, {space}, are flattened into vectors. They are used as images if their bounds "
        "are 0 and 255 or if they have three channels, and as boards if a side is below 36.",
    )
    return _to_real(noted(FlattenObservation(env), "flattened"), env_id)


def leaves(space: spaces.Space[object], place: Place = ()) -> Iterator[tuple[Place, spaces.Space[object]]]:
    """Yield the parts of a Dict or Tuple that are neither, with their places."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for name, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
            yield from leaves(part, (*place, name))
    else:
        yield place, space


def noted(env: gym.Env, *notes: str) -> gym.Env:
    """Note on a wrapper how it converts observations, for `conversions`."""
    setattr(env, NOTES, notes)
    return env


def conversions(env: gym.Env) -> list[str]:
    """Return how an environment's observations become states: the notes of its wrappers, in their order."""
    return [note for each in [*wrappers(env)][::-1] for note in vars(each).get(NOTES, ())]


def part_of(observation: Any, place: Place) -> Any:
    """Return the part of an observation at a place."""
    for each in place:
        observation = observation[each]
    return observation


def name_of(place: Place) -> str:
    """Return the place as it is written in Python, such as "['hand'][0]"."""
    return "".join(f"[{each!r}]" for each in place)


def usable_parts(space: spaces.Space[object], env_id: str) -> dict[Place, spaces.Space[object]]:
    """Return the parts of a space that a network here can use. The others are left out, with a warning.

    Raises:
        UsageError: if there is none.
    """
    parts = dict(leaves(space))
    usable: dict[Place, spaces.Space[object]] = {
        place: part for place, part in parts.items() if isinstance(part, USABLE)
    }
    if not usable:
        raise UsageError(
            f"{env_id} has the observation space {space}, which no network here can use; it has to be "
            "a Box, Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict of these"
        )
    if unusable := [name_of(place) for place in parts if place not in usable]:
        text = f"{env_id}: observation entries are left out, because no network here can use them: "
        _log_once(logging.WARNING, f"{text}{', '.join(unusable)}.")
    return usable


def is_picture(space: spaces.Space[object]) -> bool:
    """Return whether a space holds images or boards."""
    return len(_without_ones(space)) in (2, 3)


def _without_ones(space: spaces.Space[object]) -> tuple[int, ...]:
    """Return the shape of a space without axes of length 1, but with at least one axis."""
    return tuple(length for length in space.shape or () if length != 1) or (1,)


def _layout(shape: tuple[int, ...], channel_axis: int | None = None) -> tuple[int | None, int, int, int]:
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


def _is_image(space: spaces.Box, channels: int) -> bool:
    """Return whether a Box of the size of an image holds colours or shades, not the cells of a grid."""
    low, high = float(space.low.min()), float(space.high.max())
    return low < high and max(-low, high) < UNBOUNDED and (high == 255 or channels == 3)


def _channels_first(observation: np.ndarray, axis: int | None) -> np.ndarray:
    """Return an image or board as (channels, height, width)."""
    return observation[None] if axis is None else np.moveaxis(observation, axis, 0)


def _flatten(env: gym.Env, env_id: str) -> gym.Env:
    """Flatten observations into a vector. If only one part can be used, it replaces the others.

    MultiBinary and MultiDiscrete spaces of boards keep their shape.
    """
    parts = usable_parts(env.observation_space, env_id)
    if len(parts) > 1:
        order = ", ".join(map(name_of, parts))
        together = spaces.Tuple(parts.values())
        env = TransformObservation(env, lambda whole: tuple(part_of(whole, each) for each in parts), together)
        return noted(FlattenObservation(env), f"flattened in the order {order}; {ONE_HOT}")
    [(place, part)] = parts.items()
    if place:
        env = noted(TransformObservation(env, lambda whole: part_of(whole, place), part), f"entry {name_of(place)}")
    if isinstance(part, spaces.Box):
        return env
    if isinstance(part, spaces.MultiBinary | spaces.MultiDiscrete) and (box := _board_of(part)):
        return TransformObservation(env, np.asarray, box)
    return noted(FlattenObservation(env), f"flattened; {ONE_HOT}")


def _board_of(space: spaces.MultiBinary | spaces.MultiDiscrete) -> spaces.Box | None:
    """Return the Box that equals a space of boards; None if it holds vectors, or is larger than a board."""
    box: spaces.Box
    if isinstance(space, spaces.MultiBinary):
        box = spaces.Box(0, 1, space.shape, np.int8)
    else:
        box = spaces.Box(space.start, space.start + space.nvec - 1, dtype=np.int64)
    return box if is_picture(box) and min(_layout(_without_ones(box))[2:]) < MIN_IMAGE_SIDE else None


def _image(env: gym.Env, axis: int | None) -> gym.Env:
    """Convert images to uint8 from 0 to 255: grey and RGB ones to (84, 84), all others to (channels, 84, 84)."""
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    if space != spaces.Box(0, 255, space.shape, np.uint8):
        low, high = min(0.0, float(space.low.min())), float(space.high.max())
        note = f"from [{low:g}, {high:g}] to [0, 255], rounded and clipped, uint8"
        scale = 255.0 / (high - low)
        to_uint8 = _transform(
            env, lambda image: ((image - low) * scale).round().clip(0, 255).astype(np.uint8), (0, 255)
        )
        env = noted(to_uint8, note)
    if axis is not None and space.shape[axis] == 3:
        env = _transform(env, lambda image: np.moveaxis(image, axis, 2))
        note = f"grey, by gymnasium's GrayscaleObservation; axis {axis} holds the channels"
        env = noted(GrayscaleObservation(env), note)
    note = f"resized to {SCREEN} x {SCREEN} by area"
    if len(env.observation_space.shape or ()) == 2:
        return noted(ResizeObservation(env, (SCREEN, SCREEN)), note)

    def resized(image: np.ndarray) -> np.ndarray:  # one by one, as OpenCV takes four channels at most
        channels = _channels_first(image, axis)
        return np.stack([cv2.resize(each, (SCREEN, SCREEN), interpolation=cv2.INTER_AREA) for each in channels])

    return noted(_transform(env, resized), f"{note}, with the channels, axis {axis}, in front")


def _to_real(env: gym.Env, env_id: str) -> gym.Env:
    """Convert boards or vectors to float32 or float64. Divide each integer by its space's largest absolute value.

    Vectors of float64, or of integers without bounds such as times, become float64.
    """
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    # An integer of a flattened space may be part of a one-hot encoding.
    original = env.env.observation_space if isinstance(env, FlattenObservation) else space
    parts = [part for _, part in leaves(original)]
    largest = np.concatenate([_largest(part) for part in parts]).reshape(space.shape)
    divisors = np.where((largest > 1) & (largest < UNBOUNDED), largest, 1.0).astype(np.float32)
    is_divided = bool(divisors.max() > 1)
    if (largest > 1).any():  # integers from 0 to 1 are flags
        divided = f", each divided by its largest value, at most {divisors.max():g}" if is_divided else ""
        message = f"{env_id}: the observations contain integers, which are converted to real numbers{divided}."
        _log_once(logging.WARNING, message)
    is_precise = (largest >= UNBOUNDED).any() or any(part.dtype == np.float64 for part in parts)
    dtype = np.dtype(np.float64 if is_precise and len(space.shape) == 1 else np.float32)
    if space.dtype == dtype and not is_divided:
        return env
    by = f"{divisors.max():g}" if (divisors == divisors.max()).all() else str(divisors.tolist())
    divided = f", divided by {by}" if is_divided else ""
    return noted(_transform(env, lambda numbers: np.asarray(numbers, dtype) / divisors), f"{dtype}{divided}")


def _largest(space: spaces.Space[object]) -> np.ndarray:
    """Return the largest absolute value of each integer of a part, flat. For other numbers, it is 0."""
    if not isinstance(space, spaces.Box) or space.dtype.kind not in "iu":
        return np.zeros(spaces.flatdim(space))
    return np.maximum(np.abs(space.low.astype(np.float64)), np.abs(space.high.astype(np.float64))).ravel()


def _transform(
    env: gym.Env, function: Callable[[np.ndarray], np.ndarray], bounds: tuple[float, float] | None = None
) -> gym.Env:
    """Apply a function to every observation, and to the bounds of the space unless bounds are given."""
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    with np.errstate(over="ignore"):  # bounds that float32 cannot hold become infinite
        low, high = function(space.low), function(space.high)
    if bounds is not None:
        low, high = np.full_like(low, bounds[0]), np.full_like(high, bounds[1])
    return TransformObservation(env, function, spaces.Box(low, high, dtype=low.dtype.type))


@functools.cache
def _log_once(level: int, message: str) -> None:
    log.log(level, message)
