"""Scripts that the benchmarks start. A rung is a numbered script with its options, such as "02_n_envs --envs 3"."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import lab
from lib import cli
from lib.run.options import RunOptions
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


def command(rung: str, *options: str) -> list[str]:
    """Return the command that starts a script.

    Args:
        rung: name and options of a script of chapter 9, or "folder/name" for other folders.
        options: further options.
    """
    script, *own_options = rung.split()
    path = lab.PROJECT / (f"{script}.py" if "/" in script else f"chapter09/{script}.py")
    return [sys.executable, str(path), *own_options, *options]


def load(rung: str, steps: int, folder: str) -> tuple[Any, Any, RunOptions]:
    """Return a script of chapter 9 as a module, with the parameters and options of a short run on Pong.

    Args:
        rung: name and options of the script.
        steps: agent steps of learning, after a warm-up of WARM_UP steps.
        folder: folder for the run.
    """
    script, *own_options = rung.split()
    spec = importlib.util.spec_from_file_location("rung", lab.PROJECT / "chapter09" / f"{script}.py")
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


def in_parallel(jobs: int, call: Callable[[Turn], Result], turns: Iterable[Turn]) -> Iterator[tuple[Turn, Result]]:
    """Call a function for each turn, `jobs` at once, and yield the turns with their results as they end.

    After an error or Ctrl-C no further call begins.
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

    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(call_unless_stopped, turn): turn for turn in turns}
        try:
            for done in as_completed(running):
                if not isinstance(done.exception(), CancelledError):
                    yield running[done], done.result()
        finally:
            stopped.set()


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
