"""The results in three files of results/: runs.csv, curves.csv and machines.json. bench.py says what a row is."""

import csv
import hashlib
import io
import json
import sys
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for lib and examples; so this module is imported first

from lib.run.folder import current_commit, versions
from lib.system import files, machine
from lib.system.files import PROJECT

import pandas as pd
from filelock import FileLock

RESULTS = PROJECT / "benchmarks" / "results"
KEY = ("experiment", "variant", "seed")
CONDITIONS = ("settings", "commit", "machine", "measured")
POINT = ("curve", "step", "seconds", "value")

Row = dict[str, str]


class Place(NamedTuple):
    """Where something is measured: the commit, and the key in machines.json of the machine and package versions."""

    commit: str
    machine: str


class Job(NamedTuple):
    """One measurement that is to be made.

    Attributes:
        experiment: name of the experiment.
        variant: name of the variant.
        seed: seed, which is also the number of the round.
        settings: the command line, or whatever else defines the variant.
        place: where it is measured.
        threads: number of torch threads, or None for this machine's default.
    """

    experiment: str
    variant: str
    seed: int
    settings: str
    place: Place
    threads: int | None = None

    @property
    def key(self) -> Row:
        """Its columns in runs.csv and curves.csv."""
        return {"experiment": self.experiment, "variant": self.variant, "seed": str(self.seed)}


HERE: dict[str, Any] = {}  # this machine by its key, with each device and number of threads that is used


def place(device: str, threads: int | None) -> Place:
    """Return the commit and the machine of measurements that begin now."""
    described = machine.machine(device)
    if threads is not None:
        described |= {"torch_threads": threads}
    stamp = {"machine": described, "versions": versions()}
    key = hashlib.sha256(json.dumps(stamp, sort_keys=True).encode()).hexdigest()[:8]
    HERE[key] = stamp
    return Place(current_commit() or "unknown", key)


def machines() -> dict[str, Any]:
    """Return machines.json."""
    path = RESULTS / "machines.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def add(job: Job, figures: Mapping[str, Any], curves: Mapping[str, pd.DataFrame] | None = None) -> None:
    """Write a measurement, in place of an older one of the same experiment, variant and seed.

    Args:
        job: the measurement.
        figures: its figures by name.
        curves: its curves by name, with the columns step, seconds and value.
    """
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    where = {"settings": job.settings, **job.place._asdict(), "measured": now}
    row = job.key | where | {name: as_text(value) for name, value in figures.items()}
    points = [
        job.key | {"curve": name} | {column: as_text(value) for column, value in point.items()}
        for name, curve in (curves or {}).items()
        for point in curve.to_dict("records")
    ]
    with FileLock(RESULTS / "lock"):  # another measurement of this checkout may end at the same time
        if job.place.machine in HERE:
            known = machines() | {job.place.machine: HERE[job.place.machine]}
            files.write(RESULTS / "machines.json", json.dumps(known, indent=1) + "\n")
        _replace("curves.csv", (*KEY, *POINT), job.key, points)
        _replace("runs.csv", (*KEY, *CONDITIONS), job.key, [row])  # last, so that each of its rows is complete


def _replace(name: str, columns: Iterable[str], key: Row, new: Iterable[Row]) -> None:
    """Replace the rows of one measurement in a file."""
    old = rows_of(name)
    is_kept = [any(row[column] != value for column, value in key.items()) for row in old]
    at = (
        is_kept.index(False) if False in is_kept else len(old)
    )  # the old row's place, so that git shows only what has changed
    rows = [*old[:at], *new, *(row for row, kept in zip(old[at:], is_kept[at:], strict=True) if kept)]
    header = list(dict.fromkeys([*columns, *(column for row in rows for column in row)]))
    text = io.StringIO()
    writer = csv.DictWriter(text, header, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    files.write(RESULTS / name, text.getvalue())


def as_text(value: object) -> str:
    """Return a figure as text: four digits after the point, and nothing for an unknown one."""
    if value is None or value != value:
        return ""
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def rows_of(name: str, experiment: str | None = None) -> list[Row]:
    """Return the rows of a file, all or those of one experiment. Values are text."""
    path = RESULTS / name
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [row for row in csv.DictReader(file) if experiment in (None, row["experiment"])]


def runs(experiment: str) -> pd.DataFrame:
    """Return a row per measurement of an experiment, in order of variant and seed, without columns that it lacks.

    Raises:
        SystemExit: if there is none.
    """
    return _frame("runs.csv", experiment)


def curves(experiment: str, curve: str) -> pd.DataFrame:
    """Return the points of all curves of this name: variant, seed, step, seconds, value."""
    frame = _frame("curves.csv", experiment)
    return frame[frame["curve"] == curve]


def _frame(name: str, experiment: str) -> pd.DataFrame:
    rows = rows_of(name, experiment)
    if not rows:
        raise SystemExit(f"{name} has nothing of {experiment}; measure it: ./bench.py run {experiment}")
    frame = pd.DataFrame(rows).replace("", None).dropna(axis="columns", how="all")
    text = {"experiment", "variant", "settings", "commit", "machine", "measured", "stopped", "version", "curve"}
    return frame.apply(lambda column: column if column.name in text else pd.to_numeric(column))


def rounds(frame: pd.DataFrame, value: str, variants: Iterable[str]) -> pd.DataFrame:
    """Return a row per complete round and a column per measured variant. A round has one commit and one machine.

    Raises:
        SystemExit: if no round is complete.
    """
    table = frame.pivot_table(index=["seed", "commit", "machine"], columns="variant", values=value)
    table = table[[variant for variant in variants if variant in table]].dropna()
    if table.empty:
        raise SystemExit(f"no round of {frame['experiment'].iloc[0]} is complete; finish one with ./bench.py run")
    return table.reset_index(drop=True)
