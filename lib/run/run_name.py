"""Names of runs: the script and what was changed, so that TensorBoard's list tells runs apart."""

import dataclasses
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lib.hyperparameters import RunParameters
from lib.run.options import RunOptions

MAX_LENGTH = 150  # characters of the changes
WITH_RUN_NAME = 200  # characters of run_name and the changes; with the script they fit into folder.LONGEST_NAME


def changes_in_name(
    knobs: Mapping[str, Any],
    defaults: Mapping[str, Any],
    named: str | None,
    kinds: Sequence[str],
    params: RunParameters,
    usual: RunParameters,
    seed: int,
) -> str:
    """Return the suffix of a run's name after the script's name, such as "=3-learning_rate=0.0003-seed2".

    Args:
        knobs: the script's own options that affect the result.
        defaults: default of each of them.
        named: name of the option whose value always follows the script's name, or None.
        kinds: words after that, such as "best" for --params best.
        params: hyperparameters of the run.
        usual: hyperparameters without --config and --set. A difference in run_name is not shown.
        seed: seed of the run.
    """
    parts = [] if named is None else [f"={_text(knobs[named])}"]
    parts += [f"-{kind}" for kind in kinds]
    for name, value in knobs.items():
        if name != named and value != defaults[name]:
            parts.append(f"-{_assignment(name, value)}")
    for field in dataclasses.fields(params):
        value = getattr(params, field.name)
        if field.name != "run_name" and value != getattr(usual, field.name):
            parts.append(f"-{_assignment(field.name, value)}")
    changes = re.sub(r"[^A-Za-z0-9._=+-]+", "_", "".join(parts))
    end = "" if seed == RunOptions.seed else f"-seed{seed}"
    room = min(MAX_LENGTH, WITH_RUN_NAME - len(params.run_name))
    if len(changes + end) > room:
        end = f"-{hashlib.sha256(changes.encode()).hexdigest()[:6]}{end}"  # long names still differ
    return changes[: room - len(end)] + end


def _assignment(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"no-{name}"
    return f"{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "+".join(map(_text, value))
    return short_number(value) if isinstance(value, float) else str(value)


def short_number(value: float) -> str:
    """Format a number with six significant digits if that is exact, otherwise with all."""
    return short if float(short := f"{value:g}") == value else str(value)
