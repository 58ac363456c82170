"""Observations of any environment, converted into images, boards or vectors.

image     uint8 (height, width), grey; later resized and stacked to (4, 84, 84)
board     float32 (channels, height, width), smaller than an image
vector    float32 (numbers,); float64 if float32 could not hold the observation's numbers
"""

import enum
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation, GrayscaleObservation, TransformObservation

from lib.envs.checked_env import wrappers
from lib.envs.masks import MaskedBox
from lib.errors import UsageError

log = logging.getLogger(__name__)

MIN_IMAGE_SIDE = 36  # pixels; the smallest side that the convolutions for images can process
NOTE = "_pong_ladder_conversion"  # attribute of a wrapper; see noted
Place = tuple[str | int, ...]  # names and indices that lead to a part of an observation
UNBOUNDED = np.iinfo(np.int32).max  # larger bounds are only the range of the data type


class ObservationKind(enum.Enum):
    """Kind of an observation, which decides how it is stored and which network encodes it."""

    IMAGE = "image"
    BOARD = "board"
    VECTOR = "vector"


def observation_kind(observation: spaces.Space[Any] | tuple[int, ...]) -> ObservationKind:
    """Return whether observations of a space or shape are images, boards or vectors.

    Args:
        observation: Box, or shape: (numbers,) or (channels, height, width). The mask of a MaskedBox is ignored.

    Raises:
        ValueError: if the shape has another number of dimensions.
    """
    space = observation.plain if isinstance(observation, MaskedBox) else observation
    shape = space.shape if isinstance(space, spaces.Space) else space
    if shape is not None and len(shape) == 1:
        return ObservationKind.VECTOR
    if shape is not None and len(shape) == 3:
        _, height, width = shape
        return ObservationKind.IMAGE if min(height, width) >= MIN_IMAGE_SIDE else ObservationKind.BOARD
    raise ValueError(f"the shape of an observation is {shape}; it has to be (channels, height, width) or (numbers,)")


def prepare(env: gym.Env, env_id: str) -> tuple[gym.Env, ObservationKind]:
    """Wrap an environment so that its observations are images, boards or vectors.

    Spaces other than Box, such as Discrete, Tuple or Dict, are flattened into a vector by gymnasium's
    FlattenObservation, which encodes a Discrete number as a one-hot vector. But MultiBinary and MultiDiscrete spaces of
    several dimensions, such as MultiBinary([15, 15]), become boards. Integers become real numbers; each is divided by
    the largest absolute value that its space allows. Of three axes, two neighbours of equal length above 1 are the
    height and the width. Otherwise, the shorter one of the first and the last holds the channels.

    A Box whose height and width are at least 36 is an image if its numbers go up to 255, or if it has three channels
    with bounds. A larger grid of other numbers is flattened, because an image's resizing would lose them.

    Args:
        env: environment with observations of any space.
        env_id: gymnasium id, for messages.

    Returns:
        The wrapped environment and the kind of its observations.

    Raises:
        UsageError: if the observations cannot be converted.
    """
    if not isinstance(env.observation_space, spaces.Box):
        env = _flatten(env, env_id)
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    if 0 in space.shape or len(space.shape) > 3:
        raise UsageError(
            f"{env_id} has the observation space {space}, of {len(space.shape)} dimensions; the networks here take "
            "vectors (n,), boards and images (height, width), with or without channels. Wrap it in gymnasium's "
            "ReshapeObservation or FlattenObservation"
        )
    channels_last = _has_channels_last(space)
    shape = _channels_first(space.low, channels_last).shape
    kind = observation_kind(shape)
    if kind is ObservationKind.IMAGE:
        if _is_image(space, shape[0]):
            _log_once(logging.INFO, f"{env_id}: the observations, {space}, are used as grey images of 84 x 84.")
            return _grey_image(env, space, env_id, channels_last), kind
        _log_once(
            logging.WARNING,
            f"{env_id}: the observations, {space}, are flattened into vectors. They are used as images if their bounds "
            "are 0 and 255 or if they have three channels, and as boards if a side is below 36.",
        )
        env, kind = noted(FlattenObservation(env), "flattened"), ObservationKind.VECTOR
        return _to_real(env, env_id), kind
    env = _to_real(env, env_id)
    if len(space.shape) in (1, 3) and not channels_last:
        return env, kind
    note = "axes in the order channels, height, width" if channels_last else "an axis of length 1 in front"
    moved = _transform(env, lambda numbers: np.ascontiguousarray(_channels_first(numbers, channels_last)))
    return noted(moved, note), kind


def leaves(space: spaces.Space[Any], place: Place = ()) -> Iterator[tuple[Place, spaces.Space[Any]]]:
    """Yield the parts of a Dict or Tuple that are neither, with their places."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        for name, part in space.items() if isinstance(space, spaces.Dict) else enumerate(space):
            yield from leaves(part, (*place, name))
    else:
        yield place, space


def noted(env: gym.Env, conversion: str) -> gym.Env:
    """Note on a wrapper how it converts observations, for `conversions`."""
    setattr(env, NOTE, conversion)
    return env


def conversions(env: gym.Env) -> list[str]:
    """Return how an environment's observations become states: the notes of its wrappers, in their order."""
    return [vars(each)[NOTE] for each in wrappers(env) if NOTE in vars(each)][::-1]


def _has_channels_last(space: spaces.Box) -> bool:
    """Whether the last of three axes holds the channels."""
    if len(space.shape) != 3:
        return False
    first, middle, last = space.shape
    if middle > 1 and (first == middle) != (middle == last):  # two equal sides are a square board or image
        return first == middle
    return last <= first


def _is_image(space: spaces.Box, channels: int) -> bool:
    """Return whether a Box of the size of an image holds colours or shades, not the cells of a grid."""
    low, high = float(space.low.min()), float(space.high.max())
    return low < high and max(-low, high) < UNBOUNDED and (high == 255 or channels == 3)


def _channels_first(observation: np.ndarray, channels_last: bool) -> np.ndarray:
    """Return an observation as (numbers,) or (channels, height, width)."""
    if channels_last:
        return np.moveaxis(observation, 2, 0)
    return observation[None] if observation.ndim in (0, 2) else observation


def _flatten(env: gym.Env, env_id: str) -> gym.Env:
    """Flatten observations into a vector. If only one entry of a Dict can be used, that entry replaces the Dict.

    MultiBinary and MultiDiscrete spaces of boards keep their shape.
    """
    space = env.observation_space
    if isinstance(space, spaces.Dict):
        usable = {name: part for name, part in space.items() if can_flatten(part)}
        unusable = [repr(name) for name in space if name not in usable]
        warn_about_unusable(env_id, unusable)
        if len(usable) == 1:
            [(name, part)] = usable.items()
            env = noted(TransformObservation(env, lambda entries: entries[name], part), f"the entry {name!r}")
            return env if isinstance(part, spaces.Box) else _flatten(env, env_id)
        if usable and unusable:  # not by FilterObservation, which takes names only
            space = spaces.Dict(usable)
            env = TransformObservation(env, lambda entries: {name: entries[name] for name in usable}, space)
    if not can_flatten(space):
        raise UsageError(
            f"{env_id} has the observation space {space}, which no network here can use; it has to be "
            "a Box, Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict of these"
        )
    if isinstance(space, spaces.MultiBinary | spaces.MultiDiscrete) and (box := _board_of(space)):
        return TransformObservation(env, np.asarray, box)
    order = f" in the order {', '.join(map(repr, space.spaces))}" if isinstance(space, spaces.Dict) else ""
    return noted(FlattenObservation(env), f"flattened{order}; Discrete and MultiDiscrete numbers are one-hot")


def warn_about_unusable(env_id: str, names: Sequence[str]) -> None:
    """Log a warning if entries of an observation are left out."""
    if names:
        _log_once(
            logging.WARNING,
            f"{env_id}: observation entries are left out, because no network here can use them: {', '.join(names)}.",
        )


def _board_of(space: spaces.MultiBinary | spaces.MultiDiscrete) -> spaces.Box | None:
    """Return the Box that equals a space of boards; None if it holds vectors, or is larger than a board."""
    box: spaces.Box[Any]
    if isinstance(space, spaces.MultiBinary):
        box = spaces.Box(0, 1, space.shape, np.int8)
    else:
        box = spaces.Box(space.start, space.start + space.nvec - 1, dtype=np.int64)
    if len(box.shape) not in (2, 3):
        return None
    kind = observation_kind(_channels_first(box.low, _has_channels_last(box)).shape)
    return box if kind is ObservationKind.BOARD else None


def can_flatten(space: spaces.Space[Any]) -> bool:
    """Return whether a space can be flattened into a vector of fixed size that a network here can use.

    gymnasium flattens Text as well, but no network here reads text. It fills a OneOf up with NaN.
    """
    if isinstance(space, spaces.Tuple | spaces.Dict):
        return all(can_flatten(part) for _, part in leaves(space))
    if isinstance(space, spaces.Text | spaces.OneOf):
        return False
    try:
        return isinstance(spaces.flatten_space(space), spaces.Box)
    except NotImplementedError:
        return False


def _grey_image(env: gym.Env, space: spaces.Box, env_id: str, channels_last: bool) -> gym.Env:
    """Convert images to (height, width) uint8 from 0 to 255."""
    low, high = float(space.low.min()), float(space.high.max())
    if space.dtype != np.uint8 or high < 255:
        scale = 255.0 / (high - low)
        note = f"from [{low:g}, {high:g}] to [0, 255], rounded and clipped, uint8"
        to_uint8 = _transform(
            env, lambda image: ((image - low) * scale).round().clip(0, 255).astype(np.uint8), (0, 255)
        )
        env = noted(to_uint8, note)
    elif space.low.any() or (space.high != 255).any():  # gymnasium's wrappers for images need these bounds
        env = _transform(env, lambda image: image, (0, 255))
    if len(space.shape) == 2:
        return env
    if not channels_last:
        note = "axes in the order height, width, channels"
        env = noted(_transform(env, lambda image: np.moveaxis(image, 0, 2)), note)
    shape = env.observation_space.shape
    assert shape is not None
    channels = shape[2]
    if channels == 3:
        return noted(GrayscaleObservation(env), "grey, by gymnasium's GrayscaleObservation")
    if channels == 1:
        return noted(_transform(env, lambda image: image[:, :, 0]), "without the axis of channels")
    raise UsageError(
        f"{env_id} has images of {channels} channels; they have to be 1 (grey) or 3 (RGB); convert them with "
        "gymnasium's TransformObservation"
    )


def _to_real(env: gym.Env, env_id: str) -> gym.Env:
    """Convert boards or vectors to float32 or float64. Divide each integer by its space's largest absolute value.

    Vectors of float64, or of integers without bounds such as times, become float64.
    """
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    # An integer of a flattened space may be part of a one-hot encoding.
    original = env.env.observation_space if isinstance(env, FlattenObservation) else space
    flags = [np.full(spaces.flatdim(part), _is_integer(part)) for _, part in leaves(original)]
    integers = np.concatenate(flags).reshape(space.shape)
    largest = _largest(space)
    divisors = np.where(integers & (largest > 1) & (largest < UNBOUNDED), largest, 1.0).astype(np.float32)
    is_divided = bool(divisors.max() > 1)
    if (integers & (largest > 1)).any():  # integers from 0 to 1 are flags
        divided = f", each divided by its largest value, at most {divisors.max():g}" if is_divided else ""
        message = f"{env_id}: the observations contain integers, which are converted to real numbers{divided}."
        _log_once(logging.WARNING, message)
    is_precise = any(_is_precise(part) for _, part in leaves(original))
    dtype = np.dtype(np.float64 if is_precise and len(space.shape) == 1 else np.float32)
    if space.dtype == dtype and not is_divided:
        return env
    by = f"{divisors.max():g}" if (divisors == divisors.max()).all() else str(divisors.tolist())
    divided = f", divided by {by}" if is_divided else ""
    return noted(_transform(env, lambda numbers: np.asarray(numbers, dtype) / divisors), f"{dtype}{divided}")


def _is_integer(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Box) and space.dtype.kind in "iu"


def _is_precise(space: spaces.Space[Any]) -> bool:
    """Return whether float32 might not hold the numbers of a part."""
    if not isinstance(space, spaces.Box):
        return False
    return space.dtype == np.float64 or (_is_integer(space) and bool((_largest(space) >= UNBOUNDED).any()))


def _largest(space: spaces.Box) -> np.ndarray:
    """Return the largest absolute value of each number."""
    return np.maximum(np.abs(space.low.astype(np.float64)), np.abs(space.high.astype(np.float64)))


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
