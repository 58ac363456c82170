"""Shared by the benchmarks: stamped CSV files, their rounds, common options, and the pictures' backend."""

import argparse
import csv
import functools
import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for lib outside .venv, and for the examples

from lib.errors import UsageError
from lib.run.arguments import usable_device
from lib.run.folder import current_commit, versions
from lib.system import machine
from lib.system.files import PROJECT

import matplotlib
import pandas as pd

matplotlib.use("Agg")  # no benchmark opens a window

RESULTS = PROJECT / "benchmarks" / "results"
Stamp = dict[str, Any]


@functools.cache
def commit() -> str | None:
    """Return the project's commit at the first call. Later calls would see the results as changes."""
    return current_commit()


def commit_of(checkout: Path) -> str:
    """Return the commit of another project's checkout, shortened."""
    git = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=True).stdout[:10]


def stamp(device: str = "cpu", threads: int | None = None, **settings: Any) -> Stamp:
    """Return the date, commit, package versions, machine and settings of a measurement.

    Args:
        device: device of the networks.
        threads: number of torch threads, if it differs from this machine's default.
        settings: settings of the measurement, such as its number of steps.
    """
    described = machine.machine(device)
    if threads is not None:
        described |= {"torch_threads": threads}
    return {
        "measured": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": described,
        "settings": settings,
    }


class Results:
    """CSV file in benchmarks/results. Its first line is its stamp, and every added row is written at once.

    An older file of the same name is replaced when the first row is added, if it is committed.

    Args:
        name: path of the file inside benchmarks/results, without .csv: "chapter09/speed".
        columns: names of the columns.
        stamped: stamp of the measurement; None for a new one.
        go_on: keep the rows of an interrupted measurement, if there are any. An earlier measurement that is committed
            is replaced.
        replace: replace an older file, committed or not.

    Raises:
        SystemExit: if there is an older file that is not committed, unless `replace` is given, or `go_on` is and its
            commit, versions, machine, settings and columns are the same.
    """

    def __init__(
        self,
        name: str,
        columns: Sequence[str],
        stamped: Mapping[str, Any] | None = None,
        go_on: bool = False,
        replace: bool = False,
    ):
        self.path = path_of(name)
        self.columns = columns
        self.rows: list[dict[str, str]] = []
        self._stamp = dict(stamped or stamp())
        differing = differences(name, columns, self._stamp) if go_on else []
        self._started = go_on and self.path.exists() and not differing
        if self.path.exists() and not (self._started or replace or _is_committed(self.path)):
            if differing:
                refuse(name, differing, "delete it to measure it again, or restore the old conditions")
            raise SystemExit(
                f"{self.path} is not committed, and would be replaced; commit it, delete it, or continue it with "
                "--go-on if this benchmark has that option"
            )
        if differing:
            print(f"{self.path} is measured again; these have changed: {', '.join(differing)}", file=sys.stderr)
        if self._started:
            self.rows = read(name)[0].astype(str).to_dict("records")

    def has(self, **key: Any) -> bool:
        """Return whether a row has these values."""
        return any(all(row[name] == str(value) for name, value in key.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        """Append a row to the file."""
        if not self._started:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(f"# {json.dumps(self._stamp)}\n{','.join(self.columns)}\n")
            self._started = True
        self.rows.append({name: str(value) for name, value in row.items()})
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)


def _is_committed(path: Path) -> bool:
    """Return whether a file is in git, without changes."""
    git = ["git", "-C", str(path.parent)]
    try:
        tracked = subprocess.run([*git, "ls-files", "--error-unmatch", path.name], capture_output=True, check=False)
        changed = subprocess.run([*git, "diff", "--quiet", "HEAD", "--", path.name], capture_output=True, check=False)
    except OSError:
        return False
    return tracked.returncode == 0 and changed.returncode == 0


def slug(text: str) -> str:
    """Return a name with its options as part of a file name."""
    return re.sub(r"[^\w]+", "-", text)


def path_of(name: str) -> Path:
    """Return the path of a results file, whether it exists or not."""
    return RESULTS / f"{name}.csv"


def read(name: str) -> tuple[pd.DataFrame, Stamp]:
    """Return the rows of a results file and its stamp.

    Raises:
        SystemExit: if there is no such file.
    """
    path = path_of(name)
    if not path.exists():
        raise SystemExit(f"{path} is missing; measure it (see benchmarks/README.md), or restore it")
    with path.open() as file:
        stamped = json.loads(file.readline().removeprefix("# "))
    return pd.read_csv(path, comment="#"), stamped


def differences(name: str, columns: Sequence[str], stamped: Mapping[str, Any]) -> list[str]:
    """Return which of commit, versions, machine, settings and columns differ from those of a results file, if any."""
    if not path_of(name).exists():
        return []
    frame, old = read(name)
    keys = ("commit", "versions", "machine", "settings")
    differing = [key for key in keys if old.get(key) != json.loads(json.dumps(stamped.get(key)))]
    return differing + (["columns"] if list(frame.columns) != list(columns) else [])


def refuse_loss(name: str, differing: Sequence[str], key: str, wanted: Collection[Any]) -> None:
    """End the program if results of other conditions would be deleted that are not measured again.

    Args:
        name: path of the results file.
        differing: result of `differences`.
        key: name of a column.
        wanted: its values that are measured again.
    """
    if differing and (lost := [str(value) for value in read(name)[0][key].unique() if value not in wanted]):
        remedy = f"its results of {key} {', '.join(lost)} would be deleted; measure them, too, or give --overwrite"
        refuse(name, differing, remedy)


def refuse(name: str, differing: Sequence[str], remedy: str) -> NoReturn:
    """End the program because results were measured in another way. The message ends with `remedy`."""
    raise SystemExit(f"{path_of(name)} was measured with other conditions ({', '.join(differing)}); {remedy}")


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser whose help is a module's docstring."""
    return argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)


def add_experiments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add a positional argument that names some experiments of a benchmark.

    argparse's own `choices` reject an empty list when options follow.
    """

    def experiment(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"unknown experiment {text!r}; choose among {', '.join(names)}")
        return text

    parser.add_argument("what", nargs="*", type=experiment, help=f"some of {', '.join(names)} (default: see above)")


def add_go_on(parser: argparse.ArgumentParser) -> None:
    """Add the option that continues an interrupted measurement."""
    parser.add_argument(
        "--go-on", action="store_true", help="keep what an interrupted measurement has, and measure the rest"
    )


def device(name: str) -> str:
    """argparse type: a device that torch can use."""
    try:
        return str(usable_device(name))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def turns(rounds: int, names: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield (round, name) in measuring order, which is reversed in every second round.

    If the machine becomes faster or slower, this affects all names equally.
    """
    for number in range(rounds):
        for name in names[:: 1 if number % 2 == 0 else -1]:
            yield number, name


def count_rounds(frame: pd.DataFrame) -> int:
    """Return the number of complete rounds of a measurement; 0 if it has no rounds."""
    if "round" not in frame:
        return 0
    sizes = frame.groupby("round").size()
    return int((sizes == sizes.max()).sum())


def rounds(frame: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """Return a table with a row per complete round and a column per measured name, in order of appearance.

    Raises:
        SystemExit: if no round is complete.
    """
    table = frame.pivot(index="round", columns=by, values=value)[list(dict.fromkeys(frame[by]))].dropna()
    if table.empty:
        raise SystemExit("no round of this measurement is complete; finish one, or remove its file")
    return table


def ratios(speeds: pd.DataFrame, to: str) -> pd.DataFrame:
    """Return the ratio of each column to one of them, round by round.

    Raises:
        SystemExit: if that column is missing.
    """
    if to not in speeds:
        raise SystemExit(f"{to} was not measured, and the others are compared with it; measure it, too")
    return speeds.div(speeds[to], axis=0)
