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

import json
import logging
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import filelock
import psutil

from lib.errors import UsageError
from lib.run import provenance
from lib.run.options import RunOptions
from lib.system import files

log = logging.getLogger(__name__)


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
            self.write_json("params.json", provenance.describe(script, params, options))

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder as a whole or not at all."""
        files.write(self.path / name, json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")

    def go_on(self) -> None:
        """Note in params.json that this process goes on with a run, and say in what it differs from the one before,
        whose result.json becomes a part of its session: the run has no result until it ends again."""
        recorded = read_params(self.path)
        now = provenance.session(self._options)
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
