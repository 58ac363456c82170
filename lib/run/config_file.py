"""--config FILE: hyperparameters and a script's own options from a JSON file, such as a search or a run writes."""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from lib.envs.preprocessing import without_options
from lib.errors import UsageError
from lib.hyperparameters import RunParameters, recorded_fields
from lib.run.options import affecting_results
from lib.system.checked import as_field_type, require_type


class Config(NamedTuple):
    """Content of a file.

    Attributes:
        hyperparameters: values by name.
        options: values of the script's own options, by name.
        of_run: whether the file is a run's params.json.
    """

    hyperparameters: dict[str, Any]
    options: dict[str, Any]
    of_run: bool = False


def read(path: Path, parser: argparse.ArgumentParser, kind: type[RunParameters]) -> Config:
    """Read a file with one JSON object, from names to values, or params.json of a run.

    Args:
        path: path of the file.
        parser: parser of the script.
        kind: type of the script's hyperparameters.

    Raises:
        UsageError: if the file cannot be read, or a name is unknown, or a value has the wrong type. All such entries
            are listed.
    """
    try:
        content = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"--config {path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(
            f"--config {path} holds a {type(content).__name__}; it has to be an object of names and values"
        )
    of_run = isinstance(content.get("hyperparameters"), dict) and isinstance(content.get("knobs"), dict)
    if of_run:
        content = recorded_fields(content["hyperparameters"]) | affecting_results(content["knobs"])
        content["env_name"] = without_options(str(content.get("env_name")))  # the options are among the knobs
    fields = {field.name for field in dataclasses.fields(kind)}
    actions = {action.dest: action for action in parser._actions if action.default is not argparse.SUPPRESS}
    hyperparameters, options, faults = {}, {}, []
    for name, value in content.items():
        try:
            if name in fields:
                hyperparameters[name] = as_field_type(kind, name, value)
                require_type(kind, name, hyperparameters[name])
            elif name in actions:
                options[name] = option_value(actions[name], value)
            else:
                faults.append(f"{name!r} is unknown")
        except (ValueError, argparse.ArgumentTypeError) as error:
            faults.append(str(error))
    if faults:
        allowed = ", ".join([*sorted(fields), *sorted(actions)])
        raise UsageError(f"--config {path}: {'; '.join(faults)}. Known names are {allowed}")
    return Config(hyperparameters, options, of_run)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON")


def option_value(action: argparse.Action, value: Any) -> Any:
    """Return the value of an option as the command line would read it.

    Args:
        action: the option.
        value: its value in a JSON file. An option that may be repeated has a list of values.

    Raises:
        ValueError: if the option does not allow the value.
        ArgumentTypeError: likewise, if the option has a type of its own.
    """
    constants = _constants(action)
    for constant in constants:
        if _as_json(constant) == _as_json(value):
            return constant
    if isinstance(action, argparse.BooleanOptionalAction | argparse._StoreConstAction):
        allowed = " or ".join(map(_as_json, dict.fromkeys(constants)))
        raise ValueError(f"{action.dest} is {value!r}; it has to be {allowed}")
    if isinstance(action, argparse._CountAction):
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{action.dest} is {value!r}; it has to be a whole number")
        return value
    is_list = action.nargs not in (None, argparse.OPTIONAL)
    depth = is_list + (isinstance(action, argparse._AppendAction) and not isinstance(action, argparse._ExtendAction))
    return _elements(action, value, depth)


def _constants(action: argparse.Action) -> list[Any]:
    """Return an option's default, and the values that it stores without being given one."""
    constants = [True, False] if isinstance(action, argparse.BooleanOptionalAction) else []
    if isinstance(action, argparse._StoreConstAction) or action.nargs == argparse.OPTIONAL:
        constants.append(action.const)
    # argparse reads a default or constant that is text as if it were given.
    return [each for each in [*constants, action.default] if not (isinstance(each, str) and callable(action.type))]


def _elements(action: argparse.Action, value: Any, depth: int) -> Any:
    """Return the value of an option that stores lists nested to a depth; 0 for a single value."""
    if depth == 0:
        return _single_value(action, value)
    if not isinstance(value, list):
        raise ValueError(f"{action.dest} is {value!r}; it has to be a list")
    return [_elements(action, element, depth - 1) for element in value]


def _single_value(action: argparse.Action, value: Any) -> Any:
    is_own = _has_own_type(action)
    if is_own and isinstance(value, bool | list | dict):
        return value
    if isinstance(value, bool | list | dict) or (action.type is None and not isinstance(value, str)):
        raise ValueError(f"{action.dest} is {value!r}; it has to be {'text' if action.type is None else 'a number'}")
    if action.choices is not None and value not in action.choices:
        raise ValueError(f"{action.dest} is {value!r}; it has to be one of {', '.join(map(str, action.choices))}")
    try:
        read = action.type(str(value)) if callable(action.type) else value
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise ValueError(f"{action.dest}: {error}") from error
    return value if is_own and not isinstance(value, str) and _as_json(read) != _as_json(value) else read


def _has_own_type(action: argparse.Action) -> bool:
    """Return whether a function of the script parses an option. It may not be able to parse its own results."""
    kind = action.type
    module = getattr(kind, "__module__", None) or ""  # a method of a type written in C has none
    return callable(kind) and kind not in (int, float, str, Path) and not module.startswith("lib.")


def _as_json(value: Any) -> str:
    """Return a value as it stands in params.json, which tells True from 1 and has lists for tuples."""
    return json.dumps(value, default=str)
