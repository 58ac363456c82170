"""Scripts that the benchmarks start. A rung is a numbered script with its options, such as "02_n_envs --envs 3"."""

import json
import math
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import lab
from lib import cli
from lib.run.arguments import resolve
from lib.run.stopping import NOT_FINITE

BASELINE = "01_baseline"
WARM_UP = 2000  # agent steps before the timed part of a run

Turn = TypeVar("Turn")
Result = TypeVar("Result")


def device_of(options: Sequence[str]) -> str:
    """Return the device that a script's command-line options select."""
    known, _ = cli.parser(__doc__).parse_known_args(options)
    return getattr(known, "device", "cpu")


def assignments(fields: Mapping[str, Any]) -> list[str]:
    """Return hyperparameters as `--set` options of a script."""
    return [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]


def tuned(params: str, rung: str) -> list[str]:
    """Return the options of a rung of chapter 9 for a benchmark's --params, common or best. 07 has its own."""
    is_tuned = params == "best" and not rung.startswith("07")
    return ["--config", str(lab.PROJECT / "configs" / "pong-cpu.json")] if is_tuned else []


def command(rung: str, *options: str) -> list[str]:
    """Return the command that starts a script.

    Args:
        rung: name and options of a script of chapter 9, or "folder/name" for other folders.
        options: further options.
    """
    script, *own_options = rung.split()
    path = lab.PROJECT / (f"{script}.py" if "/" in script else f"chapter09/{script}.py")
    return [sys.executable, str(path), *own_options, *options]


def load(rung: str, steps: int, folder: str) -> tuple[Callable[[], object], Any]:
    """Return a function that trains a script of chapter 9 for a short run on Pong, and its hyperparameters.

    Args:
        rung: name and options of the script.
        steps: agent steps of learning, after a warm-up of WARM_UP steps.
        folder: folder for the run.
    """
    _, script, *own_options = command(rung)
    limits = ["--set", f"replay_initial={WARM_UP}", "--stop-after", str(WARM_UP + steps), "--quiet"]
    loaded: list[Any] = []

    def keep(train: Callable[..., object], parser: Any, name: str) -> None:
        params, args = resolve(parser, [*own_options, *limits, "--runs-dir", folder], name)
        cli.prepare(args.seed)
        loaded.extend((partial(train, params, args), params))

    with patch.object(cli, "main", keep):
        runpy.run_path(script, run_name="__main__")
    train, params = loaded
    return train, params


@contextmanager
def interrupts_left_to_children() -> Iterator[None]:
    """Ignore Ctrl-C meanwhile. It also reaches the child processes, which save their runs.

    Raises:
        SystemExit: with the exit code of a child process that failed or was interrupted.
    """
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from None
    finally:
        signal.signal(signal.SIGINT, before)


def in_parallel(jobs: int, call: Callable[[Turn], Result], turns: Iterable[Turn]) -> Iterator[tuple[Turn, Result]]:
    """Call a function for each turn, `jobs` at once, and yield the turns with their results as they end.

    After an error or Ctrl-C no further call begins. After an error, the results of those that run are still yielded.
    """
    stopped = threading.Event()

    def call_unless_stopped(turn: Turn) -> Result:
        if stopped.is_set():
            raise CancelledError
        try:
            return call(turn)
        except BaseException:
            stopped.set()  # here, because this thread may begin the next call before the error is seen below
            raise

    errors: list[BaseException] = []
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(call_unless_stopped, turn): turn for turn in turns}
        try:
            for done in as_completed(running):
                if error := done.exception():
                    errors.append(error)
                else:
                    yield running[done], done.result()
        finally:
            stopped.set()
    for error in errors:
        if not isinstance(error, CancelledError):
            raise error


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
    words = command("tools/evaluate", str(run), "--checkpoint", "last", *options)
    words += ["--episodes", str(episodes), "--seed", str(seed)]
    subprocess.run(words, check=True, env=os.environ | environment, stdout=subprocess.DEVNULL)
    evaluation: dict[str, Any] = json.loads((run / "evaluation.json").read_text())
    return evaluation


def result_of(run: Path) -> dict[str, Any]:
    """Return the result.json of a run folder."""
    result: dict[str, Any] = json.loads((run / "result.json").read_text())
    return result


def mean_return(result: Mapping[str, Any], digits: int = 2) -> float:
    """Return the mean return of a run's last 100 episodes, rounded; NaN if no episode has ended."""
    return math.nan if result["mean_100"] is None else round(result["mean_100"], digits)


def diverged(folder: Path) -> bool:
    """Return whether a run in this folder ended because its loss was not finite."""
    return any(result_of(path.parent)["stopped"] == NOT_FINITE for path in folder.glob("*/result.json"))


def timed(rung: str, *options: str) -> dict[str, Any]:
    """Run a script and return the speeds that it reports: "this_process" of its result.json."""
    with finished_run(rung, *options) as run:
        report: dict[str, Any] = result_of(run)["this_process"]
    return report
