"""Experiment trackers: the run at Weights & Biases or MLflow, beside its own files. ignite's handlers write to both.

A tracker gets what TensorBoard gets, under the same tags: whatever is attached to TensorBoard's logger is attached to
the tracker's, too. Its x axis is always agent steps.
"""

import dataclasses
import json
import logging
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ignite.engine import Engine
from ignite.handlers.base_logger import BaseOutputHandler

from lib.errors import UsageError
from lib.run.evaluation import SPREAD
from lib.run.stopping import EXIT_CODES
from lib.system.log import install_command
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

PROJECT_NAME = "pong-ladder"  # project or experiment at the tracker

# Entries of result.json that are written as end/<name>, besides steps_per_second of this process.
END = ("mean_100", "best_mean", "seconds")


def end_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Return the scalars that describe a finished run, by their tags, given the content of result.json."""
    values = {name: result[name] for name in END}
    values["steps_per_second"] = result["this_process"]["steps_per_second"]
    return {f"end/{name}": value for name, value in values.items() if value is not None}


@dataclasses.dataclass
class Tracker:
    """A run at a tracker. An error of the tracker is logged and ends the tracking, not the training."""

    name: str
    steps: Callable[[], int]  # returns the agent steps so far
    logger: object  # ignite's
    handler: Callable[..., BaseOutputHandler]  # class of ignite's handlers that write to the logger
    write: Callable[[dict[str, float], int], object]  # sends metrics of an agent step
    upload: Callable[[Path], object]  # sends a picture or a video
    close: Callable[[int], object]  # ends the run with an exit code
    has_failed: bool = False

    def mirror(self, engine: Engine, original: BaseOutputHandler, event: Any) -> None:
        """Attach a handler that writes what one of TensorBoard's handlers writes."""
        copy = self.handler(original.tag, original.metric_names, original.output_transform, lambda *_: self.steps())
        engine.add_event_handler(event, lambda engine: self._attempt(copy, engine, self.logger, event))

    def send(self, file: Path) -> None:
        """Send a picture or a video."""
        self._attempt(self.upload, file)

    def finish(self, run: Path, result: Mapping[str, Any]) -> None:
        """Send end/* of the result and the learning curve of a finished run, and close it at the tracker."""
        evaluation = result.get("evaluation", {})
        metrics = {f"end/evaluation_{name}": evaluation[name] for name in SPREAD if name in evaluation}
        self._attempt(self.write, end_metrics(result) | metrics, self.steps())
        if (run / "curve.png").exists():
            self.send(run / "curve.png")
        self._attempt(self.close, EXIT_CODES[result["stopped"]])

    def fail(self) -> None:
        """Close the run at the tracker as failed."""
        self._attempt(self.close, 1)

    def _attempt(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function, unless the tracker has failed before."""
        if self.has_failed:
            return
        try:
            with undisturbed():
                call(*arguments)
        except Exception as error:  # noqa: BLE001 - the tracker is not our code, and its server may be anywhere
            log.warning("%s failed: %s. Tracking ends; the run and its files are not affected.", self.name, error)
            self.has_failed = True


def track_by_wandb(run: Path, settings: Mapping[str, Any], steps: Callable[[], int]) -> Tracker:
    """Open a run at Weights & Biases. wandb's own variables apply, such as WANDB_MODE=offline."""
    import wandb
    from ignite.handlers.wandb_logger import OutputHandler, WandBLogger

    class Logger(WandBLogger):
        """ignite's logger whose x axis is agent steps. wandb's own steps would keep only the last of several calls."""

        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            wandb.log({**metrics, "agent_steps": step})

    def send(path: Path) -> None:
        is_video = path.suffix == ".webm"
        file = wandb.Video(str(path), format="webm") if is_video else wandb.Image(str(path))
        logger.log({"video" if is_video else path.stem: file}, steps())

    os.environ.setdefault("WANDB_PROJECT", PROJECT_NAME)
    quiet = wandb.Settings(console="off")
    logger = Logger(id=_id(run), name=run.name, resume="allow", config=dict(settings), settings=quiet)
    wandb.define_metric("*", step_metric="agent_steps")
    return Tracker("wandb", steps, logger, OutputHandler, logger.log, send, wandb.finish)


def track_by_mlflow(run: Path, settings: Mapping[str, Any], steps: Callable[[], int]) -> Tracker:
    """Open a run at MLflow. mlflow's own variables apply, such as MLFLOW_TRACKING_URI."""
    import mlflow
    from ignite.handlers.mlflow_logger import MLflowLogger, OutputHandler

    class Logger(MLflowLogger):
        """ignite's logger with TensorBoard's tags: "train/loss" instead of "train loss"."""

        def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
            mlflow.log_metrics({name.replace(" ", "/", 1): value for name, value in metrics.items()}, step=step)

    def close(exit_code: int) -> None:
        mlflow.end_run("FINISHED" if not exit_code else "KILLED" if exit_code > 128 else "FAILED")

    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT_NAME))
    earlier = mlflow.search_runs(filter_string=f"tags.run = '{_id(run)}'", output_format="list", max_results=1)
    mlflow.start_run(earlier[0].info.run_id if earlier else None, run_name=run.name, tags={"run": _id(run)})
    mlflow.log_params(dict(settings))
    logger = Logger()
    return Tracker("mlflow", steps, logger, OutputHandler, logger.log_metrics, mlflow.log_artifact, close)


def _id(run: Path) -> str:
    """Return a name of the run that is the same when it is resumed: its folder, and the second in which it began."""
    started = json.loads((run / "params.json").read_text())["sessions"][0]["started"]
    return f"{run.name}-{re.sub('[^0-9]', '', started)}"[-128:]


TRACKERS = {"wandb": track_by_wandb, "mlflow": track_by_mlflow}


def require(name: str) -> None:
    """Raise UsageError if a tracker is not installed."""
    if find_spec(name) is None:
        raise UsageError(
            f"--track {name} needs the package {name}, which is not installed; run {install_command(name)}"
        )


def start(name: str, run: Path, settings: Mapping[str, Any], steps: Callable[[], int]) -> Tracker:
    """Open a new or resumed run at a tracker, a key of TRACKERS.

    Raises:
        UsageError: if the tracker does not answer or refuses.
    """
    try:
        with undisturbed():
            return TRACKERS[name](run, settings, steps)
    except Exception as error:  # the tracker is not our code, and its server may be anywhere
        offline = "; WANDB_MODE=offline needs no account" if name == "wandb" else ""
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"--track {name} failed at the start: {reason}{offline}") from error
