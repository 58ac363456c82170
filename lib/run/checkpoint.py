"""Checkpoints: written atomically, verified when read, without executable code, and sufficient to resume bit for bit.

A checkpoint is the file `checkpoints/<kind>-<agent steps>.pt`. A run can be resumed from a `step-*` checkpoint; the
newest and the one before it are kept. The `best-*` checkpoint holds the network with the best mean return so far, for
playing and evaluating.
"""

import errno
import logging
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint
from ignite.handlers.checkpoint import BaseSaveHandler

from lib.errors import Fault, UsageError
from lib.run.checkpoint_files import numbered
from lib.run.checkpoint_reading import first_line
from lib.run.events import EpisodeEvents, attach_as_last
from lib.run.restoring import Stateful
from lib.run.stopping import NOT_FINITE, Stopper
from lib.system import files

log = logging.getLogger(__name__)


# Objects in a `best-*` checkpoint. All others are needed only to resume. ignite would save the only object without its
# name, so there are two.
PLAYABLE = ("net", "iteration")


class VerifiedSaver(BaseSaveHandler):
    """Save handler for ignite's Checkpoint: temporary file, fsync, rename. Outdated files are removed last.

    Args:
        folder: folder of the checkpoints. Files left by an interrupted write are removed from it.

    Raises:
        Fault: on saving, if the file cannot be written or the weights are not finite. Earlier checkpoints are kept.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._outdated: list[str] = []
        best = [file.name for _, file in numbered(folder, "best")]
        self._best = best[-1] if best else ""  # name of the newest best-* file
        self._resumable_best = self._best  # the newest one when the last step-* file was written
        for leftover in folder.glob("*.tmp"):
            leftover.unlink()

    def __call__(self, checkpoint: Mapping[str, Any], filename: str, metadata: Mapping[str, Any] | None = None) -> None:
        if not all(bool(torch.isfinite(weights).all()) for weights in checkpoint["net"].values()):
            raise Fault(f"the network's weights are not finite, so {filename} was not saved; use an earlier checkpoint")
        temporary = self.folder / f"{filename}.tmp"
        handled = sys.exception()  # not the cause if this fails, too
        try:
            self._write(checkpoint, temporary, filename)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            cause = _cause(error, handled)
            problem = f"{self.folder / filename} could not be saved: {first_line(cause)}{self._room(cause)}"
            temporary.unlink(missing_ok=True)
            raise Fault(f"{problem}. {self._advice(cause)}") from error
        self._remove_outdated(filename)

    def remove(self, filename: str) -> None:
        """Mark a file as outdated. It is removed once the next checkpoint is on the disk.

        The best-* file that existed at the last step-* checkpoint is kept until the next step-* checkpoint. A run that
        is resumed from there still needs it.
        """
        self._outdated.append(filename)

    def _write(self, checkpoint: Mapping[str, Any], temporary: Path, filename: str) -> None:
        with temporary.open("wb") as file:
            torch.save(dict(checkpoint), file)
            files.sync(file)
        temporary.replace(self.folder / filename)
        files.sync_folder(self.folder)

    def _remove_outdated(self, newest: str) -> None:
        if newest.startswith("best"):
            self._best = newest
        else:
            self._resumable_best = self._best
        for outdated in {*self._outdated} - {newest, self._resumable_best}:
            (self.folder / outdated).unlink(missing_ok=True)
        self._outdated = [name for name in self._outdated if name == self._resumable_best]

    def _room(self, error: BaseException) -> str:
        """Describe the free space or the size limit, if that may be the cause."""
        number = getattr(error, "errno", errno.ENOSPC)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
        if number == errno.EFBIG and limit != resource.RLIM_INFINITY:
            return f" (ulimit -f allows {limit / 1e6:.1f} MB)"
        if number in (errno.ENOSPC, errno.EDQUOT):
            return f" ({shutil.disk_usage(self.folder).free / 1e6:.0f} MB were free)"
        return ""

    def _advice(self, error: BaseException) -> str:
        remedy = "make room" if getattr(error, "errno", errno.ENOSPC) in files.FULL_DISK else "correct the cause"
        if numbered(self.folder, "step"):
            return f"Earlier checkpoints are kept; {remedy}, and continue with --resume"
        return f"There is no earlier checkpoint; {remedy}, and start a new run"


class Iteration:
    """The engine's iteration counter as an object with a state_dict.

    ignite's own state_dict needs an epoch length, which a run does not have.
    """

    def __init__(self, engine: Engine):
        self.engine = engine

    def state_dict(self) -> dict[str, int]:
        return {"iteration": self.engine.state.iteration}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.engine.state.iteration = state["iteration"]


class Checkpointer:
    """Save checkpoints at regular steps, at the end of the run, and at each best mean return.

    If acting fails, because an environment raises or a process is lost, the state is saved before the error is raised
    again. A state whose loss is not finite is never saved.

    Args:
        objects: objects to save, by name; at least "net".
        folder: folder of the checkpoints.
        every: agent steps between checkpoints.
        stopper: stopper of the run; provides the agent steps so far and the reason for the end.
        warms_up: whether the first batch is preceded by a warm-up. Before that batch nothing is saved, because a run
            that is stopped in its warm-up starts again from the beginning.
        how_to_continue: function that returns the command that continues the run.
    """

    def __init__(
        self,
        objects: Mapping[str, Stateful],
        folder: Path,
        every: int,
        stopper: Stopper,
        warms_up: bool = False,
        how_to_continue: Callable[[], str] = lambda: "--resume",
    ):
        self.folder = folder
        self.every = every
        self.stopper = stopper
        self.warms_up = warms_up
        self.how_to_continue = how_to_continue
        self._saver = VerifiedSaver(folder)
        self._resumable = self._handler("step", objects, keep=2)
        self._playable = self._handler("best", {name: objects[name] for name in PLAYABLE if name in objects}, keep=1)
        self._saved_at = stopper.steps() if self._resumable.last_checkpoint else 0
        self._acting = False

    def attach(self, engine: Engine) -> None:
        """Attach this after the handlers that change the saved objects, and before the one that raises errors again.

        The script's own handlers may change them, too, so an iteration is saved after them.
        """
        engine.add_event_handler(Events.GET_BATCH_STARTED, self._set_acting, True)
        engine.add_event_handler(Events.GET_BATCH_COMPLETED, self._set_acting, False)
        engine.add_event_handler(Events.EXCEPTION_RAISED, self._exception_raised)
        attach_as_last(engine, Events.ITERATION_COMPLETED, self._save_if_due)
        engine.add_event_handler(Events.COMPLETED, self._save_resumable)
        engine.add_event_handler(EpisodeEvents.BEST_REWARD_REACHED, self._save_playable)

    def _handler(self, kind: str, objects: Mapping[str, Stateful], keep: int) -> Checkpoint:
        steps = self.stopper.steps
        handler = Checkpoint(
            objects,
            self._saver,
            n_saved=keep,
            filename_pattern=kind + "-{global_step:09d}.{ext}",
            global_step_transform=lambda *_: steps(),
        )
        # Checkpoints that are newer than a resumed state will be written again.
        saved = [(step, file.name) for step, file in numbered(self.folder, kind) if step <= steps()]
        for _, name in saved[:-keep]:  # a kill may have left one more
            self._saver.remove(name)
        handler.load_state_dict({"_saved": saved[-keep:]})
        return handler

    def _save_if_due(self, engine: Engine) -> None:
        if self.stopper.reason is not None:
            return
        # The first checkpoint follows the first iteration, so that a read-only disk is noticed early.
        if not self._saved_at or self.stopper.steps() // self.every > self._saved_at // self.every:
            self._save_resumable(engine)

    def _save_resumable(self, engine: Engine) -> None:
        if self.warms_up and not engine.state.iteration:
            return
        if self.stopper.reason != NOT_FINITE and self.stopper.steps() > self._saved_at:
            self._resumable(engine)
            self._saved_at = self.stopper.steps()

    def _save_playable(self, engine: Engine) -> None:
        if self.stopper.reason != NOT_FINITE:
            self._playable(engine)

    def _set_acting(self, engine: Engine, acting: bool) -> None:
        self._acting = acting

    def _exception_raised(self, engine: Engine, error: BaseException) -> None:
        # While the next batch is fetched, the learner's state is that of the last complete iteration.
        at_once = isinstance(error, KeyboardInterrupt)  # by a second Ctrl-C, or one in the warm-up
        if self._acting and engine.state.iteration > 0 and not at_once:
            self._acting = False
            self.rescue(engine, error)

    def rescue(self, engine: Engine, error: BaseException) -> None:
        """Save the last complete iteration before an error ends the run.

        The command that continues the run is added to the error, so that it stands below the traceback.
        """
        if self.stopper.reason == NOT_FINITE:
            return
        try:
            self._save_resumable(engine)
            log.info("The last complete iteration is saved.")
            advice = f"To continue: {self.how_to_continue()}"
            if isinstance(error, SystemExit):  # Python does not show its notes
                log.info(advice)
            else:
                error.add_note(advice)
        except (Fault, UsageError, OSError) as fault:
            log.warning("%s", fault)  # the first error is the one to raise


def _cause(error: BaseException, outer: BaseException | None) -> BaseException:
    """Return the OSError behind torch's error, or the error itself.

    Args:
        error: error of a write.
        outer: error that was being handled before the write. It is not the cause.
    """
    each: BaseException | None = error
    while each is not None and each is not outer:
        if isinstance(each, OSError):
            return each
        each = each.__cause__ or each.__context__
    return error
