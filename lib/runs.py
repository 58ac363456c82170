"""Run folders: everything that a person compares later is in one of them.

runs/<YYYY-MM-DDTHHMM>-<params.run_name>-<script>[-k]/
    params.json       every hyperparameter, the command line, seed, commit, versions, machine
    episodes.csv      a row an episode
    events.out.*      TensorBoard
    videos/           of episodes, where they are recorded
    checkpoints/      newest, the one before, best
    result.json       how it ended
    lock, pid         held while a process works in the folder
"""

import dataclasses
import json
import logging
import os
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import filelock
import psutil
import torch

from lib import files
from lib.errors import UsageError
from lib.forking import cores

log = logging.getLogger(__name__)

PROJECT = Path(__file__).resolve().parents[1]
DEFAULT_RUNS_DIR = PROJECT / "runs"
PACKAGES = ("torch", "pytorch-ignite", "ptan", "gymnasium", "ale-py", "tensorboard", "numpy")


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """What the common command line options say, with their defaults; see `--help` of any script.

    Attributes:
        seed: what every random generator is seeded from.
        device: where the networks live.
        stop_after: stop at this many agent steps, warm-up included; None for the game's max_steps.
        time_limit: stop after this many seconds of this process; None for no limit.
        resume: the run folder to go on with, or None for a new one.
        runs_dir: where a new run's folder is made.
        quiet: no progress bar and no line an episode.
        evaluate_every: agent steps between evaluations; None for none.
        record_every: of so many episodes one is recorded; None for none.
        game: the name of the hyperparameters in HYPERPARAMS.
        knobs: the script's own options by name; each can be read as an attribute too.
    """

    seed: int = 1
    device: torch.device = dataclasses.field(default_factory=lambda: torch.device("cpu"))
    stop_after: int | None = None
    time_limit: int | None = None
    resume: Path | None = None
    runs_dir: Path = DEFAULT_RUNS_DIR
    quiet: bool = False
    evaluate_every: int | None = None
    record_every: int | None = None
    game: str = "pong"
    knobs: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        knobs = self.__dict__.get("knobs", {})
        if name not in knobs:
            raise AttributeError(f"no option {name!r}; the script's own are {', '.join(knobs) or 'none'}")
        return knobs[name]


class Run:
    """A run folder, new or resumed, held against a second process until `close`.

    Args:
        script: the script's name, "01_baseline".
        params: the hyperparameters, a dataclass with a run_name.
        options: where the folder is made, or which one is resumed.

    Raises:
        UsageError: the folder to resume is in use by a live process.
        OSError: the folder cannot be written.
    """

    def __init__(self, script: str, params: Any, options: RunOptions):
        self.path = options.resume or _new_folder(options.runs_dir, f"{params.run_name}-{script}")
        self._options = options
        self.checkpoints = self.path / "checkpoints"
        self._lock = filelock.FileLock(self.path / "lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout as error:
            pid = self.path / "pid"
            holder = pid.read_text() if pid.exists() else "of unknown number"
            raise UsageError(f"{self.path} is in use by process {holder}; stop that one first") from error
        (self.path / "pid").write_text(str(os.getpid()))
        self.checkpoints.mkdir(exist_ok=True)
        if not options.resume:
            self.write_json("params.json", describe(script, params, options))

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder as a whole or not at all."""
        files.write(self.path / name, json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")

    def go_on(self) -> None:
        """Note in params.json that this process goes on with a run, and say in what it differs from the one before,
        whose result.json becomes a part of its session: the run has no result until it ends again."""
        recorded = read_params(self.path)
        now = session(self._options)
        result = self.path / "result.json"
        before = recorded["sessions"].pop()
        changed = [name for name in ("commit", "versions", "machine") if now[name] != before[name]]
        if changed:
            log.warning(
                "Other than before: %s. The run may not be bit for bit the uninterrupted one.", ", ".join(changed)
            )
        if result.exists():
            before |= {"result": json.loads(result.read_text())}
        self.write_json("params.json", recorded | {"sessions": [*recorded["sessions"], before, now]})
        result.unlink(missing_ok=True)

    def close(self) -> None:
        """Let others work in the folder; the lock also ends with the process, however that dies."""
        (self.path / "pid").unlink(missing_ok=True)
        self._lock.release()


def at_work(path: Path) -> bool:
    """Whether a process works in a run's folder. One that was killed leaves its number behind, which may have become
    that of a younger process since."""
    number = path / "pid"
    try:
        return psutil.Process(int(number.read_text())).create_time() <= number.stat().st_mtime
    except (OSError, ValueError, psutil.Error):
        return False


def find(name: str, runs_dir: Path) -> Path:
    """The folder of a run given by path, or by its name within runs_dir.

    Raises:
        UsageError: there is no such folder, or it is not a run.
    """
    for path in (Path(name), runs_dir / name):
        if path.is_dir():
            if not (path / "params.json").is_file():
                raise UsageError(f"{path} is not a run: it has no params.json; give a folder that a script made")
            return path.resolve()
    raise UsageError(f"there is no run {name!r}, neither as a path nor in {runs_dir}")


def read_params(path: Path) -> dict[str, Any]:
    """The content of a run's params.json.

    Raises:
        UsageError: it cannot be understood.
    """
    try:
        content = json.loads((path / "params.json").read_text())
        missing = {"script", "hyperparameters", "seed", "game", "knobs", "sessions"} - set(content)
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path / 'params.json'} cannot be read: {error}") from error
    if not missing and not (isinstance(content["seed"], int) and isinstance(content["hyperparameters"], dict)):
        raise UsageError(f"{path / 'params.json'} has a seed or hyperparameters of another type; it was changed")
    if missing:
        raise UsageError(f"{path / 'params.json'} lacks {', '.join(sorted(missing))}; it is not one of ours")
    return content


def describe(script: str, params: Any, options: RunOptions) -> dict[str, Any]:
    """What params.json holds: enough to run the same thing again, and to know why another machine differs."""
    return {
        "script": script,
        "game": options.game,
        "seed": options.seed,
        "hyperparameters": dataclasses.asdict(params),
        "knobs": options.knobs,
        "sessions": [session(options)],
    }


def session(options: RunOptions) -> dict[str, Any]:
    """By what, when and where this process works on a run; a resumed run has one of these for each process."""
    return {
        "argv": sys.argv,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": commit(),
        "versions": versions(),
        "machine": machine(options.device),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def commit() -> str | None:
    """The project's commit, "+" behind it where more than documents and results differs; None where git is none."""
    git = ["git", "-C", str(PROJECT)]
    code = ["--", ".", *(f":(exclude){path}" for path in ("docs", "README.md", "benchmarks/results"))]
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        status = subprocess.run([*git, "status", "--porcelain", *code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+" if status.stdout else "")


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the speed depends on: processor, cores, memory, accelerator, threads."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        if cpuinfo.exists()
        else []
    )
    return {
        "system": platform.platform(),
        "processor": names[0] if names else platform.processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
    }


def _new_folder(runs_dir: Path, name: str) -> Path:
    stem = f"{datetime.now():%Y-%m-%dT%H%M}-{name}"
    runs_dir.mkdir(parents=True, exist_ok=True)
    for k in range(1, 10_000):
        path = runs_dir / (stem if k == 1 else f"{stem}-{k}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path.resolve()
    raise UsageError(f"{runs_dir} holds 10,000 runs named {stem}; use another --runs-dir")
