"""Dataclasses whose fields are checked, also when a field is assigned later."""

import dataclasses
import numbers
import types
import typing
from typing import Any

import numpy as np

# Accepted types of values, and their names in messages.
_KINDS: dict[type, tuple[type, str]] = {
    bool: (bool, "true or false"),
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    str: (str, "a string"),
    types.NoneType: (types.NoneType, "none"),
}


@dataclasses.dataclass(kw_only=True)
class Checked:
    """Base of dataclasses whose fields are bool, int, float, str, or one of these or None.

    A subclass calls super().__post_init__() first, then checks ranges with the functions below. A value that is
    refused raises ValueError, and a field that was to be assigned keeps its old value. NumPy's numbers become Python's,
    and a float such as 1e5 becomes an int if the field needs one.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        names = _field_types(type(self))
        if name not in names:
            raise AttributeError(
                f"there is no field {name!r}; choose one of {', '.join(names)}; keep other values in variables"
            )
        value = as_field_type(type(self), name, value)
        if len(vars(self)) == len(names):  # before that, __init__ is still setting the fields
            try:
                dataclasses.replace(self, **{name: value})
            except ValueError as error:
                if str(error).startswith(f"{name} "):
                    raise
                raise ValueError(
                    f"{name} cannot be {value!r}: with it, {error}. Change the other field first"
                ) from None
        super().__setattr__(name, value)

    def __post_init__(self) -> None:
        for name in _field_types(type(self)):
            require_type(type(self), name, getattr(self, name))


_field_types_by_class: dict[type, dict[str, tuple[type, ...]]] = {}


def _field_types(cls: Any) -> dict[str, tuple[type, ...]]:
    """Return the types that each field may have."""
    if cls not in _field_types_by_class:
        hints = typing.get_type_hints(cls)
        _field_types_by_class[cls] = {each.name: _alternatives(hints[each.name]) for each in dataclasses.fields(cls)}
    return _field_types_by_class[cls]


def _alternatives(hint: Any) -> tuple[type, ...]:
    """Return the members of a union, or the type itself."""
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, _KINDS[kind][0]) and (kind is bool or not isinstance(value, bool))


def as_field_type(cls: type[Checked], name: str, value: Any) -> Any:
    """Convert a number to the type of a field if its value stays the same, and a list, as JSON has it, to a tuple.

    Return any other value unchanged.
    """
    if isinstance(value, np.generic):
        value = value.item()
    kinds = _field_types(cls)[name]
    if isinstance(value, float) and value.is_integer() and int in kinds and float not in kinds:
        return int(value)  # such as 1e5
    if isinstance(value, list) and any((typing.get_origin(kind) or kind) is tuple for kind in kinds):
        return tuple(value)
    return value


def require_type(cls: type[Checked], name: str, value: object) -> None:
    """Raise ValueError if a value does not have the type of a field.

    Fields of other types, which a subclass may add, are not checked.
    """
    kinds = _field_types(cls)[name]
    if not _KINDS.keys() >= set(kinds):
        return
    if not any(_is(value, kind) for kind in kinds):
        raise ValueError(f"{name} is {value!r}; it has to be {' or '.join(_KINDS[kind][1] for kind in kinds)}")
    if isinstance(value, numbers.Integral) and abs(value) >= 2**63:  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}; it has to be between -2**63 and 2**63")


def within(checked: Checked, low: float, high: float, *names: str) -> None:
    """Require that fields lie between two numbers, both included."""
    for name in names:
        require(low <= getattr(checked, name) <= high, checked, name, f"between {low:g} and {high:g}")


def at_least(checked: Checked, low: int, *names: str) -> None:
    """Require that fields are not below a number."""
    for name in names:
        require(getattr(checked, name) >= low, checked, name, f"at least {low}")


def require(condition: bool, checked: Checked, name: str, allowed: str) -> None:
    """Raise ValueError unless the condition holds for a field.

    Args:
        condition: whether the field's value is allowed.
        checked: object with the field.
        name: name of the field.
        allowed: which values are allowed.
    """
    if not condition:
        raise ValueError(f"{name} is {getattr(checked, name)!r}; it has to be {allowed}")
