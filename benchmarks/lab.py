"""Shared by the benchmarks: stamped CSV files, timed runs, and blocks of Markdown made from the results.

A rung is a numbered script with its options, such as "02_n_envs --envs 3".
"""

import argparse
import csv
import functools
import importlib.util
import json
import math
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
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))  # for lib outside .venv, and for the examples

from lib import cli
from lib.errors import UsageError
from lib.run import provenance
from lib.run.options import RunOptions
from lib.run.stopping import NOT_FINITE
from lib.system import machine
from lib.system.files import PROJECT

import pandas as pd

RESULTS = PROJECT / "benchmarks" / "results"
PICTURES = PROJECT / "docs" / "pictures"
MEASUREMENTS = "benchmarks/notes/measurements.md"  # the tables that are too long for docs/
BASELINE = "01_baseline"
WARM_UP = 2000  # agent steps before the timed part of a run

Stamp = dict[str, Any]


class Block(NamedTuple):
    """Markdown made from results: the text between `<!-- marker -->` and `<!-- /marker -->` in a page.

    Attributes:
        page: path of the page, relative to the project.
        marker: name of the block in the page.
        text: Markdown of the block.
    """

    page: str
    marker: str
    text: str

    def put_into(self, content: str) -> str:
        """Return the page's content with this block replaced.

        Raises:
            ValueError: if the page has no such block.
        """
        pattern = block_pattern(self.marker)
        if not pattern.search(content):
            raise ValueError(f"{self.page} has no block <!-- {self.marker} --> ... <!-- /{self.marker} -->")
        return pattern.sub(lambda match: f"<!-- {match[1]} -->\n{self.text}\n<!-- /{match[1]} -->", content)


def block_pattern(marker: str = r"[\w-]+") -> re.Pattern[str]:
    """Return the pattern of a page's blocks, with the groups marker and text. Without a marker, it matches all."""
    return re.compile(rf"<!-- ({marker}) -->\n(.*?)<!-- /\1 -->", re.S)


def write(blocks: Iterable[Block]) -> None:
    """Replace the blocks in their pages."""
    for block in blocks:
        path = PROJECT / block.page
        path.write_text(block.put_into(path.read_text()))


@functools.cache
def commit() -> str | None:
    """Return the project's commit at the first call. Later calls would see the results as changes."""
    return provenance.commit()


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
        "versions": provenance.versions(),
        "machine": described,
        "settings": settings,
    }


class Results:
    """CSV file in benchmarks/results. Its first line is its stamp, and every added row is written at once.

    An older file of the same name is replaced when the first row is added.

    Args:
        name: path of the file inside benchmarks/results, without .csv: "chapter09/speed".
        columns: names of the columns.
        stamped: stamp of the measurement; None for a new one.
        go_on: keep the rows of an interrupted measurement, if there are any.

    Raises:
        SystemExit: if the kept file has another commit, machine, settings or columns.
    """

    def __init__(
        self, name: str, columns: Sequence[str], stamped: Mapping[str, Any] | None = None, go_on: bool = False
    ):
        self.path = path_of(name)
        self.columns = columns
        self.rows: list[dict[str, str]] = []
        self._stamp = dict(stamped or stamp())
        self._started = go_on and self.path.exists()
        if self._started:
            if differing := differences(name, columns, self._stamp):
                raise SystemExit(
                    f"{self.path} was measured under other conditions: {', '.join(differing)} differ; "
                    "measure it again without --go-on, or restore the old conditions"
                )
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


def path_of(name: str) -> Path:
    """Return the path of a results file, whether it exists or not."""
    return RESULTS / f"{name}.csv"


def read(name: str) -> tuple[pd.DataFrame, Stamp]:
    """Return the rows of a results file and its stamp."""
    path = path_of(name)
    with path.open() as file:
        stamped = json.loads(file.readline().removeprefix("# "))
    return pd.read_csv(path, comment="#"), stamped


def can_go_on(name: str, columns: Sequence[str], stamped: Mapping[str, Any]) -> bool:
    """Return whether a results file exists and was measured in the same way."""
    return path_of(name).exists() and not differences(name, columns, stamped)


def differences(name: str, columns: Sequence[str], stamped: Mapping[str, Any]) -> list[str]:
    """Return which of commit, versions, machine, settings and columns differ from those of a results file."""
    frame, old = read(name)
    keys = ("commit", "versions", "machine", "settings")
    differing = [key for key in keys if str(old.get(key)) != str(stamped.get(key))]
    return differing + (["columns"] if list(frame.columns) != list(columns) else [])


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
        return str(cli.usable_device(name))
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def device_of(options: Sequence[str]) -> str:
    """Return the device that a script's command-line options select."""
    known, _ = cli.parser(__doc__).parse_known_args(options)
    return getattr(known, "device", "cpu")


def assignments(fields: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as `--set` options of a script."""
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


def command(rung: str, *options: str) -> list[str]:
    """Return the command that starts a script.

    Args:
        rung: name and options of a script of chapter 9, or "folder/name" for other folders.
        options: further options.
    """
    script, *own_options = rung.split()
    path = PROJECT / (f"{script}.py" if "/" in script else f"chapter09/{script}.py")
    return [sys.executable, str(path), *own_options, *options]


def load(rung: str, steps: int, folder: str) -> tuple[Any, Any, RunOptions]:
    """Return a script of chapter 9 as a module, with the parameters and options of a short run on Pong.

    Args:
        rung: name and options of the script.
        steps: agent steps of learning, after a warm-up of WARM_UP steps.
        folder: folder for the run.
    """
    script, *own_options = rung.split()
    spec = importlib.util.spec_from_file_location("rung", PROJECT / "chapter09" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    parser = cli.parser(module.__doc__)
    parser.add_argument("--envs", type=int, default=3)
    parser.add_argument("--players", type=int, default=1)
    parser.add_argument("--replay-ratio", type=int)
    parser.add_argument("--stack", type=int, default=4)
    parser.add_argument("--noop-max", type=int, default=30)
    parser.add_argument("--max-frames", type=int, default=1)
    parser.add_argument("--parallel", action="store_true")
    parser.add_argument("--engine", default="process")
    parser.add_argument("--patience", type=int, default=60)
    parser.add_argument("--address")
    limits = ["--set", f"replay_initial={WARM_UP}", "--stop-after", str(WARM_UP + steps), "--quiet"]
    params, args = cli.resolve(parser, [*own_options, *limits, "--runs-dir", folder], script)
    cli.prepare(args.seed)
    return module, params, args


@contextmanager
def interrupts_left_to_children() -> Iterator[None]:
    """Ignore Ctrl-C meanwhile. It also reaches the child processes, which save their runs."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def start(words: Sequence[str]) -> None:
    """Run a command to its end.

    Raises:
        SystemExit: with the command's exit code, if it is not 0.
    """
    with interrupts_left_to_children():
        code = subprocess.run(words, check=False).returncode
    if code:
        raise SystemExit(code)


@contextmanager
def finished_run(rung: str, *options: str, **environment: str) -> Iterator[Path]:
    """Run a script to its end and yield its run folder, which is deleted afterwards.

    Args:
        rung: name and options of the script, see `command`.
        options: further options.
        environment: additional environment variables of the process.

    Raises:
        CalledProcessError: if the script failed. A run with a non-finite loss counts as finished.
    """
    with tempfile.TemporaryDirectory() as folder:
        words = command(rung, *options, "--quiet", "--runs-dir", folder)
        process = subprocess.run(words, check=False, env=os.environ | environment, stdout=subprocess.DEVNULL)
        if not diverged(Path(folder)):
            process.check_returncode()
        [result] = Path(folder).glob("*/result.json")
        yield result.parent


def evaluate_greedily(run: Path, episodes: int, seed: int, *options: str, **environment: str) -> dict[str, Any]:
    """Play greedy episodes with the last checkpoint of a run, and return its evaluation.json.

    Args:
        run: run folder.
        episodes: number of episodes.
        seed: seed of the evaluation.
        options: further options of tools/evaluate.py.
        environment: additional environment variables of the process.
    """
    words = command("tools/evaluate", str(run), "--checkpoint", "last", "--quiet", *options)
    words += ["--episodes", str(episodes), "--seed", str(seed)]
    subprocess.run(words, check=True, env=os.environ | environment, stdout=subprocess.DEVNULL)
    evaluation: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return evaluation


def diverged(folder: Path) -> bool:
    """Return whether a run in this folder ended because its loss was not finite."""
    return any(json.loads(path.read_text())["stopped"] == NOT_FINITE for path in folder.glob("*/result.json"))


def timed(rung: str, *options: str) -> dict[str, Any]:
    """Run a script and return the speeds that it reports: "this_process" of its result.json."""
    with finished_run(rung, *options) as run:
        report: dict[str, Any] = json.loads((run / "result.json").read_text())["this_process"]
    return report


def turns(rounds: int, names: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Yield (round, name) in measuring order, which is reversed in every second round.

    If the machine becomes faster or slower, this affects all names equally.
    """
    for number in range(rounds):
        for name in names[:: 1 if number % 2 == 0 else -1]:
            yield number, name


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


def spread(values: pd.Series, digits: int = 1, unit: str = "", single: str = "") -> str:
    """Return median and range as text: "155 s (98 to 272)".

    Args:
        values: measured values; an infinite one stands for a run that did not reach its goal.
        digits: digits after the decimal point.
        unit: unit of the median, with a space before it.
        single: noun for a single value: "seed" gives "1,616 s (one seed)".
    """

    def text(value: float) -> str:
        return f"{value:,.{digits}f}" if math.isfinite(value) else "never"

    median = text(values.median()) + unit
    if len(values) == 1:
        return f"{median} (one {single})" if single else median
    return f"{median} ({text(values.min())} to {text(values.max())})"


def spread_of_seeds(values: pd.Series, seeds: int) -> str:
    """Return median and range of the seeds that reached a goal, and how many did: "300 (200 to 400), 2 of 3 seeds"."""
    return f"{spread(values, 0)}, {len(values)} of {seeds} seeds"


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def slug(text: str) -> str:
    """Return a name with its options as part of a file name."""
    return re.sub(r"[^\w]+", "-", text)


def measured_on(stamps: Iterable[Mapping[str, Any]]) -> str:
    """Return one sentence with the machines, versions and dates of some stamps."""
    stamps = list(stamps)
    places = "; and on ".join(dict.fromkeys(map(_place, stamps)))
    dates = sorted({stamped["measured"][:10] for stamped in stamps})
    days = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"Measured on {places}; {days}."


def _place(stamped: Mapping[str, Any]) -> str:
    machine, versions = stamped["machine"], stamped["versions"]
    processor = machine["processor"].replace("(R)", "").removesuffix(" Processor")
    gpu = "no GPU" if machine["device"] == "cpu" else machine["device"]
    threads = machine["torch_threads"]
    limited = "" if threads == machine["cores"] else f", {threads} torch thread{'s' * (threads != 1)}"
    cores = f"{machine['cores']} core{'s' * (machine['cores'] != 1)}"
    torch = versions["torch"].removesuffix("+cpu")
    return f"{cores} ({processor}), {gpu}{limited}, torch {torch}, ale-py {versions['ale-py']}"
