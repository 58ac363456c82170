"""--set FIELD=VALUE: hyperparameters from the command line."""

import dataclasses
import types
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from lib.errors import UsageError
from lib.hyperparameters import RunParameters
from lib.run.option_types import parse_whole

Params = TypeVar("Params", bound=RunParameters)


def override(params: Params, assignments: Sequence[str]) -> Params:
    """Apply "field=value" texts to hyperparameters.

    Raises:
        UsageError: if a field is unknown, or a value has the wrong type or range.
    """
    try:
        return dataclasses.replace(params, **parse(type(params), assignments))
    except ValueError as error:
        raise UsageError(f"--set: {error}") from error


def parse(kind: type, assignments: Sequence[str]) -> dict[str, Any]:
    """Return the values of "field=value" texts for hyperparameters of some type.

    Raises:
        UsageError: if a field is unknown, or a value has the wrong type.
    """
    fields = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set takes FIELD=VALUE, not {assignment!r}; the fields are {', '.join(fields)}")
        if name not in fields:
            raise UsageError(f"--set has no field {name!r}; the fields are {', '.join(fields)}")
        values[name] = _parse(name, fields[name], text)
    return values


def _parse(name: str, annotation: Any, text: str) -> object:
    """Parse the value of a field of type bool, int, float or str, each of which may be optional."""
    kinds = typing.get_args(annotation) if isinstance(annotation, types.UnionType) else (annotation,)
    if types.NoneType in kinds and text.lower() == "none":
        return None
    readers: dict[Any, tuple[Callable[[str], object], str]] = {
        bool: (_boolean, "true or false"),
        int: (parse_whole, "a whole number that fits in 64 bits"),
        float: (float, "a number"),
        str: (str, "text"),
    }
    read, allowed = readers[kinds[0]]
    try:
        return read(text)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"--set {name}={text}: {name} takes {allowed}") from error


def _boolean(text: str) -> bool:
    try:
        return {"true": True, "false": False}[text.lower()]
    except KeyError as error:
        raise ValueError(text) from error
