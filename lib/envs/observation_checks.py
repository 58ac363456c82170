"""Checks of an observation against the space that its environment declares, and the largest number of a reward."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

SMALL = 4096  # observations with at most this many numbers are fully checked in every step
LARGEST = 1e15  # largest magnitude of rewards and observations; TD errors and their sums stay finite in float32


def problems(observation: Any, space: spaces.Space[Any], every_number: bool) -> Iterator[str]:
    """Yield each mismatch between an observation and its space, such as "['position'] is None; its space is Box(...)".

    Args:
        observation: observation of an environment.
        space: its space. Spaces that no network can read are not checked.
        every_number: also check the numbers of large arrays.
    """
    if observation is None:
        yield f" is None; its space is {space}"
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        yield from _problems_of_parts(observation, space, every_number)
    elif isinstance(space, spaces.Discrete):
        number = np.asarray(observation)
        if number.shape != () or number.dtype.kind not in "iub" or not space.contains(int(number)):
            yield f" is {short_repr(observation)}; its space is {space}"
    elif isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        yield from _problems_of_array(observation, space, every_number)


def _problems_of_parts(observation: Any, space: Any, every_number: bool) -> Iterator[str]:
    parts: dict[Any, spaces.Space[Any]] = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
    if isinstance(space, spaces.Dict):
        if not isinstance(observation, dict):
            yield f" is {short_repr(observation)}; it has to be a dictionary of {', '.join(map(repr, parts))}"
            return
    elif not isinstance(observation, tuple | list) or len(observation) != len(parts):
        yield f" is {short_repr(observation)}; it has to be a tuple of {len(parts)} elements"
        return
    for name, part in parts.items():
        if isinstance(observation, dict) and name not in observation:
            yield f" lacks {name!r}"
        else:
            yield from (f"[{name!r}]{problem}" for problem in problems(observation[name], part, every_number))


def _problems_of_array(
    observation: Any, space: spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete, every_number: bool
) -> Iterator[str]:
    try:
        array = np.asarray(observation)
    except ValueError as error:
        yield f" is not an array: {error}"
        return
    is_signed_for_unsigned = (array.dtype.kind, space.dtype.kind) == ("i", "u")
    if array.shape != space.shape:
        yield f" has the shape {array.shape}; its space says {space.shape}"
    elif not (is_signed_for_unsigned or np.can_cast(array.dtype, space.dtype, "same_kind")):
        yield f" is {array.dtype}; its space says {space.dtype}"
    elif not isinstance(space, spaces.Box):
        converted = array.astype(space.dtype)
        if not (np.array_equal(converted, array) and space.contains(converted)):
            yield f" is {short_repr(observation)}; its space is {space}"
    elif array.dtype == space.dtype and array.dtype.kind in "biu" and array.dtype.itemsize < 8:
        return  # it can hold no other numbers
    elif every_number or array.size <= SMALL or is_signed_for_unsigned:
        low, high = _limits(array.dtype, space.dtype)
        within = (array >= low) & (array <= high)  # comparisons are false for NaN
        if not within.all():
            index = np.argwhere(~within)[0].tolist()
            yield f" has {array[tuple(index)]:g} at {index}; all numbers have to be finite, from {low:g} to {high:g}"


@functools.cache
def _limits(dtype: np.dtype, space_dtype: np.dtype) -> tuple[float, float]:
    """Return the smallest and the largest number that an array may have, and that its space's type can hold."""
    low, high = -LARGEST, LARGEST
    for kind in (dtype, space_dtype):
        if kind.kind == "f":
            low, high = max(low, float(np.finfo(kind).min)), min(high, float(np.finfo(kind).max))
        elif kind.kind in "iu":
            low, high = max(low, int(np.iinfo(kind).min)), min(high, int(np.iinfo(kind).max))
        elif kind.kind == "b":
            low, high = 0, 1
    return (low, high) if dtype.kind == "f" else (int(low), int(high))


def copy_of(observation: Any, space: spaces.Space[Any]) -> Any:
    """Return a copy of a checked observation, with the space's data types."""
    if isinstance(space, spaces.Dict):
        return {name: copy_of(observation[name], part) for name, part in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(copy_of(observation[number], part) for number, part in enumerate(space))
    if isinstance(space, spaces.Box | spaces.MultiBinary | spaces.MultiDiscrete):
        return np.array(observation, dtype=space.dtype)
    return observation


def out_of_bounds(observation: Any, space: spaces.Space[Any]) -> Iterator[str]:
    """Yield the first number of each box that is out of bounds, for a warning."""
    if isinstance(space, spaces.Dict):
        for name, part in space.items():
            yield from (f"[{name!r}]{problem}" for problem in out_of_bounds(observation[name], part))
    elif isinstance(space, spaces.Tuple):
        for number, part in enumerate(space):
            yield from (f"[{number}]{problem}" for problem in out_of_bounds(observation[number], part))
    elif isinstance(space, spaces.Box):
        array = np.asarray(observation)
        if array.dtype.kind == "f":
            array = array.astype(space.dtype)  # the bounds are rounded to this type
        outside = (array < space.low) | (array > space.high)
        if outside.any():
            index = tuple(np.argwhere(outside)[0].tolist())
            bounds = f"{space.low[index]:.9g} to {space.high[index]:.9g}"
            yield f" has {array[index]:.9g} at {list(index)}; its space allows {bounds}"


def short_repr(value: Any) -> str:
    """Return repr(value), cut to 80 characters."""
    text = safe_repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def safe_repr(value: Any) -> str:
    """Return repr(value), or its type if its own code for that fails."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - not our code
        return f"<{type(value).__name__}, whose repr() fails>"
