"""Run folders: everything that is recorded about a run. See docs/running.md for the files."""

import hashlib
import itertools
import json
import logging
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import nn

from lib.envs.single_env import SPACES, EnvId
from lib.errors import UsageError
from lib.system import files, machine

log = logging.getLogger(__name__)

Json = dict[str, Any]  # content of a JSON file
FORMAT = 2  # of run folders and models; one more whenever older ones can no longer be read
PACKAGES = ("torch", "pytorch-ignite", "ptan", "gymnasium", "ale-py", "tensorboard", "numpy")
CODE = ("lib", "chapter08", "chapter09", "distributed", "tools", "benchmarks", "examples")  # folders of Python files


class RunFolder:
    """A run folder, which exists. It is locked until `close`; a lock of another process is a UsageError."""

    flush: Callable[[], object] = staticmethod(lambda: None)  # writes buffered data to the files that only grow

    def __init__(self, path: Path):
        self.path, self.checkpoints = path, path / "checkpoints"
        self.result = path / "result.json"  # which does not exist while the run is learning
        lock = path / "lock"
        self._lock = FileLock(lock, timeout=1, thread_local=False)  # a tool may look for a moment
        try:
            self._lock.acquire()
        except Timeout as error:
            raise UsageError(f"{path} is in use by process {lock.read_text()}; stop that process first") from error
        lock.write_text(str(os.getpid()))
        self.checkpoints.mkdir(exist_ok=True)

    def add_session(self, device: torch.device, knobs: Json) -> None:
        """Record the process that resumes the run, with its options, and remove unfinished files of those before it."""
        for leftover in (*self.path.rglob(".*.tmp"), *self.path.glob("videos/episode*.part.webm")):
            leftover.unlink()
        recorded, current = read_params(self.path), session(device)
        last = recorded["sessions"][-1]
        if last["commit"] != current["commit"]:
            text = "The code has changed: its commit was %s, and is %s. The run may differ from an uninterrupted one."
            log.warning(text, last["commit"], current["commit"])
        recorded |= {"knobs": recorded["knobs"] | knobs, "sessions": [*recorded["sessions"], current]}
        write_json(self.path / "params.json", recorded)

    def state_dict(self) -> dict[str, int]:
        """Return the sizes of the files that only grow, episodes.csv and TensorBoard's event files."""
        self.flush()
        for path in self._growing():
            with path.open("rb+") as file:
                files.sync(file)  # these files must reach the disk before the checkpoint does
        return {path.name: path.stat().st_size for path in self._growing()}

    def load_state_dict(self, sizes: dict[str, int]) -> None:
        """Truncate files to their sizes, and remove others, so that a resumed run writes no part of a file twice."""
        for path in self._growing():
            if path.name not in sizes:
                path.unlink()
            elif path.stat().st_size > sizes[path.name]:
                os.truncate(path, sizes[path.name])

    def _growing(self) -> list[Path]:
        return sorted([*self.path.glob("episodes.csv"), *self.path.glob("events.out.tfevents.*")])

    def close(self) -> None:
        self._lock.release()


def new_folder(runs_dir: Path, name: str) -> Path:
    """Create the folder of a new run; `name` follows the time in its name. A number follows if the folder exists."""
    path = stem = runs_dir / f"{datetime.now():%Y-%m-%dT%H%M}-{name.replace(os.sep, '-')}"
    runs_dir.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count(2)
    while True:
        with suppress(FileExistsError):
            path.mkdir()
            return path.resolve()
        path = stem.with_name(f"{stem.name}-{next(numbers)}")


def in_use(run: Path) -> bool:
    """Return whether a process works on the run in this folder, which it has locked."""
    if not (run / "lock").exists():
        return False
    try:
        with FileLock(run / "lock", timeout=0, thread_local=False):
            return False
    except Timeout:
        return True


def find(name: str, runs_dir: Path) -> Path:
    """Return the folder of a run, given by its path, also from the project's folder, or by its name in runs_dir.

    "last" is the run in runs_dir that was started or resumed last.
    """
    path = next((path for path in places(name, runs_dir) if path.is_dir()), None)
    if path is None:
        raise UsageError(f"there is no run folder {name!r}, neither as a path nor in {runs_dir}")
    if not (path / "params.json").is_file():
        raise UsageError(f"{path} is not a run: it has no params.json; give a folder that a script created")
    return path.resolve()


def places(name: str, runs_dir: Path) -> tuple[Path, ...]:
    """Return the paths that a run's name may stand for, in the order in which they are tried."""
    started = sorted(runs_dir.glob("*/params.json"), key=lambda file: file.stat().st_mtime) if name == "last" else []
    return Path(name), runs_dir / name, files.PROJECT / name, *(file.parent for file in started[-1:])


def trusted_id(run: Path, env_id: str, given: str | None) -> str:
    """Return the recorded id of a run's environment, with the module that the user names in `given`, if any.

    Importing a module runs its code, so an id with a module is refused unless the user names the module, too.
    """
    recorded, requested = EnvId.of(env_id), EnvId.of(given or env_id)
    option = f"--env-id {shlex.quote(env_id)}"
    if given is None and recorded.module:
        raise UsageError(
            f"{run} plays {env_id}, and importing {recorded.module} runs its code. If you trust it, add {option}"
        )
    if requested.name != recorded.name or requested.arguments not in ({}, recorded.arguments):
        raise UsageError(f"{run} plays {env_id}, not {given}; give {option}, or another run")
    return str(recorded._replace(module=requested.module))


def read_params(run: Path) -> Json:
    """Read a run's params.json. A run of another format is refused."""
    content = read_json(run / "params.json")
    if content.get("format") != FORMAT:
        raise UsageError(
            f"{run} was written by another version of this project: its format is {content.get('format')!r}, and this "
            f"version reads format {FORMAT}. Use that version, or give another run"
        )
    return content


def require_spaces(run: Path, env_id: str) -> None:
    """Refuse an environment, made in this process, whose spaces differ from those with which the run was trained."""
    made = SPACES.get(env_id, {})
    for kind, space in read_params(run).get("spaces", {}).items():
        if made.get(kind, space) != space:
            raise UsageError(
                f"{run} was trained with the {kind} space {space}, and that of {env_id} is {made[kind]} now. Restore "
                "the environment, or start a new run"
            )


def read_json(file: Path) -> Json:
    """Read a JSON object. A file that does not exist holds an empty one; a damaged one raises UsageError."""
    try:
        content: Json = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise UsageError(f"{file} cannot be read: {error}. Restore it") from error
    return content


def write_json(file: Path, content: Mapping[str, object]) -> None:
    """Write a JSON object atomically. Values that are not plain are written as text."""
    files.write(file, json.dumps(content, indent=2, default=str, allow_nan=False) + "\n")


def describe_network(net: nn.Module) -> dict[str, object]:
    """Return what builds a network: {"class": "module:Name", "options": {...}} for a class of lib.

    For another class, it is {"builder": "FILE.py:NAME"}.
    """
    kind = type(getattr(net, "_orig_mod", net))  # torch.compile wraps the network
    if kind.__module__.startswith("lib."):
        return {"class": f"{kind.__module__}:{kind.__name__}", "options": net.options}
    file = getattr(sys.modules[kind.__module__], "__file__", sys.argv[0])  # a cell of a notebook is no file
    return {"builder": f"{os.path.abspath(file)}:{kind.__name__}"}


def session(device: torch.device) -> dict[str, object]:
    """Describe this process: command line, start time, code and machine. A resumed run has several sessions."""
    return {
        "argv": sys.argv,
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "commit": current_commit(),
        "versions": versions(),
        "machine": machine.machine(device),
    }


def versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: metadata.version(name) for name in PACKAGES}


def current_commit() -> str | None:
    """Return the project's commit, or None without git, or if this folder is not in a git repository.

    If files of the code or the versions of its packages differ from the commit, "+" and a digest of the differences
    follow. New files are ignored.
    """
    paths = [*(f"{folder}/*.py" for folder in CODE), "setup.cfg", "requirements.lock"]
    try:
        head = _git("rev-parse", "HEAD").decode().strip()
        differences = _git("diff", "--no-ext-diff", "HEAD", "--", *paths)
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+{hashlib.sha1(differences).hexdigest()[:8]}" if differences else head


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", "-C", str(files.PROJECT), *arguments], capture_output=True, check=True).stdout
