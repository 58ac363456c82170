"""Check that the content of a JSON file has the shape that this project writes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

NUMBER = (int, float)
TEXT = (str,)


class Each(NamedTuple):
    """Shape of an object whose names vary. All its values have the same shape."""

    shape: Any


def misfits(value: Any, shape: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which a value does not have a shape, such as "sessions[0].versions".

    Args:
        value: content of a JSON file, or a part of it.
        shape: one of: a tuple of types; a dictionary of the shapes of an object's entries, which may lack some and
            have others; a list with the shape of the elements; Each.
        place: name of the value.
    """
    if isinstance(shape, tuple) and not isinstance(shape, Each):
        if not isinstance(value, shape) or (isinstance(value, bool) and bool not in shape):
            yield place
    elif isinstance(shape, list):
        if not isinstance(value, list):
            yield place
            return
        for number, element in enumerate(value):
            yield from misfits(element, shape[0], f"{place}[{number}]")
    elif not isinstance(value, dict):
        yield place
    else:
        prefix = f"{place}." if place else ""
        shapes = dict.fromkeys(value, shape.shape) if isinstance(shape, Each) else shape
        for name in shapes:
            if name in value:
                yield from misfits(value[name], shapes[name], f"{prefix}{name}")
