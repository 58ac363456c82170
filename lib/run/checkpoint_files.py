"""Names of checkpoint files, and which one a user means."""

import logging
import re
from pathlib import Path

from lib.errors import UsageError

log = logging.getLogger(__name__)

BEST, LAST = "best", "last"


def numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """List the checkpoints of a kind as (agent steps, path), oldest first. A user's copies are not listed."""
    named = ((re.fullmatch(rf"{kind}-(\d+)\.pt", file.name), file) for file in folder.iterdir())
    return sorted((int(match[1]), file) for match, file in named if match)


def set_aside_newer(folder: Path, step: int) -> None:
    """Rename the best-* checkpoints that are newer than the step at which a run is resumed.

    The resumed run saves them again when it gets there, unless it plays differently.
    """
    for saved_at, file in numbered(folder, BEST):
        if saved_at > step:
            aside = file.with_suffix(".undone")
            log.info("%s is newer than the checkpoint. It is renamed to %s.", file, aside.name)
            file.rename(aside)


def find_checkpoint(run: Path, which: str) -> Path:
    """Find a checkpoint of a run.

    Args:
        run: run folder.
        which: BEST, LAST, or an agent step.

    Raises:
        UsageError: if there is no such checkpoint. The message lists the available ones.
    """
    folder = run / "checkpoints"
    found = sorted(numbered(folder, BEST) + numbered(folder, "step")) if folder.is_dir() else []
    files = [file for _, file in found]
    if not files:
        raise UsageError(
            f"{run} has no checkpoint. If it was stopped before it learnt anything, resume it. If its checkpoints were "
            "removed, restore them, or start a new run"
        )
    if which == BEST:
        best = [file for file in files if file.name.startswith(BEST)]
        if not best:
            log.warning("%s has no best-* checkpoint, so the newest one is loaded: %s.", run.name, files[-1].name)
        return (best or files)[-1]
    if which == LAST:
        return files[-1]
    by_step = dict(found)
    if not which.isdecimal() or int(which) not in by_step:
        steps = ", ".join(map(str, by_step))
        raise UsageError(f"{run} has no checkpoint {which!r}; give {BEST}, {LAST}, or one of the steps {steps}")
    return by_step[int(which)]


def step_of(file: Path) -> int:
    """Return the agent step in a checkpoint's name."""
    return int(file.stem.partition("-")[2])
