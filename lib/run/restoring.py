"""Restore objects from a checkpoint, after checking that the saved states fit them."""

import copy
import io
import json
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from ignite.handlers import Checkpoint
from torch import nn
from torch.optim import Adam, Optimizer

from lib.errors import Fault, UsageError
from lib.run.checkpoint_reading import first_line, numbers_fit


@runtime_checkable
class Stateful(Protocol):
    """An object whose state a checkpoint can hold."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state as tensors and plain values."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Continue from a state that `state_dict` returned."""
        ...


class Settings:
    """Settings of a run as an object with a state_dict. A run is not resumed with other ones.

    Args:
        values: hyperparameters, the seed, and the script's own options on which results depend.
    """

    def __init__(self, values: Mapping[str, Any]):
        self._values = {name: _plain(value) for name, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self._values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Compare the settings with saved ones.

        Raises:
            UsageError: if one has another value. Settings that only one side has belong to another version.
        """
        differing = [
            f"{name} was {value!r} and is {self._values[name]!r}"
            for name, value in state.items()
            if name in self._values and self._values[name] != value
        ]
        if differing:
            raise UsageError(
                f"the settings are not those of the checkpoint: {'; '.join(differing)}. Use the same ones, restore "
                "params.json if it was edited, or start a new run"
            )


def _plain(value: Any) -> bool | int | float | str | None:
    """Return a setting, or a text if it is not a plain value. It is the same text after params.json is read."""
    if isinstance(value, bool | int | float | str | None):
        return value
    return str(json.loads(json.dumps(value, default=str)))


def require_readable(objects: Mapping[str, Stateful]) -> None:
    """Refuse objects whose states could be saved, but not read again.

    Raises:
        TypeError: if a state holds anything but tensors and plain values, or NaN.
    """
    for name, each in objects.items():
        state, file = each.state_dict(), io.BytesIO()
        try:
            torch.save(state, file)
            file.seek(0)
            fit = numbers_fit(torch.load(file, weights_only=True))
        except RecursionError as error:
            raise TypeError(_unreadable(name, "an object that contains itself")) from error
        except Exception as error:
            raise TypeError(_unreadable(name, _foreign(state) or first_line(error))) from error
        if not fit:
            raise TypeError(_unreadable(name, "NaN or a number that is too large"))


def _unreadable(name: str, found: str) -> str:
    return (
        f"the state_dict of save[{name!r}] holds {found}, so its checkpoints could not be read again; it has to "
        "consist of tensors, finite numbers, texts, lists and dicts"
    )


def _foreign(state: Any) -> str:
    """Return the first type in a state that is neither a tensor nor a plain value, such as "a numpy.ndarray", or ""."""
    if isinstance(state, dict | list | tuple):
        parts = [*state, *state.values()] if isinstance(state, dict) else state
        return next(filter(None, map(_foreign, parts)), "")
    kind = type(state)
    plain = (bool, int, float, str, bytes, bytearray, set, torch.dtype, torch.device)
    is_plain = state is None or kind in plain or isinstance(state, torch.Tensor)
    return "" if is_plain else f"a {kind.__module__}.{kind.__qualname__}"


def restore(objects: Mapping[str, Stateful], content: Mapping[str, Any]) -> None:
    """Load the state of objects from a checkpoint's content.

    Raises:
        Fault: if the checkpoint lacks an object, or holds other names, types or shapes for it.
    """
    try:
        for name, each in objects.items():
            if isinstance(each, Optimizer):
                _require_fit(each, content[name])
            elif _is_checked(each):
                _require_same_types(each.state_dict(), content[name], name)
        # An object that keeps a tensor would keep the file on the disk, even after it was removed, so it gets a copy.
        # The replay is too large to be copied here; it copies its data itself.
        own = {name: content[name] if name == "replay" else copy.deepcopy(content[name]) for name in objects}
        Checkpoint.load_objects(objects, own)
    except (Fault, UsageError, OSError):
        raise
    except Exception as error:  # a file may hold anything
        problem = f"{type(error).__name__}: {first_line(error)}"
        raise Fault(
            "the checkpoint does not fit: it is of another version, or the environment's observations or actions have "
            f"changed. Restore them, or start a new run ({problem})"
        ) from error


def _is_checked(each: Stateful) -> bool:
    """Whether the types of an object's numbers are fixed: a network or an object of the project, except settings."""
    is_own = type(each).__module__.partition(".")[0] == "lib"
    return isinstance(each, nn.Module) or (is_own and not isinstance(each, Settings))


def _require_same_types(own: Any, saved: Any, place: str) -> None:
    """Check saved values, because a counter of another type or sign fails much later.

    Args:
        own: state of the object into which the saved one will be loaded. None fits anything.
        saved: state in the checkpoint.
        place: name of the state.

    Raises:
        ValueError: if a value has another type (networks may differ in precision), or a counter or a weight is not
            valid.
    """
    if isinstance(own, Mapping) and isinstance(saved, Mapping):
        for name in own.keys() & saved.keys():
            _require_same_types(own[name], saved[name], f"{place}.{name}")
    elif isinstance(own, torch.Tensor) and isinstance(saved, torch.Tensor):
        in_network = place.startswith(("net.", "target."))
        # Not every machine is fast in bfloat16, so a network may be resumed in the other precision.
        fits = own.dtype == saved.dtype or (in_network and {own.dtype, saved.dtype} == {torch.float32, torch.bfloat16})
        if own.numel() and not fits:  # an empty one may only be a placeholder
            raise ValueError(f"{place} is {saved.dtype}, not {own.dtype}")
        if in_network and not bool(torch.isfinite(saved).all()):
            raise ValueError(f"{place} has numbers that are not finite")
    elif not _same_kind(own, saved):
        raise ValueError(f"{place} is {saved!r}")


def _same_kind(own: Any, saved: Any) -> bool:
    """Whether a saved value can replace an object's own. Integers are counters, so they are not negative."""
    if own is None:
        return True
    if isinstance(own, bool | int):
        return type(saved) is type(own) and saved >= 0
    return isinstance(saved, (int, float) if isinstance(own, float) else type(own))


def _require_fit(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Check a saved state, because an optimizer loads anything and fails at its next step.

    Raises:
        ValueError: if a setting has another type, or an average another shape than its weights.
    """
    for own, saved in zip(optimizer.state_dict()["param_groups"], state["param_groups"], strict=True):
        for name in own:
            if type(own[name]) is not type(saved[name]) or (name == "params" and own[name] != saved[name]):
                raise ValueError(f"the optimizer's {name} is {saved[name]!r}")
    if not isinstance(optimizer, Adam):  # other optimizers may keep averages of other shapes
        return
    weights = [weight for group in optimizer.param_groups for weight in group["params"]]
    names = {frozenset(averages) for averages in state["state"].values()}
    if len(names) > 1:
        raise ValueError("the optimizer lacks averages of some weights")
    for index, averages in state["state"].items():
        for name, average in averages.items():
            if average.shape not in (weights[index].shape, torch.Size()):
                raise ValueError(f"the optimizer's {name} of weights {index} has the shape {tuple(average.shape)}")
