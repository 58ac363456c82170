"""What a run's checkpoints hold, and how a resumed run is restored from them."""

import copy
import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ignite.engine import Engine, Events

from lib.errors import UsageError
from lib.hyperparameters import Hyperparameters
from lib.run import checkpoint, checkpoint_files, checkpoint_reading, learning_rate, restoring, videos
from lib.run.initial_weights import load_initial_weights
from lib.run.options import affecting_results
from lib.run.restoring import Stateful
from lib.run.run_parts import RunParts
from lib.system.seeds import RandomState

log = logging.getLogger(__name__)


class SavedState:
    """The state of a run that its checkpoints hold.

    `restore`, `restore_files` and `attach` are called in this order, also for a new run, whose content is {}.

    Args:
        parts: parts of the run.
    """

    def __init__(self, parts: RunParts):
        self._parts = parts
        self._damaged: list[Path] = []  # checkpoints that could not be read
        self._loop_state: dict[str, Any] = {}  # saved state of the loop, if the run is resumed
        self._is_first_epoch = False
        self._last_iteration: int | None = None  # None before the first iteration of this process

    def objects(self) -> dict[str, Stateful]:
        """Return the objects that a checkpoint holds, by name. TensorBoard's files have to be open."""
        own: dict[str, Stateful] = {"settings": self.settings(), "speed": self._parts.speed}
        return own | self._restored_at_setup() | self._restored_at_start() | {"files": self._parts.growing_files()}

    def settings(self) -> restoring.Settings:
        """Return the hyperparameters, the seed and the options that affect results."""
        parts = self._parts
        knobs = affecting_results(parts.options.knobs)
        return restoring.Settings({**dataclasses.asdict(parts.params), **knobs, "seed": parts.options.seed})

    def restore(self) -> dict[str, Any]:
        """Restore the newest checkpoint of a resumed run, except for its files and the state of its loop.

        No file is changed, because the run may still be refused.

        Returns:
            The content of the checkpoint; {} for a new run, or one that was stopped before its first checkpoint.

        Raises:
            UsageError: if the run is at its step limit or was changed, or if its checkpoints are missing.
            Fault: if no checkpoint can be read.
        """
        parts = self._parts
        options = parts.options
        content = self._newest_checkpoint() if options.resume else {}
        if content:
            if "settings" in content:  # earlier versions did not save them
                restoring.restore({"settings": self.settings()}, content)
            objects = self._restored_at_setup()
            for name in set(parts.figures) - set(content):  # of an earlier version; it selects new states
                objects.pop(name, None)
            restoring.restore(objects, content)
            log.info("Resumed at step %s.", f"{parts.steps():,}")
        elif options.resume and options.init:  # stopped before its first checkpoint
            load_initial_weights(options.init, parts.save or {})
        if "replay" in content:
            parts.warm_up = 0
        if "speed" in content and not parts.warm_up:  # earlier versions did not save it
            restoring.restore({"speed": parts.speed}, content)
        self._require_steps_left()
        return content

    def restore_files(self, content: Mapping[str, Any]) -> None:
        """Truncate the growing files to the checkpoint. Rename later checkpoints, and delete later videos."""
        run = self._parts.run
        for damaged in self._damaged:  # renamed, so that the rotation of the checkpoints does not count them
            damaged.rename(damaged.with_suffix(".damaged"))
        checkpoint_files.set_aside_newer(run.checkpoints, self._parts.steps())
        videos.cut_back(run.path, self._parts.episodes.count)
        files = self._parts.growing_files()
        if content:
            restoring.restore({"files": files}, content)
        else:
            files.load_state_dict({})

    def attach(self, content: Mapping[str, Any]) -> None:
        """Attach handlers that restore the loop's state when the loop starts.

        If a notebook runs the engine again, its iteration count continues, unless engine.run limits the iterations.
        """
        # A copy, because it is kept, and would keep the memory-mapped checkpoint open.
        self._loop_state = copy.deepcopy({name: content[name] for name in self._restored_at_start() if name in content})
        engine = self._parts.engine
        engine.add_event_handler(Events.STARTED, self._engine_started)
        engine.add_event_handler(Events.EPOCH_STARTED, self._epoch_started)
        engine.add_event_handler(Events.ITERATION_COMPLETED, self._iteration_completed)

    def _engine_started(self, engine: Engine) -> None:
        self._is_first_epoch = True

    def _iteration_completed(self, engine: Engine) -> None:
        self._last_iteration = engine.state.iteration

    def _epoch_started(self, engine: Engine) -> None:
        """Restore the state of the loop, and end the run if it has nothing to do.

        ignite resets the iteration counter and the running averages on STARTED. No handler draws random numbers
        between EPOCH_STARTED and the first batch.
        """
        if not self._is_first_epoch:
            return
        self._is_first_epoch = False
        if self._last_iteration is not None:  # the engine has run before
            if self._parts.save is not None and not _has_limit(engine):
                engine.state.iteration = self._last_iteration
        elif self._loop_state:
            objects = self._restored_at_start()
            if "evaluations" not in self._loop_state:  # the saved run had none
                objects.pop("evaluations", None)
            restoring.restore(objects, self._loop_state)
        else:  # the first loop of a new run
            return
        self._end_if_done(engine)

    def _end_if_done(self, engine: Engine) -> None:
        episodes, stopper = self._parts.episodes, self._parts.stopper
        if episodes.solved is not None:
            stopper.solved(engine)
        elif self._parts.is_at_step_limit():
            stopper.limit_reached(engine)
        elif stopper.reason is not None:
            engine.terminate()

    def _restored_at_setup(self) -> dict[str, Stateful]:
        """Return the objects that are restored during the set-up."""
        parts = self._parts
        objects: dict[str, Stateful] = {"source": parts.source, "episodes": parts.episodes, **(parts.save or {})}
        for name, figure in parts.figures.items():
            if isinstance(figure, Stateful):
                objects[name] = figure
        if isinstance(parts.params, Hyperparameters) and not parts.params.checkpoint_replay:
            objects.pop("replay", None)
        return objects

    def _restored_at_start(self) -> dict[str, Stateful]:
        """Return the objects that are restored when the loop starts."""
        parts = self._parts
        objects: dict[str, Stateful] = {
            "iteration": checkpoint.Iteration(parts.engine),
            "average": parts.board.average,
            "random": RandomState(parts.options.device),
        }
        return objects if parts.periodic_evaluation is None else objects | {"evaluations": parts.periodic_evaluation}

    def _newest_checkpoint(self) -> dict[str, Any]:
        run = self._parts.run
        content = checkpoint_reading.newest(run.checkpoints, self._damaged)
        if self._parts.save is None:
            raise UsageError(f"{run.path} cannot be resumed, because its script saves no checkpoints; start a new run")
        if content is None:
            log.info("The run was stopped before its first checkpoint and starts again from the beginning.")
        return content or {}

    def _require_steps_left(self) -> None:
        """Refuse a run at its step limit, unless its result or evaluation is still missing."""
        parts = self._parts
        path, steps = parts.run.path, parts.steps()
        result = parts.run.read_result()
        lacks_evaluation = parts.episodes.count > 0 and "evaluation" not in result
        if lacks_evaluation and parts.episodes.solved is not None:
            return  # it will only be evaluated; see RunEnd
        if parts.is_at_step_limit():
            would_be_evaluated = lacks_evaluation and parts.options.stop_after is None
            if not result or would_be_evaluated:
                return
            if lacks_evaluation and steps >= parts.params.max_steps:
                raise UsageError(
                    f"{path} is at step {steps:,}, and lacks its final evaluation; leave out --stop-after to play it"
                )
        learning_rate.require_above_zero(parts.params, path, steps)
        if steps + parts.warm_up >= parts.stopper.step_limit:
            filling = f" and first fills its replay with {parts.warm_up:,} more steps" if parts.warm_up else ""
            raise UsageError(f"{path} is already at step {steps:,}{filling}; give a larger --stop-after")


def _has_limit(engine: Engine) -> bool:
    """Return whether engine.run was given a number of iterations or epochs, which ignite counts from 0."""
    state = engine.state
    return state.max_iters is not None or state.epoch_length is not None or state.max_epochs != 1
