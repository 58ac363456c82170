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
    lock, pid         locked file, and the id of the process that works on the run
"""

import atexit
import contextlib
import fcntl
import logging
import os
import re
import shutil
import time
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from lib.errors import UsageError
from lib.hyperparameters import RunParameters
from lib.run import provenance, run_checks, run_json
from lib.run.checkpoint_files import BEST, numbered
from lib.run.options import RunOptions
from lib.system import files
from lib.system.console_log import quoted

log = logging.getLogger(__name__)

_held: set[str] = set()  # folders that this process has locked
LONGEST_NAME = 220  # bytes of a run folder's name after the time; file systems allow 255 in all


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
            the folder is not valid UTF-8 or has control characters.
        OSError: if the folder cannot be written.
    """

    def __init__(self, script: str, params: RunParameters, options: RunOptions, net: object = None):
        run_checks.require_printable(options.resume or options.runs_dir)
        if options.resume:
            refuse_model(options.resume)  # before the folder is locked, which would add a file to it
        self.path = options.resume or _new_folder(options.runs_dir, f"{params.run_name}-{script}{options.changes}")
        self._options = options
        self.checkpoints = self.path / "checkpoints"
        self._locks: list[int] = []  # open descriptors
        try:
            with files.named(self.path):
                self._begin(script, params, net)
        except BaseException:
            if options.resume:
                self.close()
            else:
                self.discard()
            raise

    def _begin(self, script: str, params: RunParameters, net: object) -> None:
        self.checkpoints.mkdir(exist_ok=True)
        self.take()
        atexit.register(_remove_own_pid, self.path / "pid")  # in case the run ends before `close`
        remove_leftovers(self.path)
        if not self._options.resume:
            self.write_json("params.json", provenance.describe(script, params, self._options, net))

    def take(self) -> None:
        """Lock the folder, unless this process has locked it before.

        Raises:
            UsageError: if another process works on the run.
        """
        if not self._locks:
            self._lock()
            _held.add(os.path.realpath(self.path))
            (self.path / "pid").write_text(str(os.getpid()))

    def _lock(self) -> None:
        """Lock the file, which other machines see, and the folder of checkpoints, because the file may be deleted."""
        self._locks.append(os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666))
        self._locks.append(os.open(self.checkpoints, os.O_RDONLY))
        for _ in range(4):  # a tool that looks whether the run is in use locks both for a moment
            locked = [_try_lock(descriptor, fcntl.LOCK_EX) for descriptor in self._locks]
            if False not in locked:
                break
            time.sleep(0.1)
        else:
            self._release()
            raise self._in_use()
        if locked[0] is None:  # the folder may be locked nevertheless, but only on this machine
            log.warning(
                "The file system of %s has no locks for files. If a process of another machine resumes this run "
                "meanwhile, it is not refused.",
                self.path,
            )

    def _release(self) -> None:
        """Close the descriptors, which releases the locks. The operating system does so, too, when the process dies."""
        while self._locks:
            os.close(self._locks.pop())

    def _in_use(self) -> UsageError:
        if os.path.realpath(self.path) in _held:
            return UsageError(
                f"{self.path} is in use by this process; run the engine that was set up for it, or call close() on "
                "what setup_ignite returned"
            )
        pid = self.path / "pid"
        number = pid.read_bytes()[:20] if pid.exists() else b""
        holder = f"process {number.decode()}" if number.isdigit() else "another process, whose id is unknown"
        if number.isdigit() and (int(number) == os.getpid() or not psutil.pid_exists(int(number))):
            holder += " of another machine or container"
        return UsageError(f"{self.path} is in use by {holder}; stop that process first")

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write a file of the folder atomically, with a digest of its content."""
        run_json.write_json(self.path / name, content)

    def add_session(self) -> None:
        """Add this process to the sessions of a resumed run, and log what changed since the last one.

        The result of the last session is copied into params.json, because `discard_result` removes the file.
        """
        recorded = run_json.read_params(self.path)
        current = provenance.session(self._options)
        last = recorded["sessions"].pop()
        # Earlier versions recorded less about the machine.
        machine = {name: value for name, value in current["machine"].items() if name in last["machine"]}
        compared = current | {"machine": machine}
        changed = [name for name in ("commit", "versions", "machine") if compared[name] != last[name]]
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
        return run_json.read_json(file, run_json.RESULT) if file.exists() else {}

    def discard_result(self) -> None:
        """Remove result.json, because a run that learns has no result yet."""
        (self.path / "result.json").unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the folder, and release the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        with contextlib.suppress(OSError):  # on a disk that has become read-only
            self.close()

    def close(self) -> None:
        """Release the locks."""
        if self._locks:  # otherwise the file may be that of another Run in this process
            _held.discard(os.path.realpath(self.path))
            _remove_own_pid(self.path / "pid")
        self._release()


def refuse_model(run: Path) -> None:
    """Refuse to resume a published model.

    Raises:
        UsageError: if the folder is one.
    """
    checkpoints = run / "checkpoints"
    is_run = (run / "episodes.csv").exists()  # perhaps killed between its first best-* and its first step-*
    if checkpoints.exists() and numbered(checkpoints, BEST) and not numbered(checkpoints, "step") and not is_run:
        raise UsageError(
            f"{run} is a published model, which cannot be resumed. Start a new run from its network with --init "
            f"{quoted(str(run))}"
        )


def _remove_own_pid(file: Path) -> None:
    with contextlib.suppress(OSError):
        if file.read_bytes() == str(os.getpid()).encode():
            file.unlink()


def tidy(path: Path) -> None:
    """Remove unfinished files of killed processes from a run folder, unless the run is in use."""
    if not in_use(path):
        remove_leftovers(path)


def remove_leftovers(path: Path) -> None:
    """Remove unfinished files of killed processes from a run folder."""
    for leftover in (*path.glob(".*.tmp"), *(path / "videos").glob("*.part.webm")):
        match = re.search(r"\.(\d+)(\.tmp|\.part\.webm)$", leftover.name)
        # No file is being written by this process, but in containers every run may have the same id.
        is_same_id = match is not None and match[2] == ".tmp" and int(match[1]) == os.getpid()
        if match is None or is_same_id or not psutil.pid_exists(int(match[1])):
            leftover.unlink(missing_ok=True)


def in_use(path: Path) -> bool:
    """Return whether a process works on the run in this folder, which it has locked."""
    return any(_is_locked(path / name) for name in ("lock", "checkpoints"))


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return _try_lock(descriptor, fcntl.LOCK_SH) is False
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, kind: int) -> bool | None:
    """Try to lock an open file or folder. Return whether it worked; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return None
    return True


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
