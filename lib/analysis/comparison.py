"""Comparison of runs: settings, outcomes, and groups of runs that differ only in VARY_IN_GROUP, such as the seed."""

import dataclasses
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from lib.analysis import intervals
from lib.analysis.run_data import Run
from lib.run.checkpoint import numbered
from lib.run.episodes import WINDOW, Episodes, format_return
from lib.system.log import without_folder

IGNORED = ("run_name", "milestone")  # hyperparameters that do not influence training
# Settings in which the runs of a group may differ: the seed, and options on which neither results nor speeds depend.
VARY_IN_GROUP = ("seed", "patience", "address")
FIRST = ("seed", "script", "learning_rate")  # settings that a table shows first
FIRST_IN_LABELS = ("script", "env_name")  # shown without their names
TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d{4}-")  # at the start of a run's name

Settings = dict[str, object]


@dataclasses.dataclass(frozen=True)
class Group:
    """Runs with the same settings, except for those of VARY_IN_GROUP.

    Attributes:
        label: shortest description that distinguishes the group from the others.
        runs: the runs.
    """

    label: str
    runs: tuple[Run, ...]


def settings_of(run: Run) -> Settings:
    """Return a run's settings: those of FIRST, then script options and hyperparameters."""
    params = run.params
    hyperparameters = {name: value for name, value in run.hyperparameters.items() if name not in IGNORED}
    init = params.get("init")
    start = {"seed": params["seed"], "script": params["script"], "init": init and without_folder(init)}
    settings = {**start, **params["knobs"], **hyperparameters}
    return {name: settings[name] for name in FIRST if name in settings} | settings


def outcome_of(run: Run) -> dict[str, object]:
    """Return a run's steps, returns, speed and reason for its end.

    If there is no result, the steps and minutes come from episodes.csv.
    """
    episodes, result = run.episodes, run.result
    returns = episodes["return"]
    stop_reward = str(run.hyperparameters.get("stop_reward"))
    solved = result.get("reached", {}).get(stop_reward, {})
    evaluation = _greedy_evaluation(run) or result.get("evaluation", {})
    is_model = episodes.empty and not result and "step" in evaluation
    played = evaluation.get("step", 0) if episodes.empty else episodes["step"].max()
    without_result = "published model" if is_model else "no result"
    return {
        "steps": int(result.get("steps", played)),
        "episodes": math.nan if is_model else len(episodes),
        "mean": returns.tail(WINDOW).mean(),
        "best": returns.rolling(WINDOW, min_periods=Episodes.MINIMUM if len(returns) < WINDOW else WINDOW).mean().max(),
        "minutes": result.get("seconds", episodes["seconds"].max()) / 60,
        "steps/s": result.get("this_process", {}).get("steps_per_second"),
        "solved": solved.get("seconds", math.nan) / 60,
        "evaluated": evaluation.get("mean"),
        "ended": "running" if run.is_running else result.get("stopped", without_result),
    }


def _greedy_evaluation(run: Run) -> dict[str, Any]:
    """Return what evaluate.py found without exploration, if it played the best or the last checkpoint of the run."""
    evaluation = run.evaluation
    if evaluation.get("epsilon") or evaluation.get("sample"):
        return {}
    folder = run.path / "checkpoints"
    kept = [numbered(folder, kind) for kind in ("best", "step")] if folder.is_dir() else []
    newest = [files[-1][1].name for files in kept if files]
    return evaluation if evaluation.get("checkpoint") in newest else {}


def settings_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Build a table of the settings in which the runs differ, as text, with one row per run."""
    rows = [settings_of(run) for run in runs]
    names = _differing(rows)
    return pd.DataFrame([{name: _as_text(row, name) for name in names} for row in rows], index=_index(runs))


def outcome_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Build a table of the runs' outcomes, with one row per run. A column without any value is left out."""
    # As objects, because NaN in one row would make floats of a column's whole numbers.
    outcomes = pd.DataFrame([outcome_of(run) for run in runs], index=_index(runs), dtype=object)
    return outcomes.dropna(axis="columns", how="all")


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names without the timestamp and the common prefix.

    A name that is not unique stays whole; see `whole_names`.
    """
    run_names = {str(run.hyperparameters["run_name"]) for run in runs}
    shared = f"{run_names.pop()}-" if len(run_names) == 1 else ""
    names = [TIMESTAMP.sub("", run.name, count=1).removeprefix(shared) for run in runs]
    return [name if names.count(name) == 1 else long for name, long in zip(names, whole_names(runs), strict=True)]


def whole_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names. Those that are not unique have the folders before them in which they differ."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    common = os.path.commonpath([run.path.absolute().parent for run in runs])
    longer = [os.path.relpath(run.path, common) for run in runs]
    return [name if names.count(name) == 1 else long for name, long in zip(names, longer, strict=True)]


def shorten(name: str, width: int) -> str:
    """Cut a name in the middle, because it begins with the script and ends with the seed."""
    end = width // 2
    return name if len(name) <= width else f"{name[: width - end - 1]}…{name[-end:]}"


def comparison_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Build a table of differing settings and outcomes, with one row per run."""
    # Joined by position, because runs in different folders may have the same name.
    tables = [table.reset_index(drop=True) for table in (settings_table(runs), outcome_table(runs))]
    return pd.concat(tables, axis=1).set_index(_index(runs))


def format_value(value: object) -> str:
    """Format a value of these tables; "-" if there is no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return format_return(value) if isinstance(value, float) else str(value)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in the settings of VARY_IN_GROUP. Groups are ordered by their first run."""
    members: dict[frozenset[tuple[str, str]], list[Run]] = {}
    for run in runs:
        settings = settings_of(run)
        key = frozenset(
            (name, text) for name in settings if name not in VARY_IN_GROUP and (text := _value(settings, name))
        )
        members.setdefault(key, []).append(run)
    settings_by_group = [settings_of(group[0]) for group in members.values()]
    names = _label_names(settings_by_group)
    return [
        Group(_label(settings, names), tuple(group))
        for settings, group in zip(settings_by_group, members.values(), strict=True)
    ]


def summarise(group: Group) -> str:
    """Describe a group's outcome in one line: mean return at the end, and minutes until it was solved.

    For two runs, the mean is followed by the lowest and the highest value. For more, it is the interquartile mean with
    its confidence interval, which for three or four runs is their range. Notes say if runs share a seed, because they
    are not independent then; if they can go on; and if their commits, machines or threads differ.
    """
    outcomes = pd.DataFrame([outcome_of(run) for run in group.runs])
    solved = outcomes["solved"].dropna()
    means = outcomes["mean"].dropna()  # a run may have no episode yet
    mean = "mean" if len(means) < intervals.MINIMUM else "interquartile mean"
    summary = f"{mean} return {_centre_and_range(means)}{_share(means, outcomes)}"
    if not solved.empty:
        took = ", which took" if len(solved) < len(outcomes) else " in"  # minutes of the solved runs only
        summary += f", solved{_share(solved, outcomes)}{took} {_centre_and_range(solved)} minutes"
    if len({run.params["seed"] for run in group.runs}) < len(group.runs):
        summary += "; some of these runs have the same seed, so the spread over seeds may be larger"
    running = sum(run.is_running for run in group.runs)
    unfinished = sum(not (run.is_running or run.has_ended) for run in group.runs)
    for count, what in ((running, "still running"), (unfinished, "stopped early, and can be resumed")):
        if count:
            summary += f"; {count} {what}"
    sessions = [session for run in group.runs for session in run.params["sessions"]]
    if len({session["commit"] for session in sessions}) > 1:
        summary += "; they ran at different commits"
    if len({_machine(session) for session in sessions}) > 1:
        summary += "; they ran on different machines"
    if _vary(sessions, "torch_threads"):
        summary += "; they ran with different numbers of torch threads"
    if _vary(sessions, "fast_bfloat16"):
        summary += "; they ran on machines with and without fast bfloat16"
    return summary


def _machine(session: Mapping[str, Any]) -> tuple[object, ...]:
    return tuple(session["machine"].get(name) for name in ("processor", "cores", "device"))


def _vary(sessions: Sequence[Mapping[str, Any]], name: str) -> bool:
    """Return whether the machines of sessions differ in an entry, which those of published models lack."""
    return len({session["machine"][name] for session in sessions if name in session["machine"]}) > 1


def _share(values: pd.Series, outcomes: pd.DataFrame) -> str:
    """Return how many of the runs have a value, or "" if all have."""
    return f" in {len(values)} of {len(outcomes)} runs" if len(values) < len(outcomes) else ""


def _centre_and_range(values: pd.Series) -> str:
    if len(values) < intervals.MINIMUM:
        centre, low, high = values.mean(), values.min(), values.max()
    else:
        centre, low, high = intervals.interval(np.asarray(values, float))
    text, lowest, highest = (format_value(float(value)) for value in (centre, low, high))
    if len(values) < 2:
        return text
    # The interval of three or four runs is their range, see intervals.interval.
    bounds = "range" if len(values) < intervals.NARROWER else f"{intervals.CONFIDENCE:.0%} interval"
    return f"{text} ({bounds} {lowest} to {highest})"


def _differing(rows: Sequence[Settings]) -> list[str]:
    """Return the names of the settings that are not equal in all rows. An unset setting equals a missing one."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({_value(row, name) for row in rows}) > 1]


def _value(row: Settings, name: str) -> str:
    """Return a setting as text; "" if it is missing or has the value of not set."""
    value = row.get(name)
    return "" if value in (None, []) or value is False else _as_text(row, name)


def _label_names(rows: Sequence[Settings]) -> list[str]:
    """Return the names of the settings that a label needs. Settings that distinguish no further groups are left out."""
    needed: list[str] = []
    for name in sorted(_differing(rows), key=lambda name: name not in FIRST_IN_LABELS):
        if name not in VARY_IN_GROUP and _count_distinct(rows, [*needed, name]) > _count_distinct(rows, needed):
            needed.append(name)
    return needed


def _count_distinct(rows: Sequence[Settings], names: list[str]) -> int:
    return len({tuple(_as_text(row, name) for name in names) for row in rows})


def _label(settings: Settings, names: list[str]) -> str:
    texts = {name: _as_text(settings, name) for name in names if name in settings}
    parts = [text if name in FIRST_IN_LABELS else f"{name}={text}" for name, text in texts.items()]
    return ", ".join(parts) or str(settings["script"])


def _as_text(settings: Settings, name: str) -> str:
    value = settings.get(name, "")
    if isinstance(value, list):  # of a repeatable option, such as --without
        return str(sorted(value))
    return str(value).removesuffix(".0")


def _index(runs: Sequence[Run]) -> pd.Index:
    return pd.Index(whole_names(runs), name="run")
