"""Checkpoints: whole or not there, verified when read, never code, and enough to go on bit for bit.

A checkpoint is `checkpoints/<kind>-<agent steps>.pt`, beside it its SHA-256 in the form that `sha256sum -c` reads.
`step-*` can be resumed from: the newest and the one before are kept. `best-*` holds the networks of the best
mean return so far, to be played and evaluated.
"""

import hashlib
import logging
import pickle
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from ignite.handlers.checkpoint import BaseSaveHandler

from lib.errors import Fault
from lib.run.events import EpisodeEvents
from lib.run.stopping import NOT_FINITE, Stopper
from lib.system import files

log = logging.getLogger(__name__)


# What a checkpoint for playing and evaluating holds; all the rest is for resuming.
PLAYABLE = ("net", "target", "iteration")


class VerifiedSaver(BaseSaveHandler):
    """Save handler for ignite's Checkpoint: temporary file, fsync, digest, rename; old ones go last.

    Args:
        folder: where checkpoints are written; what an interrupted write left there is removed.

    Raises:
        Fault: on saving, the disk refused it or the weights are not finite; what was saved before is untouched.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._outdated: list[str] = []
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()
        for digest in folder.glob("*.pt.sha256"):
            if not digest.with_suffix("").exists():
                digest.unlink()

    def __call__(self, checkpoint: Mapping, filename: str, metadata: Mapping | None = None) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in checkpoint["net"].values()):
            raise Fault(f"the network's weights are not finite, so {filename} was not saved; use the one before")
        temporary = self.folder / f"{filename}.tmp"
        try:
            with temporary.open("wb") as file:
                torch.save(dict(checkpoint), file)
                files.sync(file)
            files.write(_digest_path(self.folder / filename), f"{_digest(temporary)}  {filename}\n")
            temporary.replace(self.folder / filename)
            files.sync_folder(self.folder)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            free = shutil.disk_usage(self.folder).free
            temporary.unlink(missing_ok=True)
            advice = "What was saved before is kept; make room and go on with --resume"
            if not numbered(self.folder, "step"):
                advice = "Nothing was saved before; make room and start a new run"
            raise Fault(
                f"{self.folder / filename} could not be saved: {_first_line(error)} ({free / 1e6:.0f} MB were free). "
                f"{advice}"
            ) from error
        for outdated in self._outdated:
            if outdated != filename:
                (self.folder / outdated).unlink(missing_ok=True)
                _digest_path(self.folder / outdated).unlink(missing_ok=True)
        self._outdated.clear()

    def remove(self, filename: str) -> None:
        """Called by ignite before it saves; the file goes only once its successor is safely there."""
        self._outdated.append(filename)


class Iteration:
    """The engine's iteration as an object with a state_dict; ignite's own also wants a length, and we have none."""

    def __init__(self, engine: Engine):
        self.engine = engine

    def state_dict(self) -> dict[str, int]:
        return {"iteration": self.engine.state.iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.engine.state.iteration = state["iteration"]


def newest(folder: Path) -> dict[str, Any] | None:
    """Read the newest checkpoint that is whole, saying so for each damaged one that is passed over.

    Returns:
        The checkpoint's content, or None where nothing was saved yet.

    Raises:
        Fault: there are checkpoints, but not one that can be read.
    """
    damaged: list[Path] = []
    for _, file in reversed(numbered(folder, "step")):
        try:
            content = load(file)
        except Fault as fault:
            log.warning("%s", fault)
            damaged.append(file)
        else:
            for other in damaged:  # out of the way of the rotation, but not lost
                other.rename(other.with_suffix(".damaged"))
            return content
    if damaged:
        raise Fault(f"none of the {len(damaged)} checkpoints in {folder} can be read; nothing there was changed")
    return None


def load(file: Path) -> dict[str, Any]:
    """Read one checkpoint into main memory; verify its digest, refuse anything but tensors and plain values.

    Raises:
        Fault: the file is damaged, or it holds more than data.
    """
    try:
        expected = _digest_path(file).read_text(errors="replace").split()
        if expected[:1] != [_digest(file)]:
            raise Fault(f"{file} is damaged: its SHA-256 is not the one written with it")
        if not zipfile.is_zipfile(file):
            raise Fault(f"{file} is no checkpoint of PyTorch's present format; it was not loaded")
        # Mapped, so that a replay is not in the memory twice while it is brought back.
        return torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise Fault(f"{file} holds more than tensors and plain values, perhaps code; it was not loaded") from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        raise Fault(f"{file} cannot be read: {_first_line(error)}") from error


def restore(to_load: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    """Bring objects back to what a checkpoint says of them.

    Raises:
        Fault: the checkpoint was made by another version of the script, of other parts or other shapes.
    """
    try:
        Checkpoint.load_objects(to_load, {name: content[name] for name in to_load})
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        problem = f"{type(error).__name__}: {_first_line(error)}"
        raise Fault(f"the checkpoint does not fit this script, perhaps it is of another version ({problem})") from error


def attach(engine: Engine, save: Mapping[str, Any], folder: Path, every: int, stopper: Stopper) -> None:
    """Save through ignite's Checkpoint: every so many steps, at the end, and at each best mean return.

    When acting fails, because an environment raises or a player is lost, the state is saved before the error goes on. A
    state whose loss is not finite is never saved.

    Args:
        engine: the training engine.
        save: objects with a state_dict by name; at least "net".
        folder: where to.
        every: agent steps between resumable checkpoints.
        stopper: counts the steps, and knows whether the state is a good one.
    """
    steps = stopper.steps
    saver = VerifiedSaver(folder)

    def handler(kind: str, objects: Mapping[str, Any], keep: int) -> Checkpoint:
        pattern = kind + "-{global_step:09d}.{ext}"
        made = Checkpoint(
            objects, saver, n_saved=keep, filename_pattern=pattern, global_step_transform=lambda *_: steps()
        )
        # A newer one than the state is of a stretch that will be run again, and written again then.
        there = [(step, file.name) for step, file in numbered(folder, kind) if step <= steps()]
        made.load_state_dict({"_saved": there})
        return made

    resumable = handler("step", save, keep=2)
    playable = handler("best", {name: save[name] for name in PLAYABLE if name in save}, keep=1)
    saved_at = steps() if resumable.last_checkpoint else 0

    def due(engine: Engine, event: int) -> bool:
        # The first time at once: what has been learnt can be resumed, and a disk that refuses is found early.
        return (not saved_at or steps() // every > saved_at // every) and stopper.reason is None

    def save_resumable(engine: Engine) -> None:
        nonlocal saved_at
        if stopper.reason != NOT_FINITE and steps() > saved_at:
            resumable(engine)
            saved_at = steps()

    def save_playable(engine: Engine) -> None:
        if stopper.reason != NOT_FINITE:
            playable(engine)

    acting = False

    def act(engine: Engine, begins: bool) -> None:
        nonlocal acting
        acting = begins

    def save_what_was_learnt(engine: Engine, error: Exception) -> None:
        # Whoever failed to act, the learner's state is that of the last whole iteration.
        if acting and engine.state.iteration > 0:
            act(engine, False)
            try:
                save_resumable(engine)
                log.info("What was learnt is saved; go on with --resume %s", folder.parent)
            except Fault as fault:
                log.warning("%s", fault)  # and the first error is the one to report
        raise error

    engine.add_event_handler(Events.GET_BATCH_STARTED, act, True)
    engine.add_event_handler(Events.GET_BATCH_COMPLETED, act, False)
    engine.add_event_handler(Events.EXCEPTION_RAISED, save_what_was_learnt)
    engine.add_event_handler(Events.ITERATION_COMPLETED(event_filter=due), save_resumable)
    engine.add_event_handler(Events.COMPLETED, save_resumable)
    engine.add_event_handler(EpisodeEvents.BEST_REWARD_REACHED, save_playable)


def numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """Our own files of a kind by agent step; a user's copies beside them are not touched."""
    named = ((re.fullmatch(rf"{kind}-(\d+)\.pt", file.name), file) for file in folder.iterdir())
    return sorted((int(match[1]), file) for match, file in named if match)


def _digest_path(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
