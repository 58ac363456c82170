"""Run folders: everything that is recorded about a run.

runs/<YYYY-MM-DDTHHMM>-<params.run_name>-<script>[=<value>][-<change>...][-seed<N>][-<k>]/
    params.json       hyperparameters, command line, seed, commit, versions, machine
    episodes.csv      one row per episode
    events.out.*      TensorBoard
    videos/           recorded episodes, if any
    checkpoints/      the newest, the one before it, and the best
    files.json        sizes and digests of the files that grow, as of the last checkpoint
    result.json       how the run ended
    curve.png         learning curve, drawn at the end
    lock, pid         file lock, and the id of the process that works on the run
"""

import atexit
import contextlib
import fcntl
import hashlib
import json
import logging
import math
import os
import re
import shutil
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import NoneType
from typing import Any

import filelock
import psutil

from lib.envs.single_env import module_of
from lib.errors import UsageError
from lib.hyperparameters import RunParameters
from lib.run import provenance
from lib.run.checkpoint_files import BEST, numbered
from lib.run.growing_files import SAVED
from lib.run.options import RunOptions
from lib.system import files
from lib.system.console_log import quoted
from lib.system.forks import in_forked_children
from lib.system.shapes import NUMBER, TEXT, Each, misfits

log = logging.getLogger(__name__)

FILE_NAMES = {"params.json", "episodes.csv", "files.json", "result.json", "evaluation.json", "curve.png", "lock", "pid"}

LARGEST_JSON = 100 * 10**6  # bytes
LONGEST_NAME = 220  # bytes of a run folder's name after the time; file systems allow 255 in all
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
CONTROL_IN_TEXT = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and newline

SUFFIXES = (".pt", ".sha256", ".webm", ".png", ".html")  # of the other files in a run folder
FOLDER_NAMES = ("checkpoints", "videos")

DIGEST = "sha256"  # entry of a JSON file with the digest of the others

SESSION = ("commit", "versions", "machine")  # required entries of a session in params.json

FILES = {"files": Each({"size": (int,), "sha256": (str, NoneType)})}  # shape of files.json

EVALUATION = {"mean": NUMBER}  # shape of evaluation.json

# Shape of params.json, all of whose entries are required, and of result.json.
PARAMS = {
    "script": TEXT,
    "game": TEXT,
    "seed": (int,),
    "hyperparameters": {"env_name": TEXT, "run_name": TEXT, "stop_reward": (*NUMBER, NoneType)},
    "knobs": {},
    "sessions": [
        {
            "argv": [TEXT],
            "started": TEXT,
            "commit": (str, NoneType),
            "versions": Each(TEXT),
            "machine": Each((*NUMBER, str)),
        }
    ],
}
# Shape of a further entry of params.json, which runs of earlier versions and runs without checkpoints lack.
NETWORK = {"network": {"class": TEXT, "layers": Each(TEXT), "builder": (str, NoneType)}}
RESULT = {
    "stopped": TEXT,
    "steps": (int,),
    "iterations": (int,),
    "episodes": (int,),
    "mean_100": (*NUMBER, NoneType),
    "best_mean": (*NUMBER, NoneType),
    "reached": Each(Each(NUMBER)),
    "seconds": NUMBER,
    "this_process": {
        "seconds": NUMBER,
        "training_steps": (int,),
        "training_seconds": NUMBER,
        "warm_up_steps_per_second": (*NUMBER, NoneType),
        "steps_per_second": (*NUMBER, NoneType),
        "last_1000_steps_per_second": (*NUMBER, NoneType),
        "parts": Each(NUMBER),
    },
    "evaluation": EVALUATION,
    "files": Each(SAVED),
}


class Run:
    """A new or resumed run folder, locked against other processes until `close`.

    Args:
        script: name of the script, such as "01_baseline".
        params: hyperparameters.
        options: options, among them the parent folder of a new run or the folder to resume.
        net: network that checkpoints hold, or None. A new run records its classes.

    Attributes:
        path: the run folder.
        checkpoints: its folder of checkpoints.

    Raises:
        UsageError: if another process works on the run to resume, if that run is a published model, or if the path of
            the folder is not valid UTF-8.
        OSError: if the folder cannot be written.
    """

    def __init__(self, script: str, params: RunParameters, options: RunOptions, net: object = None):
        require_utf8(options.resume or options.runs_dir)
        if options.resume:
            _refuse_model(options.resume)  # before the folder is locked, which would add a file to it
        self.path = options.resume or _new_folder(options.runs_dir, f"{params.run_name}-{script}{options.changes}")
        self._options = options
        self.checkpoints = self.path / "checkpoints"
        self._lock = filelock.FileLock(self.path / "lock")
        self._folder_lock: int | None = None
        try:
            with files.named(self.path):
                self._begin(script, params, net)
        except OSError:
            if not options.resume:
                self.discard()
            raise

    def _begin(self, script: str, params: RunParameters, net: object) -> None:
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout as error:
            raise self._in_use() from error
        self.checkpoints.mkdir(exist_ok=True)
        self._folder_lock = self._lock_folder()
        in_forked_children(self, Run._leave)
        (self.path / "pid").write_text(str(os.getpid()))
        atexit.register(_remove_own_pid, self.path / "pid")  # in case the run ends before `close`
        remove_leftovers(self.path)
        if not self._options.resume:
            self.write_json("params.json", provenance.describe(script, params, self._options, net))

    def _lock_folder(self) -> int:
        """Lock the folder of checkpoints as well, because a lock file that was deleted locks nothing."""
        descriptor = os.open(self.checkpoints, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            self._lock.release()
            raise self._in_use() from error
        return descriptor

    def _in_use(self) -> UsageError:
        pid = self.path / "pid"
        number = pid.read_bytes()[:20] if pid.exists() else b""
        holder = f"process {number.decode()}" if number.isdigit() else "another process, whose id is unknown"
        return UsageError(f"{self.path} is in use by {holder}; stop that process first")

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder atomically, with a digest of its content."""
        write_json(self.path / name, content)

    def add_session(self) -> None:
        """Add this process to the sessions of a resumed run, and log what changed since the last one.

        The result of the last session is copied into params.json, because `discard_result` removes the file.
        """
        recorded = read_params(self.path)
        current = provenance.session(self._options)
        last = recorded["sessions"].pop()
        changed = [name for name in ("commit", "versions", "machine") if current[name] != last[name]]
        if changed:
            log.warning(
                "Changed since the last session: %s. The resumed run may differ from an uninterrupted one.",
                ", ".join(changed),
            )
        result = self.read_result()
        if result and all(session.get("result") != result for session in recorded["sessions"]):
            last |= {"result": result}
        self.write_json("params.json", recorded | {"sessions": [*recorded["sessions"], last, current]})
        if result.pop("files", None) is not None:  # they are about to be truncated to the checkpoint
            self.write_json("result.json", result)

    def read_result(self) -> dict[str, Any]:
        """Read result.json. The result is empty if there is no file."""
        file = self.path / "result.json"
        return read_json(file, RESULT) if file.exists() else {}

    def discard_result(self) -> None:
        """Remove result.json, because a run that learns has no result yet."""
        (self.path / "result.json").unlink(missing_ok=True)

    def _leave(self) -> None:
        """Close the locks in a forked child, so that it does not hold them after the run has died."""
        for descriptor in (self._folder_lock, self._lock._context.lock_file_fd):
            if descriptor is not None:
                os.close(descriptor)

    def discard(self) -> None:
        """Remove the folder, and release the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # on a disk that has become read-only
            self.close()

    def close(self) -> None:
        """Release the lock. The operating system releases it, too, when the process dies."""
        _remove_own_pid(self.path / "pid")
        if self._folder_lock is not None:
            os.close(self._folder_lock)
            self._folder_lock = None
        self._lock.release()


def _refuse_model(run: Path) -> None:
    checkpoints = run / "checkpoints"
    if checkpoints.exists() and numbered(checkpoints, BEST) and not numbered(checkpoints, "step"):
        raise UsageError(
            f"{run} is a published model, or has lost its step-* checkpoints, so it cannot be resumed; start a new run "
            f"from its network with --init {quoted(str(run))}"
        )


def _remove_own_pid(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.read_bytes() == str(os.getpid()).encode():
            file.unlink()


def require_utf8(path: Path) -> None:
    """Refuse a path that TensorBoard and the tools cannot print.

    Raises:
        UsageError: if it is not valid UTF-8.
    """
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        text = os.fsencode(path).decode(errors="backslashreplace")
        raise UsageError(
            f"the folder {text} is not valid UTF-8 here, so TensorBoard and the tools cannot use it; rename it, give "
            "another --runs-dir, or set PYTHONUTF8=1 if your terminal shows the name correctly"
        ) from error


def tidy(path: Path) -> None:
    """Remove unfinished files of killed processes from a run folder, unless the run is in use."""
    if not in_use(path):
        remove_leftovers(path)


def remove_leftovers(path: Path) -> None:
    """Remove unfinished files of killed processes from a run folder."""
    for leftover in (*path.glob(".*.tmp"), *(path / "videos").glob("*.part.webm")):
        match = re.search(r"\.(\d+)(\.tmp|\.part\.webm)$", leftover.name)
        if match is None or not psutil.pid_exists(int(match[1])):
            leftover.unlink(missing_ok=True)


def in_use(path: Path) -> bool:
    """Return whether a process works on the run in this folder, which it has locked."""
    try:
        descriptor = os.open(path / "checkpoints", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # the file system has no locks
        return False
    finally:
        os.close(descriptor)
    return False


def find(name: str, runs_dir: Path) -> Path:
    """Return the folder of a run, given by its path or by its name in runs_dir.

    A path may also begin in the project's folder, such as models/pong.

    Raises:
        UsageError: if the folder does not exist or is not a run.
    """
    for path in (Path(name), runs_dir / name, files.PROJECT / name):
        if path.is_dir():
            require_no_control_characters(path.resolve())
            if not (path / "params.json").is_file():
                raise UsageError(f"{path} is not a run: it has no params.json; give a folder that a script created")
            _require_plain_files(path)
            return path.resolve()
    raise UsageError(f"there is no run {name!r}, neither as a path nor in {runs_dir}")


def require_no_control_characters(path: Path) -> None:
    """Refuse a path with control characters, because a terminal would obey them.

    Raises:
        UsageError: if there is a control character in it.
    """
    if CONTROL.search(str(path)):
        raise UsageError(f"{str(path)!r} contains control characters; rename it")


def _require_plain_files(path: Path) -> None:
    """Refuse a run folder with a pipe, socket or device, from which reading could wait forever, or a symbolic link.

    A link in somebody else's run could put a private file into a report.

    Raises:
        UsageError: if there is one.
    """
    for entry in path.rglob("*"):
        if entry.is_symlink():
            require_no_control_characters(entry)
            raise UsageError(
                f"{entry} is a symbolic link, and runs with links are not read; replace it by a copy of "
                f"{os.readlink(entry)}"
            )
        is_folder = entry.name in FOLDER_NAMES and entry.parent == path
        is_file = entry.name in FILE_NAMES or entry.suffix in SUFFIXES or entry.name.startswith("events.out.")
        if entry.is_dir() and is_file:
            raise UsageError(f"{entry} is a folder, where a file is expected; remove it")
        if entry.is_file() and is_folder:
            raise UsageError(f"{entry} is a file, where a folder is expected; remove it")
        if entry.exists() and not entry.is_file() and not entry.is_dir():
            raise UsageError(f"{entry} is neither a file nor a folder; remove it")


def read_params(path: Path) -> dict[str, Any]:
    """Read a run's params.json.

    Raises:
        UsageError: if the file cannot be read, or an entry is missing or has the wrong type.
    """
    file = path / "params.json"
    content = read_json(file, PARAMS | NETWORK)
    missing = sorted(set(PARAMS) - set(content))
    if missing:
        raise UsageError(f"{file} lacks {', '.join(missing)}; it was not written by this project")
    lacking = sorted(set(NETWORK["network"]) - set(content.get("network", NETWORK["network"])))
    if lacking:
        raise UsageError(f"{file} lacks {', '.join(lacking)} of its network; restore it, or start a new run")
    if not content["sessions"] or any(not set(SESSION) <= set(session) for session in content["sessions"]):
        raise UsageError(f"{file} lacks sessions with {', '.join(SESSION)}; restore it, or start a new run")
    return content


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with a digest of its content that `read_json` verifies.

    Bytes of a path that are not UTF-8 are written as "?", and control characters as escapes.
    """
    text = json.dumps(content, default=str, allow_nan=False, ensure_ascii=False)
    plain = _escaped(json.loads(text.encode(errors="replace")))
    files.write(file, json.dumps(plain | {DIGEST: _digest(plain)}, indent=2) + "\n")


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return number


def _whole(text: str) -> int:
    if abs(number := int(text)) >= 2**63:
        raise ValueError(f"{text[:20]}... is too large")
    return number


def read_json(file: Path, shape: Any) -> dict[str, Any]:
    """Read a JSON object of a run folder, and verify its digest. The first runs have none, and can still be played.

    Args:
        file: path of the file.
        shape: PARAMS, RESULT, or another shape; see lib.system.shapes.

    Raises:
        UsageError: if the file is damaged or was written by another version.
        OSError: if it cannot be read.
    """
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise ValueError(f"it is larger than {LARGEST_JSON / 1e6:.0f} MB")
        content = json.loads(
            file.read_text(encoding="utf-8"), parse_float=_finite, parse_constant=_finite, parse_int=_whole
        )
        json.dumps(content, ensure_ascii=False).encode()  # UnicodeEncodeError is a ValueError
        if _escaped(content) != content:
            raise ValueError("it contains control characters")
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read: {error}. {_advice(file)}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{file} does not hold a JSON object; it was not written by this version of the project")
    digest = content.pop(DIGEST, None)
    if digest is not None and digest != _digest(content):
        raise UsageError(f"{file} was changed after it was written. {_advice(file)}")
    wrong = sorted(misfits(content, shape))
    if wrong:
        raise UsageError(
            f"{file}: wrong type of {', '.join(wrong)}; it was edited, or another version wrote it. {_advice(file)}"
        )
    return content


def _escaped(content: Any) -> Any:
    r"""Return the content of a JSON file with control characters replaced by escapes such as \x1b."""
    if isinstance(content, str):
        return CONTROL_IN_TEXT.sub(lambda match: f"\\x{ord(match[0]):02x}", content)
    if isinstance(content, dict):
        return {_escaped(name): _escaped(value) for name, value in content.items()}
    return [_escaped(each) for each in content] if isinstance(content, list) else content


def _advice(file: Path) -> str:
    return "Restore it" if file.name == "params.json" else "Restore it, or delete it; the rest of the run is kept"


def resume_options(path: Path) -> str:
    """Return the options that resume a run, as a shell reads them."""
    module = module_of(str(read_params(path)["hyperparameters"].get("env_name")))
    return f"--resume {quoted(str(path))}" + (f" --env-module {quoted(module)}" if module else "")


def require_trust(path: Path, env_id: str, module: str | None) -> None:
    """Refuse to import a module that a run names and the user does not, because importing it runs its code.

    Args:
        path: run folder.
        env_id: gymnasium id in the run's params.json.
        module: module that the user names with --env-module, or None.

    Raises:
        UsageError: if the id names another module.
    """
    named = module_of(env_id)
    if named and named != module:
        raise UsageError(
            f"{path} needs the module {named!r}, and importing it runs its code. If you trust it, "
            f"add --env-module {quoted(named)}"
        )


def require_no_hard_links(path: Path) -> None:
    """Refuse a run folder with hard links, through which a file elsewhere would be overwritten. See `find`, too.

    Raises:
        UsageError: if there is one.
    """
    for entry in path.rglob("*"):
        if entry.is_file() and entry.stat().st_nlink > 1:
            raise UsageError(
                f"{entry} has a second hard link, so writing would change another file; replace it with a copy"
            )


def _new_folder(runs_dir: Path, name: str) -> Path:
    cut = name.replace(os.sep, "-").encode()[:LONGEST_NAME].decode(errors="ignore")
    stem = f"{datetime.now():%Y-%m-%dT%H%M}-{cut}"
    runs_dir.mkdir(parents=True, exist_ok=True)
    for k in range(1, 10_000):
        path = runs_dir / (stem if k == 1 else f"{stem}-{k}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path.resolve()
    raise UsageError(f"{runs_dir} holds 10,000 runs named {stem}; use another --runs-dir")
