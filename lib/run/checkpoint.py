"""Checkpoints: written atomically, verified when read, without executable code.

A run is resumed bit for bit from `step-<agent steps>.pt`. `best-*` holds the network with the best mean return so far.
"""

import copy
import dataclasses
import logging
import pickle
import re
import textwrap
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from ignite.engine import Engine, Events
from torch import nn

from lib.errors import Fault, UsageError, first_line
from lib.experience.interface import State, Stateful
from lib.run.episodes import EpisodeEvents, attach_as_last, episode_videos
from lib.run.folder import RunFolder
from lib.run.stopping import NOT_FINITE, Stopper
from lib.system import files
from lib.system.clock import since_process_start

log = logging.getLogger(__name__)

BEST, LAST = "best", "last"


def numbered(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """List the checkpoints of a kind as (agent steps, path), oldest first. A user's copies are not listed."""
    named = ((re.fullmatch(rf"{kind}-(\d+)\.pt", file.name), file) for file in folder.glob("*"))
    return sorted((int(match[1]), file) for match, file in named if match)


def find_checkpoint(run: Path, which: str) -> Path:
    """Return the file of a checkpoint: BEST, LAST, or an agent step. A UsageError lists the available ones."""
    folder = run / "checkpoints"
    best, step = numbered(folder, BEST), numbered(folder, "step")
    files = {str(number): file for number, file in sorted(step + best)}
    if not files:
        raise UsageError(
            f"{run} has no checkpoint. It was stopped before its first one, or its script calls setup_ignite without "
            "save={'net': net}"
        )
    files[LAST] = [*files.values()][-1]
    files[BEST] = best[-1][1] if best else files[LAST]
    if which not in files:
        raise UsageError(f"{run} has no checkpoint {which!r}; give one of {', '.join(files)}")
    return files[which]


def load(file: Path) -> State:
    """Read one checkpoint into main memory. One that is damaged, or holds more than plain data, is a Fault."""
    try:
        with zipfile.ZipFile(file) as archive:  # torch.load reads a flipped bit without a word
            wrong = archive.testzip()
        if wrong is not None:
            raise zipfile.BadZipFile(f"the checksum of {wrong} in it is wrong")
        # Memory-mapped, so that a replay is not in memory twice while it is restored.
        content: State = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except MemoryError:
        raise
    except pickle.UnpicklingError as error:
        found = re.search(r"GLOBAL (\S+)", str(error))
        held = found[1] if found else "code"
        raise Fault(
            f"{file} holds {held}, and only tensors and plain values are loaded: others may run code"
        ) from error
    except Exception as error:  # zipfile and torch may raise anything on a damaged file
        raise Fault(f"{file} is damaged: {first_line(error)}") from error
    return content


def newest(folder: Path) -> State:
    """Read the newest undamaged step-* checkpoint; {} if there are none. If all are damaged, it is a Fault."""
    found = [file for _, file in numbered(folder, "step")]
    for file in reversed(found):
        try:
            return load(file)
        except Fault as fault:
            log.warning("%s", fault)
    if found:
        raise Fault(f"none of the {len(found)} checkpoints in {folder} is intact. Restore one, or start a new run")
    return {}


def restore(objects: Mapping[str, Stateful], content: State) -> None:
    """Load the state of objects from a checkpoint's content. A UsageError names the object that it does not fit."""
    for name, each in objects.items():
        try:
            # A copy, because an object that keeps a tensor would keep the file. The replay copies its data itself.
            each.load_state_dict(content[name] if name == "replay" else copy.deepcopy(content[name]))
        except (Fault, UsageError):
            raise
        except Exception as error:  # of torch, or of the user's own object
            problem = textwrap.shorten(f"{type(error).__name__}: {error}", 200, placeholder=" ...")
            raise UsageError(
                f"the checkpoint does not fit {name!r} of this program ({problem}). It was saved by another script or "
                "version, or the environment's observations or actions have changed; restore them, or start a new run"
            ) from error


def restore_files(folder: RunFolder, sizes: dict[str, int], step: int, episode: int) -> None:
    """Truncate files to their sizes at this step and episode, remove later videos, and rename newer checkpoints.

    Newer step-* are damaged. Newer best-* are saved again when the run reaches their step, unless it plays differently.
    """
    for kind, suffix in (("step", ".damaged"), (BEST, ".undone")):
        for saved_at, file in numbered(folder.checkpoints, kind):
            if saved_at > step:
                file.rename(file.with_suffix(suffix))
    folder.load_state_dict(sizes)
    for number, video in episode_videos(folder.path):
        if number > episode:
            video.unlink()


def load_initial_weights(model: Path, objects: Mapping[str, Stateful]) -> None:
    """Load the best weights of a run or model into the networks "net" and "target" among the objects, for --init."""
    file = find_checkpoint(model, BEST)
    weights = load(file).get("net")
    networks = {name: objects[name] for name in ("net", "target") if isinstance(objects.get(name), nn.Module)}
    restore(networks, dict.fromkeys(networks, weights))
    log.info("Initial weights: %s", file)


def save(content: State, file: Path) -> None:
    """Write a checkpoint atomically: the file appears under its name when all of it is on the disk.

    A Fault says that it cannot be written, or that weights of content["net"] are not finite. Others are kept.
    """
    if not all(bool(torch.isfinite(weights).all()) for weights in content["net"].values()):
        raise Fault(f"the network's weights are not finite, so {file} was not saved; use an earlier checkpoint")
    try:
        with files.replacing(file) as stream:
            torch.save(content, stream)
    except (OSError, RuntimeError) as error:
        # torch reports a full disk as a RuntimeError, whose context is the OSError.
        cause = error.__context__ if isinstance(error.__context__, OSError) else error
        raise Fault(
            f"{file} could not be saved: {first_line(cause)}. Earlier checkpoints are kept; make room or correct the "
            "cause, and continue with --resume"
        ) from error


def remove_outdated(folder: Path) -> None:
    """Keep the newest two step-* checkpoints, the newest best-*, and the best-* of the time of the newest step-*.

    A run that is resumed from the newest step-* needs the last of these.
    """
    step, best = numbered(folder, "step"), numbered(folder, BEST)
    resumable = [file for saved_at, file in best if step and saved_at <= step[-1][0]]
    kept = [file for _, file in (*step[-2:], *best[-1:])] + resumable[-1:]
    for _, file in (*step, *best):
        if file not in kept:
            file.unlink()


@dataclasses.dataclass
class Iteration:
    """The engine's iteration counter. ignite's own state_dict needs an epoch length, which a run does not have."""

    engine: Engine

    def state_dict(self) -> dict[str, int]:
        return {"iteration": self.engine.state.iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.engine.state.iteration = state["iteration"]


@dataclasses.dataclass
class Checkpoints:
    """Save checkpoints at regular steps, at most INTERVAL seconds apart, at the end of the run, and at each best mean.

    Nothing is saved after an error, nor before the first iteration, because such a run starts again. A state whose
    loss is not finite is never saved.
    """

    objects: Mapping[str, Stateful]  # to save, by name; at least "net"
    folder: Path
    every: int  # agent steps between checkpoints
    stopper: Stopper

    INTERVAL: ClassVar[float] = 300.0

    def __post_init__(self) -> None:
        self._saved_at = max((step for step, _ in numbered(self.folder, "step")), default=0)  # agent steps
        self._saved_when = since_process_start()

    def attach(self, engine: Engine) -> None:
        """Attach this after the handlers that change the saved objects; the script's own always come before it."""
        attach_as_last(engine, Events.ITERATION_COMPLETED, self._save_if_due)
        engine.add_event_handler(Events.COMPLETED, self._save_resumable)
        engine.add_event_handler(EpisodeEvents.BEST_REWARD_REACHED, self._save_playable)

    def _save_if_due(self, engine: Engine) -> None:
        if self.stopper.reason is not None:  # the end of the run saves
            return
        # The first checkpoint follows the first iteration, and is read back: a read-only disk, or an object of the
        # script whose state cannot be loaded, is noticed early.
        is_first = not self._saved_at
        due_by_steps = self.stopper.steps() // self.every > self._saved_at // self.every
        if is_first or due_by_steps or since_process_start() - self._saved_when >= self.INTERVAL:
            self._save_resumable(engine)
        if is_first:
            load(numbered(self.folder, "step")[-1][1])

    def _save_resumable(self, engine: Engine) -> None:
        if engine.state.iteration and self.stopper.reason != NOT_FINITE and self.stopper.steps() > self._saved_at:
            self._save("step", self.objects)
            self._saved_at, self._saved_when = self.stopper.steps(), since_process_start()

    def _save_playable(self) -> None:
        if self.stopper.reason != NOT_FINITE:
            self._save(BEST, {"net": self.objects["net"]})

    def _save(self, kind: str, objects: Mapping[str, Stateful]) -> None:
        content = {name: each.state_dict() for name, each in objects.items()}
        save(content, self.folder / f"{kind}-{self.stopper.steps():09d}.pt")
        remove_outdated(self.folder)
