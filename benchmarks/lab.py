"""What the benchmarks share: stamped CSV files, and tables in the documents made from them."""

import argparse
import csv
import functools
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from lib import cli
from lib.errors import UsageError
from lib.hyperparameters import Hyperparameters
from lib.run import provenance
from lib.run.options import RunOptions
from lib.run.stopping import NOT_FINITE
from lib.system import machine
from lib.system.files import PROJECT

PROJECT = PROJECT
RESULTS = PROJECT / "benchmarks" / "results"
PICTURES = PROJECT / "docs" / "pictures"
BASELINE = "01_baseline"
WARM_UP = 2000  # agent steps before the learning that is timed


@functools.cache
def commit() -> str | None:
    """The project's commit when it is first asked for, as the results themselves change the checkout."""
    return provenance.commit()


def stamp(device: str = "cpu", threads: int | None = None, **settings: Any) -> dict[str, Any]:
    """Where, with what and how a figure is measured.

    Args:
        device: of the networks.
        threads: of torch, where they are not this machine's usual number.
        settings: of the measurement, such as its steps.
    """
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    here = machine.machine(device) | ({} if threads is None else {"torch_threads": threads})
    return {
        "measured": now,
        "commit": commit(),
        "versions": provenance.versions(),
        "machine": here,
        "settings": settings,
    }


class Results:
    """A CSV file in benchmarks/results; its first line is its stamp, and a row is on the disk once it is added.

    What is there of an older measurement stays until the first row is added.

    Args:
        name: the file's, without .csv.
        columns: of the table.
        stamped: the stamp; None for one of here and now.
        go_on: whether to keep the rows that an interrupted measurement has left, where there are any.

    Raises:
        SystemExit: on going on, the file is of another commit, another machine or other settings.
    """

    def __init__(
        self, name: str, columns: Sequence[str], stamped: Mapping[str, Any] | None = None, go_on: bool = False
    ):
        self.path = path_of(name)
        self.columns = columns
        self.rows: list[dict[str, str]] = []
        self._stamp = dict(stamped or stamp())
        self._goes_on = go_on and self.path.exists()
        if self._goes_on:
            if differing := differences(name, columns, self._stamp):
                raise SystemExit(
                    f"{self.path} was measured with other {' and '.join(differing)}; measure anew, or where it was"
                )
            self.rows = read(name)[0].astype(str).to_dict("records")

    def has(self, **key: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row[name] == str(value) for name, value in key.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        if not self._goes_on:
            RESULTS.mkdir(exist_ok=True)
            self.path.write_text(f"# {json.dumps(self._stamp)}\n{','.join(self.columns)}\n")
            self._goes_on = True
        self.rows.append({name: str(value) for name, value in row.items()})
        with self.path.open("a", newline="") as file:
            csv.DictWriter(file, self.columns, lineterminator="\n").writerow(row)


def path_of(name: str) -> Path:
    """Where a results file is, or would be."""
    return RESULTS / f"{name}.csv"


def can_go_on(name: str, columns: Sequence[str], stamped: Mapping[str, Any]) -> bool:
    """Whether there is a results file that was measured in the same way."""
    return path_of(name).exists() and not differences(name, columns, stamped)


def differences(name: str, columns: Sequence[str], stamped: Mapping[str, Any]) -> list[str]:
    """In what a results file was measured otherwise: some of commit, versions, machine, settings and columns."""
    frame, old = read(name)
    keys = ("commit", "versions", "machine", "settings")
    differing = [key for key in keys if str(old.get(key)) != str(stamped.get(key))]
    return differing + (["columns"] if list(frame.columns) != list(columns) else [])


def device_of(words: Sequence[str]) -> str:
    """Where a script's options put its networks."""
    given, _ = cli.parser(__doc__).parse_known_args(words)
    return getattr(given, "device", "cpu")


def read(name: str) -> tuple[pd.DataFrame, dict[str, Any]]:
    """A results file and its stamp."""
    path = path_of(name)
    with path.open() as file:
        stamped = json.loads(file.readline().removeprefix("# "))
    return pd.read_csv(path, comment="#"), stamped


def assignments(fields: Mapping[str, Any]) -> list[str]:
    """Hyperparameters as a script's options."""
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


def experiments(parser: argparse.ArgumentParser, *names: str) -> None:
    """Let a command line name some of its experiments; argparse's own choices refuse to be left out beside options."""

    def one(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"unknown experiment {text!r}; choose among {', '.join(names)}")
        return text

    parser.add_argument("what", nargs="*", type=one, help=f"some of {', '.join(names)} (default: see above)")


def device(name: str) -> str:
    """argparse type: where the networks are."""
    try:
        return str(cli.usable_device(name))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def command(rung: str, *options: str) -> list[str]:
    """What starts a rung, given as its script's name and options; in chapter 9, or "folder/name"."""
    script, *own = rung.split()
    return [sys.executable, str(PROJECT / (script if "/" in script else f"chapter09/{script}")) + ".py", *own, *cli]


def load(rung: str, steps: int, folder: str) -> tuple[Any, Hyperparameters, RunOptions]:
    """A rung to be trained on Pong in this process: its module, and what its command line would say.

    Args:
        rung: the script's name and options.
        steps: agent steps of learning, after a warm-up of WARM_UP.
        folder: where the run goes.
    """
    script, *own = rung.split()
    spec = importlib.util.spec_from_file_location("rung", PROJECT / "chapter09" / f"{script}.py")
    assert spec is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parser = cli.parser(module.__doc__)
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--players", type=int, default=1)
    parser.add_argument("--replay-ratio", type=int, default=32)
    parser.add_argument("--parallel", action="store_true")
    limits = ["--set", f"replay_initial={WARM_UP}", "--stop-after", str(WARM_UP + steps), "--quiet"]
    params, args = cli.resolve(parser, [*own, *limits, "--runs-dir", folder], script)
    cli.prepare(args.seed)
    return module, params, args


def turns(rounds: int, names: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Who is measured when: a round goes through the names, every second one backwards."""
    for number in range(rounds):
        for name in names[:: 1 if number % 2 == 0 else -1]:
            yield number, name


def rounds(frame: pd.DataFrame, by: str, value: str) -> pd.DataFrame:
    """A measurement in turns: a row a round and a column for each that took turns, in order of first appearance.

    Raises:
        SystemExit: no round was ever completed.
    """
    turns = frame.pivot(index="round", columns=by, values=value)[list(dict.fromkeys(frame[by]))].dropna()
    if turns.empty:
        raise SystemExit("no round of this measurement is complete; finish one, or remove its file")
    return turns


def ratios(speeds: pd.DataFrame, to: str) -> pd.DataFrame:
    """Each column's ratio to one of them, round by round.

    Raises:
        SystemExit: that one was not measured.
    """
    if to not in speeds:
        raise SystemExit(f"{to} was not measured, to which the others are compared; measure it, too")
    return speeds.div(speeds[to], axis=0)


def start(command: Sequence[str]) -> None:
    """Run a script to its end; Ctrl-C is left to the script, which saves what it has.

    Raises:
        SystemExit: the script failed or was stopped, with its exit code.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.run(command, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)
    if code:
        raise SystemExit(code)


@contextmanager
def finished_run(rung: str, *options: str, **environment: str) -> Iterator[Path]:
    """The folder of a rung's run from beginning to end, which is gone afterwards.

    Args:
        rung, options: see command.
        environment: variables of the process, beside those of this one.

    Raises:
        CalledProcessError: it failed; one whose loss ran away has just ended.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = command(rung, *cli, "--quiet", "--runs-dir", folder)
        process = subprocess.run(started, check=False, env=os.environ | environment, stdout=subprocess.DEVNULL)
        if not ran_away(Path(folder)):
            process.check_returncode()
        [result] = Path(folder).glob("*/result.json")
        yield result.parent


def ran_away(folder: Path) -> bool:
    """Whether a run below this folder has ended as its loss was no longer a number: it failed to learn, not to run."""
    return any(json.loads(path.read_text())["stopped"] == NOT_FINITE for path in folder.glob("*/result.json"))


def timed(rung: str, *options: str) -> dict[str, Any]:
    """What a run says of its own speed: "this_process" of its result.json."""
    with finished_run(rung, *cli) as run:
        return json.loads((run / "result.json").read_text())["this_process"]


def spread(values: pd.Series, digits: int = 1) -> str:
    """Minimum / median / maximum."""
    return " / ".join(f"{value:.{digits}f}" for value in (values.min(), values.median(), values.max()))


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def slug(rung: str) -> str:
    """A rung or a variant, with its options, as part of a file's name."""
    return re.sub(r"[^\w]+", "-", rung)


def where(stamped: Mapping[str, Any]) -> str:
    """A stamp in one sentence."""
    machine, versions, commit = stamped["machine"], stamped["versions"], str(stamped["commit"])
    changed = " with changes" if commit.endswith("+") else ""
    return (
        f"Measured {stamped['measured'][:10]} at commit {commit[:10]}{changed} on {machine['processor']}, "
        f"{machine['cores']} cores, {machine['torch_threads']} torch threads, {machine['device']}; "
        f"torch {versions['torch']}, ale-py {versions['ale-py']}."
    )


def places(stamps: Iterable[Mapping[str, Any]]) -> list[str]:
    """The sentences of several stamps, each once."""
    return list(dict.fromkeys(map(where, stamps)))


def put(document: str, marker: str, content: str) -> None:
    """Replace what stands between `<!-- marker -->` and `<!-- /marker -->` in a document of the project."""
    path = PROJECT / document
    text = path.read_text()
    block = re.compile(rf"(<!-- {marker} -->\n).*?(<!-- /{marker} -->)", re.S)
    if not block.search(text):
        raise ValueError(f"{document} has no place <!-- {marker} --> ... <!-- /{marker} -->")
    path.write_text(block.sub(lambda match: f"{match[1]}{content}\n{match[2]}", text))
