"""Observations of any environment, converted into images, boards or vectors.

image     uint8 (height, width), grey, both sides at least 36 pixels; later resized and stacked to (4, 84, 84)
board     float32 (channels, height, width), smaller than an image
vector    float32 (numbers,)
"""

import enum
import functools
import logging
from collections.abc import Callable, Mapping
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
MOST_NUMBERS = 10_000_000  # in a vector; a layer of 128 units on it has 5 GB of weights
NOTE = "_pong_ladder_conversion"  # attribute of a wrapper; see noted
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
    several dimensions, such as MultiBinary([15, 15]), keep their shape and become boards. Integers become float32. Each
    is divided by the largest absolute value that its space allows, and a warning is logged. Of three axes, two
    neighbours of equal length above 1 are the height and the width. Otherwise, the shorter one of the first and the
    last holds the channels.

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
    dimensions = len(space.shape)
    if 0 in space.shape:
        raise UsageError(f"{env_id} has the observation space {space}, which has no numbers")
    if dimensions > 3:
        raise UsageError(
            f"{env_id} has the observation space {space}, of {dimensions} dimensions; the networks here take "
            "vectors (n,), boards and images (height, width), with or without channels. Wrap it in gymnasium's "
            "ReshapeObservation or FlattenObservation"
        )
    channels_last, kind = _has_channels_last(space), _kind_of(space)
    if kind is ObservationKind.IMAGE:
        return _grey_image(env, space, env_id, channels_last), kind
    env = _to_float32(env, space, env_id)
    if dimensions in (1, 3) and not channels_last:
        return env, kind
    note = "axes in the order channels, height, width" if channels_last else "an axis of length 1 in front"
    moved = _transform(env, lambda numbers: np.ascontiguousarray(_channels_first(numbers, channels_last)))
    return noted(moved, note), kind


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


def _kind_of(space: spaces.Box) -> ObservationKind:
    """Return the kind of observations whose channels may come last."""
    return observation_kind(_channels_first(space.low, _has_channels_last(space)).shape)


def _channels_first(observation: np.ndarray, channels_last: bool) -> np.ndarray:
    """Return an observation as (numbers,) or (channels, height, width)."""
    if channels_last:
        return np.moveaxis(observation, 2, 0)
    return observation[None] if observation.ndim in (0, 2) else observation


def _flatten(env: gym.Env, env_id: str) -> gym.Env:
    """Flatten observations into a vector. If only one entry of a Dict can be used, that entry replaces the Dict.

    MultiBinary and MultiDiscrete spaces of boards keep their shape.
    """
    if isinstance(env.observation_space, spaces.Dict):
        entries = env.observation_space.spaces
        usable = [name for name, space in entries.items() if _can_flatten(space)]
        if len(usable) < len(entries):
            unusable = ", ".join(repr(name) for name in entries if name not in usable)
            _warn_once(f"{env_id}: observation entries are left out, because no network here can use them: {unusable}.")
        if len(usable) == 1:
            return _entry(env, usable[0], env_id)
        _warn_about_boards({name: entries[name] for name in usable}, env_id)
        if usable and len(usable) < len(entries):  # not by FilterObservation, which takes names only
            kept = spaces.Dict({name: entries[name] for name in usable})
            env = TransformObservation(env, lambda observation: {name: observation[name] for name in usable}, kept)
    if (size := _flat_size(env.observation_space)) > MOST_NUMBERS:
        raise UsageError(
            f"{env_id} has the observation space {env.observation_space}, which would become a vector of {size:,} "
            f"numbers, and at most {MOST_NUMBERS:,} are allowed; wrap it in gymnasium's TransformObservation"
        )
    if not _can_flatten(env.observation_space):
        raise UsageError(
            f"{env_id} has the observation space {env.observation_space}, which no network here can use; it has to be "
            "a Box, Discrete, MultiDiscrete, MultiBinary, or a Tuple or Dict of these"
        )
    space = env.observation_space
    if isinstance(space, spaces.Tuple):
        _warn_about_boards(dict(enumerate(space.spaces)), env_id)
    box = _box_of(space)
    if box is not None:
        return TransformObservation(env, np.asarray, box)
    order = f" in the order {', '.join(map(repr, space.spaces))}" if isinstance(space, spaces.Dict) else ""
    return noted(FlattenObservation(env), f"flattened{order}; Discrete and MultiDiscrete numbers are one-hot")


def _warn_about_boards(entries: Mapping[Any, spaces.Space[Any]], env_id: str) -> None:
    """Warn about images and boards among the entries of an observation, by name or number, that will be flattened."""
    boards = [name for name, space in entries.items() if len(space.shape or ()) in (2, 3)]
    if boards:
        _warn_once(
            f"{env_id}: the network has no convolutions for {', '.join(map(repr, boards))}, because all entries of "
            "an observation are flattened into one vector. gymnasium's FilterObservation can keep one entry alone."
        )


def _box_of(space: spaces.Space[Any]) -> spaces.Box | None:
    """Return the Box that equals a MultiBinary or MultiDiscrete space of boards, else None."""
    if isinstance(space, spaces.MultiBinary):
        box: spaces.Box[Any] = spaces.Box(0, 1, space.shape, np.int8)
    elif isinstance(space, spaces.MultiDiscrete):
        box = spaces.Box(space.start, space.start + space.nvec - 1, dtype=np.int64)
    else:
        return None
    # Image-sized planes of binary or discrete values are not colour channels.
    is_board = len(box.shape) == 2 or (len(box.shape) == 3 and _kind_of(box) is ObservationKind.BOARD)
    return box if is_board else None


def _entry(env: gym.Env, name: str, env_id: str) -> gym.Env:
    assert isinstance(env.observation_space, spaces.Dict)
    entry = TransformObservation(env, lambda observation: observation[name], env.observation_space[name])
    noted(entry, f"the entry {name!r}")
    return entry if isinstance(entry.observation_space, spaces.Box) else _flatten(entry, env_id)


def _can_flatten(space: spaces.Space[Any]) -> bool:
    """Return whether a space can be flattened into a vector of fixed size that a network here can use.

    gymnasium flattens Text as well, but no network here reads text. It fills a OneOf up with NaN.
    """
    if isinstance(space, spaces.Tuple | spaces.Dict):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return all(map(_can_flatten, parts))
    if isinstance(space, spaces.Text | spaces.OneOf):
        return False
    if _flat_size(space) > MOST_NUMBERS:
        return True  # which is refused later, without making it
    try:
        return isinstance(spaces.flatten_space(space), spaces.Box)
    except NotImplementedError:
        return False


def _flat_size(space: spaces.Space[Any]) -> int:
    """Return the length of a flattened space, or 0 if it has no fixed one."""
    try:
        return spaces.flatdim(space)
    except (NotImplementedError, ValueError):
        return 0


def _grey_image(env: gym.Env, space: spaces.Box, env_id: str, channels_last: bool) -> gym.Env:
    """Convert images to (height, width) uint8 from 0 to 255."""
    if space.dtype != np.uint8 or space.high.max() < 255:
        low, high = float(space.low.min()), float(space.high.max())
        if max(-low, high) >= UNBOUNDED or low == high:
            raise UsageError(
                f"{env_id} has images of {space.dtype} without usable bounds; make them uint8, or set finite bounds in "
                "their space"
            )
        scale = 255.0 / (high - low)

        def to_uint8(image: np.ndarray) -> np.ndarray:
            scaled: np.ndarray = ((image - low) * scale).round().clip(0, 255).astype(np.uint8)
            return scaled

        note = f"from [{low:g}, {high:g}] to [0, 255], rounded and clipped, uint8"
        env = noted(_transform(env, to_uint8, (0, 255)), note)
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


def _to_float32(env: gym.Env, space: spaces.Box, env_id: str) -> gym.Env:
    """Convert boards or vectors to float32. Divide each integer by the largest absolute value that its space allows."""
    integers = _are_integers(env, space)
    largest = np.maximum(np.abs(space.low.astype(np.float64)), np.abs(space.high.astype(np.float64)))
    bounded = largest < UNBOUNDED
    divisors = np.where(integers & bounded & (largest > 1), largest, 1.0).astype(np.float32)
    if integers.any() and (largest[integers] > 1).any():  # integers from 0 to 1 are flags
        divided = f", each divided by its largest value, at most {divisors.max():g}" if divisors.max() > 1 else ""
        _warn_once(f"{env_id}: the observations contain integers, which are converted to float32{divided}.")
    if space.dtype == np.float32 and divisors.max() == 1:
        return env
    divided = "" if divisors.max() == 1 else f", divided by {_shown(divisors)}"
    return noted(_transform(env, lambda numbers: np.asarray(numbers, np.float32) / divisors), f"float32{divided}")


def _shown(numbers: np.ndarray) -> str:
    """Return an array as text, or one number if all are equal."""
    return f"{numbers.flat[0]:g}" if (numbers == numbers.flat[0]).all() else str(numbers.tolist())


def _are_integers(env: gym.Env, space: spaces.Box) -> np.ndarray:
    """Return a bool array, in the shape of the space, that is true for integers except for one-hot encodings."""
    if isinstance(env, FlattenObservation):
        return np.concatenate(_leaves_are_integers(env.env.observation_space))
    return np.full(space.shape, space.dtype.kind in "iu")


def _leaves_are_integers(space: spaces.Space[Any]) -> list[np.ndarray]:
    if isinstance(space, spaces.Dict):
        return [flags for part in space.spaces.values() for flags in _leaves_are_integers(part)]
    if isinstance(space, spaces.Tuple):
        return [flags for part in space.spaces for flags in _leaves_are_integers(part)]
    return [np.full(spaces.flatdim(space), isinstance(space, spaces.Box) and space.dtype.kind in "iu")]


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
def _warn_once(message: str) -> None:
    log.warning(message)
