"""What any environment shows, brought into one of three forms, which a network is chosen by:

images    uint8 (height, width), at least SMALLEST of both, grey; later resized and stacked
boards    float32 (channels, height, width)
vectors   float32 (numbers,)
"""

import functools
import logging

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import FilterObservation, FlattenObservation, GrayscaleObservation, TransformObservation

from lib.errors import UsageError

log = logging.getLogger(__name__)


SMALLEST = 36  # pixels of an image's side; what is smaller is a board, each of whose points means something


def prepare(env: gym.Env, env_id: str) -> gym.Env:
    """The environment, its observations in one of the three forms.

    What is no array (Discrete, Tuple, Dict of such) becomes a vector, a whole number as one 1 among zeros, by
    gymnasium's FlattenObservation. Whole numbers become float32 here, once, divided by the largest that the space
    allows; of that there is a warning. Of three dimensions the channels are the first or the last, whichever are fewer.

    Raises:
        UsageError: the observations cannot be brought into such a form.
    """
    if not isinstance(env.observation_space, spaces.Box):
        env = _flattened(env, env_id)
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    if len(space.shape) > 3 or 0 in space.shape:
        raise UsageError(
            f"{env_id} has the observation space {space}, of {len(space.shape)} dimensions; the networks here take "
            "vectors (n,), boards and images (height, width), with or without channels. Wrap it in gymnasium's "
            "ReshapeObservation, or FlattenObservation"
        )
    channels_last = len(space.shape) == 3 and space.shape[2] <= space.shape[0]
    sides = space.shape[:2] if len(space.shape) < 3 or channels_last else space.shape[1:]
    if len(space.shape) > 1 and is_large(sides):
        return _image(env, space, env_id, channels_last)
    numbers = _as_floats(env, space, env_id)
    if len(space.shape) == 2:
        return _transformed(numbers, lambda board: board[None])
    if channels_last:
        return _transformed(numbers, lambda board: np.ascontiguousarray(np.moveaxis(board, 2, 0)))
    return numbers if len(space.shape) else _transformed(numbers, lambda number: number[None])


def is_large(sides: tuple[int, ...]) -> bool:
    """Whether what has this height and width is an image, and no board."""
    return min(sides) >= SMALLEST


def is_stack(space: spaces.Box) -> bool:
    """Whether a state is a stack of frames, of which a step brings one; boards and vectors are all new."""
    return len(space.shape) == 3 and space.dtype == np.uint8


def _flattened(env: gym.Env, env_id: str) -> gym.Env:
    if isinstance(env.observation_space, spaces.Dict):
        parts = env.observation_space.spaces
        kept = [name for name, space in parts.items() if _is_flat(space)]
        if len(kept) < len(parts):
            left = ", ".join(repr(name) for name in parts if name not in kept)
            _warn_once(f"{env_id}: of the observations {left} is left out, as no network here can read it.")
        if len(kept) == 1:
            return _part(env, kept[0])
        env = FilterObservation(env, kept) if kept and len(kept) < len(parts) else env
    if not _is_flat(env.observation_space):
        raise UsageError(
            f"{env_id} has the observation space {env.observation_space}, which is no fixed number of numbers; it has "
            "to be a Box, or Discrete, MultiDiscrete, MultiBinary, Tuple or Dict of such"
        )
    return FlattenObservation(env)


def _part(env: gym.Env, name: str) -> gym.Env:
    assert isinstance(env.observation_space, spaces.Dict)
    part = TransformObservation(env, lambda observation: observation[name], env.observation_space[name])
    return part if isinstance(part.observation_space, spaces.Box) else FlattenObservation(part)


def _is_flat(space: gym.Space) -> bool:
    """Whether a space has a fixed number of numbers. A text's are its letters, and no network here reads."""
    if isinstance(space, spaces.Text):
        return False
    try:
        return isinstance(spaces.flatten_space(space), spaces.Box)
    except NotImplementedError:
        return False


def _image(env: gym.Env, space: spaces.Box, env_id: str, channels_last: bool) -> gym.Env:
    if space.dtype != np.uint8 or space.high.max() < 255:
        low, high = float(space.low.min()), float(space.high.max())
        if not np.isfinite([low, high]).all() or low == high:
            raise UsageError(
                f"{env_id} has images of {space.dtype} without bounds; make them uint8, or give their space bounds"
            )
        env = _transformed(env, lambda image: ((image - low) * (255.0 / (high - low))).round().astype(np.uint8), 0, 255)
    if len(space.shape) == 2:
        return env
    if not channels_last:
        env = _transformed(env, lambda image: np.moveaxis(image, 0, 2))
    shape = env.observation_space.shape
    assert shape is not None
    if shape[2] == 3:
        return GrayscaleObservation(env)
    if shape[2] == 1:
        return _transformed(env, lambda image: image[:, :, 0])
    raise UsageError(f"{env_id} has images of {shape[2]} channels; they have to be 1 (grey) or 3 (RGB)")


def _as_floats(env: gym.Env, space: spaces.Box, env_id: str) -> gym.Env:
    whole = _whole(env, space)
    largest = np.maximum(np.abs(space.low.astype(np.float64)), np.abs(space.high.astype(np.float64)))
    told = largest < np.iinfo(np.int32).max  # else the bounds are the type's, and say nothing
    divisors = np.where(whole & told & (largest > 1), largest, 1.0).astype(np.float32)
    if whole.any() and (largest[whole] > 1).any():  # else they are truth values
        _warn_once(
            f"{env_id}: there are whole numbers in the observations; they are made float32 once"
            + (f", divided by the largest that their space allows, {divisors.max():g}." if divisors.max() > 1 else ".")
        )
    if space.dtype == np.float32 and divisors.max() == 1:
        return env
    return _transformed(env, lambda numbers: np.asarray(numbers, np.float32) / divisors)


def _whole(env: gym.Env, space: spaces.Box) -> np.ndarray:
    """Which of the numbers are whole ones that mean something as such, and not one 1 among zeros; of space's shape."""
    if isinstance(env, FlattenObservation):
        return np.concatenate(_of_leaves(env.env.observation_space))
    return np.full(space.shape, space.dtype.kind in "iu")


def _of_leaves(space: gym.Space) -> list[np.ndarray]:
    parts = space.spaces.values() if isinstance(space, spaces.Dict) else getattr(space, "spaces", None)
    if parts is not None:
        return [flags for part in parts for flags in _of_leaves(part)]
    return [np.full(spaces.flatdim(space), isinstance(space, spaces.Box) and space.dtype.kind in "iu")]


def _transformed(env: gym.Env, function, low: float | None = None, high: float | None = None) -> gym.Env:
    """With a function of one observation applied to all, and to the bounds of their space unless these are given."""
    space = env.observation_space
    assert isinstance(space, spaces.Box)
    lows, highs = function(space.low), function(space.high)
    if low is not None and high is not None:
        lows, highs = np.full_like(lows, low), np.full_like(highs, high)
    return TransformObservation(env, function, spaces.Box(lows, highs, dtype=lows.dtype.type))


@functools.cache
def _warn_once(message: str) -> None:
    log.warning(message)
