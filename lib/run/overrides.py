"""--set FIELD=VALUE: hyperparameters from the command line."""

import dataclasses
import inspect
import re
import shutil
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from lib.errors import UsageError
from lib.hyperparameters import RunParameters
from lib.run.option_types import parse_whole

Params = TypeVar("Params", bound=RunParameters)

HELP = "help"  # value of --set that explains the fields


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
    """Return the values of "field=value" texts for hyperparameters of some type. HELP is skipped.

    Raises:
        UsageError: if a field is unknown, or a value has the wrong type.
    """
    fields = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for assignment in (each for each in assignments if each != HELP):
        name, equals, text = assignment.partition("=")
        if not equals:
            raise UsageError(f"--set takes FIELD=VALUE, not {assignment!r}; {_listed(fields)}")
        if name not in fields:
            raise UsageError(f"--set has no field {name!r}; {_listed(fields)}")
        values[name] = _parse(name, fields[name], text)
    return values


def _listed(fields: Iterable[str]) -> str:
    return f"the fields are {', '.join(fields)}; --set {HELP} explains them"


def explain(params: RunParameters) -> str:
    """Return the value and the meaning of each hyperparameter, as lines for the terminal."""
    meanings: dict[str, str] = {}
    for kind in reversed(type(params).__mro__):
        meanings |= _meanings(kind)
    width, column = min(120, shutil.get_terminal_size().columns), " " * 28
    lines = []
    for name, value in dataclasses.asdict(params).items():
        assignment = f"{name}={'none' if value is None else value}"
        gap = column[len(assignment) :] or f"\n{column}"
        text = textwrap.fill(
            meanings.get(name, ""), width, initial_indent=column, subsequent_indent=column, break_on_hyphens=False
        )
        lines.append(f"{assignment}{gap}{text.lstrip()}")
    return "\n".join(lines)


def _meanings(kind: type) -> dict[str, str]:
    """Return the attributes that a class's docstring explains."""
    section = (inspect.cleandoc(kind.__doc__ or "")).partition("Attributes:\n")[2]
    entries = re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in entries}


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
    if kinds[0] not in readers:  # of a script's own class
        raise UsageError(f"--set cannot change {name}; change it with --config or in the script")
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
