"""Comparison of runs: settings, outcomes, and groups of runs that differ only in VARY_IN_GROUP, such as the seed."""

import math
import os
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from lib.analysis import intervals
from lib.analysis.run_data import Run
from lib.run.checkpoint import numbered
from lib.run.episodes import WINDOW, Episodes, format_return

IGNORED = ("run_name", "milestone")  # hyperparameters that do not influence training
# Settings in which the runs of a group may differ: the seed, and options on which neither results nor speeds depend.
VARY_IN_GROUP = ("seed", "patience", "address")
FIRST = ("seed", "script", "learning_rate")  # settings that a table shows first
FIRST_IN_LABELS = ("script", "env_name")  # shown without their names
MACHINE = ("processor", "cores", "device", "torch_threads", "fast_bfloat16")  # what speeds and rounding depend on
DATE = re.compile(r"\d{4}-\d\d-\d\d(?=T\d{4}-)")  # at the start of a run's name
TIMESTAMP = re.compile(DATE.pattern + r"T\d{4}-")

Settings = dict[str, str]


class Group(NamedTuple):
    """Runs with the same settings, except for those of VARY_IN_GROUP."""

    label: str  # shortest description that distinguishes the group from the others
    runs: tuple[Run, ...]


def settings_of(run: Run) -> Settings:
    """Return a run's settings other than None, as text: those of FIRST, then script options and hyperparameters."""
    params, init = run.params, run.params["init"]
    start = {"seed": params["seed"], "script": params["script"], "init": init and re.sub("^/.*/", "", init)}
    settings = {**start, **params["knobs"], **run.hyperparameters}
    texts = {
        name: str(sorted(value)) if isinstance(value, list) else str(value).removesuffix(".0")
        for name, value in settings.items()
        if name not in IGNORED and value is not False and value not in (None, [])
    }
    return {name: texts[name] for name in FIRST if name in texts} | texts


def outcome_of(run: Run) -> dict[str, object]:
    """Return a run's steps, returns, speed and reason for its end; from episodes.csv if there is no result."""
    episodes, result = run.episodes, run.result
    returns = episodes["return"]
    solved = result.get("reached", {}).get(str(run.hyperparameters.get("stop_reward")), {})
    kept = [numbered(run.path / "checkpoints", kind) for kind in ("best", "step")]
    newest = [files[-1][1].name for files in kept if files]  # evaluate.py may have played another checkpoint
    evaluation = run.evaluation if run.evaluation.get("checkpoint") in newest else result.get("evaluation", {})
    is_model = episodes.empty and not result and "step" in evaluation
    played = evaluation.get("step", 0) if episodes.empty else episodes["step"].max()
    ended = result.get("stopped", "published model" if is_model else "no result")
    return {
        "steps": int(result.get("steps") or played),
        "episodes": math.nan if is_model else len(episodes),
        "mean": returns.tail(WINDOW).mean(),
        "best": returns.rolling(WINDOW, min_periods=Episodes.MINIMUM if len(returns) < WINDOW else WINDOW).mean().max(),
        "minutes": result.get("seconds", episodes["seconds"].max()) / 60,
        "steps/s": result.get("this_process", {}).get("steps_per_second"),
        "solved": solved.get("seconds", math.nan) / 60,
        "evaluated": evaluation.get("mean"),
        "ended": "running" if run.is_running else ended,
    }


def settings_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Build a table of the settings in which the runs differ, as text, with one row per run."""
    table = pd.DataFrame([settings_of(run) for run in runs], index=whole_names(runs), dtype=object)
    return table.loc[:, table.nunique(dropna=False) > 1]


def outcome_table(runs: Sequence[Run]) -> pd.DataFrame:
    """Build a table of the runs' outcomes, with one row per run. A column without any value is left out."""
    # As objects, because NaN in one row would make floats of a column's whole numbers.
    outcomes = pd.DataFrame([outcome_of(run) for run in runs], index=whole_names(runs), dtype=object)
    return outcomes.dropna(axis="columns", how="all")


def short_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names without the time and the common prefix. A name that would not be unique is kept."""
    run_names = {str(run.hyperparameters["run_name"]) for run in runs}
    shared = f"{run_names.pop()}-" if len(run_names) == 1 else ""
    names = [TIMESTAMP.sub("", run.name, count=1).removeprefix(shared) for run in runs]
    return [name if names.count(name) == 1 else long for name, long in zip(names, whole_names(runs), strict=True)]


def whole_names(runs: Sequence[Run]) -> list[str]:
    """Return the runs' names. Those that are not unique are preceded by the folders in which they differ."""
    names = [run.name for run in runs]
    common = os.path.commonpath([run.path.parent for run in runs])
    return [run.name if names.count(run.name) == 1 else os.path.relpath(run.path, common) for run in runs]


def shorten(name: str, width: int) -> str:
    """Leave out the date, and cut a name in the middle, because it begins with the time and ends with the seed."""
    if len(name) > width:
        name = DATE.sub("", name)
    end = width // 2
    return name if len(name) <= width else f"{name[: width - end - 1]}…{name[-end:]}"


def format_value(value: object) -> str:
    """Format a value of these tables; "-" if there is no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return format_return(value) if isinstance(value, float) else str(value)


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in the settings of VARY_IN_GROUP. Groups are ordered by their first run."""
    members: dict[frozenset[tuple[str, str]], list[Run]] = {}
    for run in runs:
        key = frozenset((name, text) for name, text in settings_of(run).items() if name not in VARY_IN_GROUP)
        members.setdefault(key, []).append(run)
    labels = _labels([settings_of(group[0]) for group in members.values()])
    return [Group(label, tuple(group)) for label, group in zip(labels, members.values(), strict=True)]


def summarise(group: Group) -> str:
    """Describe a group in one line: mean return at the end, minutes until it was solved, and caveats."""
    outcomes = pd.DataFrame([outcome_of(run) for run in group.runs])
    solved = outcomes["solved"].dropna()
    means = outcomes["mean"].dropna()  # a run may have no episode yet
    mean = "mean" if len(means) < 3 else "interquartile mean"
    summary = f"{mean} return {_centre_and_range(means)}{_share(means, outcomes)}"
    if not solved.empty:
        took = ", which took" if len(solved) < len(outcomes) else " in"  # minutes of the solved runs only
        summary += f", solved{_share(solved, outcomes)}{took} {_centre_and_range(solved)} minutes"
    running = sum(run.is_running for run in group.runs)
    unfinished = sum(not (run.is_running or run.has_ended) for run in group.runs)
    sessions = [session for run in group.runs for session in run.params["sessions"]]
    commits = {session["commit"] for session in sessions}
    machines = {tuple(session["machine"].get(name) for name in MACHINE) for session in sessions}
    seeds = {run.params["seed"] for run in group.runs}
    notes = {
        "some of these runs have the same seed, so the spread over seeds may be larger": len(seeds) < len(group.runs),
        f"{running} still running": running > 0,
        f"{unfinished} stopped early, and can be resumed": unfinished > 0,
        "they ran at different commits": len(commits) > 1,
        "they ran on different machines, or with different numbers of torch threads": len(machines) > 1,
    }
    return "; ".join([summary, *(note for note, holds in notes.items() if holds)])


def _share(values: pd.Series, outcomes: pd.DataFrame) -> str:
    """Return how many of the runs have a value, or "" if all have."""
    return f" in {len(values)} of {len(outcomes)} runs" if len(values) < len(outcomes) else ""


def _centre_and_range(values: pd.Series) -> str:
    if values.empty:
        return format_value(None)
    centre, lowest, highest = (format_value(float(value)) for value in intervals.interval(np.asarray(values, float)))
    if len(values) < 2:
        return centre
    bounds = "range" if len(values) < 5 else f"{intervals.CONFIDENCE:.0%} interval"  # see `interval`
    return f"{centre} ({bounds} {lowest} to {highest})"


def _labels(rows: Sequence[Settings]) -> list[str]:
    """Describe groups by the settings that differ; if there are more than three, by those that tell groups apart."""
    table = pd.DataFrame(rows)
    names = [name for name in table if name not in VARY_IN_GROUP and len(table[[name]].drop_duplicates()) > 1]
    needed: list[str] = []
    distinct = 1  # number of groups that `needed` distinguishes
    for name in sorted(names, key=lambda name: name not in FIRST_IN_LABELS):
        number = len(table[[*needed, name]].drop_duplicates())
        if number > distinct or len(names) <= 3:
            needed, distinct = [*needed, name], number
    labels = []
    for row in rows:
        texts = [row[name] if name in FIRST_IN_LABELS else f"{name}={row[name]}" for name in needed if name in row]
        labels.append(", ".join(texts) or row["script"])
    return labels
