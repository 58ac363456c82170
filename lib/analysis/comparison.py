"""Runs beside each other: in what they differ, how far they came, and which are one thing with several seeds."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from lib.analysis import run_data
from lib.hyperparameters import Hyperparameters, PPOHyperparameters
from lib.run import run_folder
from lib.run.episodes import WINDOW, Episodes

SAME = ("run_name", "milestone")  # hyperparameters that change no number of a run


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs that differ in nothing but the seed.

    Attributes:
        label: in what they differ from the other groups, in as few words as tell them apart.
        runs: their folders.
    """

    label: str
    runs: tuple[Path, ...]


def settings(run: Path) -> dict[str, object]:
    """The script, the seed, the script's own options and the hyperparameters of a run."""
    params = run_folder.read_params(run)
    kind = Hyperparameters if "replay_size" in params["hyperparameters"] else PPOHyperparameters
    # An older run lacks what was added since then, and had it at its default.
    defaults = {each.name: each.default for each in dataclasses.fields(kind) if each.default != dataclasses.MISSING}
    known = defaults | params["hyperparameters"]
    hyperparameters = {name: value for name, value in known.items() if name not in SAME}
    return {"script": params["script"], "seed": params["seed"], **params["knobs"], **hyperparameters}


def outcome(run: Path) -> dict[str, object]:
    """How far a run came; of one that is at work, or was killed, what its episodes tell."""
    episodes = run_data.episodes(run)
    returns = episodes["return"]
    result = run_data.result(run)
    bound = str(run_folder.read_params(run)["hyperparameters"].get("stop_reward"))
    reached = result.get("reached", {}).get(bound, {})
    evaluated = run_data.content(run / "evaluation.json") or result.get("evaluation", {})
    return {
        "steps": int(result.get("steps", episodes["step"].max() if len(episodes) else 0)),
        "episodes": len(episodes),
        "mean": returns.tail(WINDOW).mean(),
        "best": returns.rolling(WINDOW, min_periods=Episodes.MINIMUM).mean().max(),
        "minutes": result.get("seconds", episodes["seconds"].max()) / 60,
        "steps/s": result.get("this_process", {}).get("steps_per_second"),
        "solved": reached.get("seconds", math.nan) / 60,
        "evaluated": evaluated.get("mean"),
        "ended": "at work" if run_folder.at_work(run) else result.get("stopped", "no result"),
    }


def differing(paths: Sequence[Path]) -> list[str]:
    """Names of the settings that are not the same in all runs."""
    rows = [settings(path) for path in paths]
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [name for name in names if len({_setting(row, name) for row in rows}) > 1]


def differences(paths: Sequence[Path]) -> pd.DataFrame:
    """A row a run: its settings that others do not share, as texts."""
    names = differing(paths)
    rows = [settings(path) for path in paths]
    return pd.DataFrame([{name: _setting(row, name) for name in names} for row in rows], index=_names(paths))


def outcomes(paths: Sequence[Path]) -> pd.DataFrame:
    """A row a run: how far it came."""
    return pd.DataFrame([outcome(path) for path in paths], index=_names(paths))


def table(paths: Sequence[Path]) -> pd.DataFrame:
    """A row a run: its name, its settings that others do not share, its outcome."""
    # Not by their names, which two runs in different folders may share.
    return pd.concat(
        [frame.reset_index(drop=True) for frame in (differences(paths), outcomes(paths))], axis=1
    ).set_index(_names(paths))


def text(value: object) -> str:
    """A value of these tables as people read it: two digits behind the point, "-" where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def groups(paths: Sequence[Path]) -> list[Group]:
    """The runs, those together that differ in nothing but the seed, in the order in which they are given."""
    together: dict[frozenset, list[Path]] = {}
    for path in paths:
        row = settings(path)
        together.setdefault(frozenset((name, _setting(row, name)) for name in row if name != "seed"), []).append(path)
    firsts = [settings(members[0]) for members in together.values()]
    names = [name for name in differing([members[0] for members in together.values()]) if name != "seed"]
    needed: list[str] = []
    for name in names:  # only those that tell more of the groups apart
        if _distinct(firsts, [*needed, name]) > _distinct(firsts, needed):
            needed.append(name)
    return [
        Group(_label(first, needed), tuple(members)) for first, members in zip(firsts, together.values(), strict=True)
    ]


def summary(group: Group) -> str:
    """How far a group came, in a line: the mean return at the end and the minutes to the bound, of several runs their
    means and the lowest to the highest."""
    found = outcomes(group.runs)
    solved = found["solved"].dropna()
    told = f"mean return {_spread(found['mean'])}"
    if solved.empty:
        return told
    how_many = f" in {len(solved)} of {len(found)} runs" if len(solved) < len(found) else ""
    return f"{told}, solved{how_many} in {_spread(solved)} minutes"


def _spread(values: pd.Series) -> str:
    mean = text(float(values.mean()))
    return mean if len(values) == 1 else f"{mean} ({text(float(values.min()))} to {text(float(values.max()))})"


def _distinct(rows: list[dict[str, object]], names: list[str]) -> int:
    return len({tuple(_setting(row, name) for name in names) for row in rows})


def _label(row: dict[str, object], names: list[str]) -> str:
    told = [str(row[name]) if name == "script" else f"{name}={_setting(row, name)}" for name in names if name in row]
    return ", ".join(told) or str(row["script"])


def _setting(row: dict[str, object], name: str) -> str:
    value = row.get(name, "")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _names(paths: Sequence[Path]) -> pd.Index:
    return pd.Index([path.name for path in paths], name="run")
