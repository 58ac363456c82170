"""Find a run, and refuse a folder that is unsafe to read or to write, such as somebody else's run with a link."""

import os
import re
from pathlib import Path

from lib.envs.single_env import module_of
from lib.errors import UsageError
from lib.system import files
from lib.system.console_log import quoted

# Characters that change how a terminal shows a line: controls, line separators, and marks of a text's direction.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

# Names of the files and folders in a run folder, and suffixes of its other files; see run_folder.
FILE_NAMES = {"params.json", "episodes.csv", "files.json", "result.json", "evaluation.json", "curve.png", "lock", "pid"}
SUFFIXES = (".pt", ".sha256", ".webm", ".png", ".html")
FOLDER_NAMES = ("checkpoints", "videos")


def find(name: str, runs_dir: Path) -> Path:
    """Return the folder of a run, given by its path or by its name in runs_dir.

    A path may also begin in the project's folder, such as models/pong.

    Raises:
        UsageError: if the folder does not exist or is not a run. For a file in a run, the message names the run.
    """
    for path in places(name, runs_dir):
        if path.is_dir():
            require_no_control_characters(path.resolve())
            if not (path / "params.json").is_file():
                raise UsageError(f"{path} is not a run: it has no params.json; give a folder that a script created")
            _require_plain_files(path)
            return path.resolve()
    for path in places(name, runs_dir):
        if path.is_file():
            require_no_control_characters(path.resolve())
            run = next((folder for folder in path.resolve().parents if (folder / "params.json").is_file()), None)
            raise UsageError(
                f"{path} is a file, " + (f"so give the folder of its run, {run}" if run else "not a run folder")
            )
    raise UsageError(f"there is no run {name!r}, neither as a path nor in {runs_dir}")


def places(name: str, runs_dir: Path) -> tuple[Path, ...]:
    """Return the paths that a run's name may stand for, in the order in which they are tried."""
    return Path(name), runs_dir / name, files.PROJECT / name


def _require_utf8(path: Path) -> None:
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


def require_printable(path: Path) -> None:
    """Refuse a path that is not valid UTF-8 or has control characters.

    Raises:
        UsageError: if it is such a path.
    """
    _require_utf8(path)
    require_no_control_characters(path)


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
