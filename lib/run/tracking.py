"""Experiment trackers: the run at Weights & Biases or MLflow, beside its own files. ignite's handlers write to both.

A tracker gets what TensorBoard gets, under the same tags: whatever is attached to TensorBoard's logger is attached to
the tracker's, too. Its x axis is always agent steps.
"""

import abc
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ignite.engine import Engine
from ignite.handlers.base_logger import BaseOutputHandler

from lib.errors import UsageError
from lib.run.evaluation import SPREAD
from lib.run.folder import read_params
from lib.run.stopping import EXIT_CODES
from lib.run.tensorboard import end_metrics
from lib.system.console_log import install_command
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

PROJECT_NAME = "pong-ladder"  # default project at the tracker
AGENT_STEPS = "agent_steps"  # name of the x axis at Weights & Biases
FOLDER = ".track"  # folder beside the runs; hidden, so that runs/* does not match it


class Tracker(abc.ABC):
    """A run at a tracker. An error of the tracker is logged once and ends the tracking, not the training.

    Args:
        name: name of the tracker.
        steps: function that returns the agent steps so far.
        logger: ignite's logger.
        handler: class of ignite's handlers for that logger.
    """

    def __init__(self, name: str, steps: Callable[[], int], logger: Any, handler: Callable[..., BaseOutputHandler]):
        self.name = name
        self.steps = steps
        self.logger = logger
        self._handler = handler
        self._failed = False

    def mirror(self, engine: Engine, original: BaseOutputHandler, event: Any) -> None:
        """Attach a handler that writes what one of TensorBoard's handlers writes."""

        def agent_step(engine: Engine, event_name: object) -> int:
            return self.steps()

        copy = self._handler(original.tag, original.metric_names, original.output_transform, agent_step)
        engine.add_event_handler(event, lambda engine: self._send(copy, engine, self.logger, event))

    def video(self, path: Path) -> None:
        """Send the video of an episode."""
        self._send(self._send_video, path)

    def finish(self, result: Mapping[str, Any], curve: Path) -> None:
        """Send end/* and the learning curve, and close the run at the tracker.

        Args:
            result: content of result.json.
            curve: picture of the learning curve, which may be missing.
        """
        metrics = end_metrics(result)
        evaluation = result.get("evaluation", {})
        metrics |= {f"end/evaluation_{name}": evaluation[name] for name in SPREAD if name in evaluation}
        self._send(self._send_metrics, metrics)
        if curve.exists():
            self._send(self._send_picture, curve)
        self._attempt(self._close, EXIT_CODES[result["stopped"]])

    def fail(self) -> None:
        """Close the run at the tracker as failed."""
        self._attempt(self._close, 1)

    def _send(self, call: Callable[..., object], *arguments: Any) -> None:
        """Call a function, unless the tracker has failed before. Closing is attempted even then."""
        if not self._failed:
            self._attempt(call, *arguments)

    def _attempt(self, call: Callable[..., object], *arguments: Any) -> None:
        try:
            with undisturbed():
                call(*arguments)
        except Exception as error:  # noqa: BLE001 - the tracker is not our code, and its server may be anywhere
            if not self._failed:
                log.warning("%s failed: %s. Tracking ends; the run and its files are not affected.", self.name, error)
            self._failed = True

    @abc.abstractmethod
    def _close(self, exit_code: int) -> None: ...

    @abc.abstractmethod
    def _send_metrics(self, metrics: Mapping[str, float]) -> None: ...

    @abc.abstractmethod
    def _send_picture(self, path: Path) -> None: ...

    @abc.abstractmethod
    def _send_video(self, path: Path) -> None: ...


class WandB(Tracker):
    """A run at Weights & Biases. wandb's own variables apply, such as WANDB_MODE=offline."""

    def __init__(self, run: Path, settings: Mapping[str, Any], steps: Callable[[], int]):
        import wandb
        from ignite.handlers.wandb_logger import OutputHandler, WandBLogger

        class Logger(WandBLogger):
            """ignite's logger whose x axis is agent steps.

            With wandb's own steps, only the last of several calls with one step would be kept, and no repeated step.
            """

            def log(self, metrics: Mapping[str, Any], step: int) -> None:
                wandb.log({**metrics, AGENT_STEPS: step})

        self._wandb: Any = wandb
        logger = Logger(
            project=os.environ.get("WANDB_PROJECT", PROJECT_NAME),
            name=run.name,
            id=_identity(run)[-128:],  # the same when the run is resumed
            resume="allow",
            dir=os.environ.get("WANDB_DIR", str(_folder(run))),
            config=dict(settings),
            settings=wandb.Settings(console="off"),
        )
        wandb.define_metric("*", step_metric=AGENT_STEPS)
        super().__init__("wandb", steps, logger, OutputHandler)

    def _close(self, exit_code: int) -> None:
        self._wandb.finish(exit_code)

    def _send_metrics(self, metrics: Mapping[str, float]) -> None:
        self.logger.log(dict(metrics), step=self.steps())

    def _send_picture(self, path: Path) -> None:
        self.logger.log({"curve": self._wandb.Image(str(path))}, step=self.steps())

    def _send_video(self, path: Path) -> None:
        self.logger.log({"videos/last": self._wandb.Video(str(path), format="webm")}, step=self.steps())


class MLflow(Tracker):
    """A run at MLflow: at MLFLOW_TRACKING_URI, by default a database in the folder of the runs."""

    def __init__(self, run: Path, settings: Mapping[str, Any], steps: Callable[[], int]):
        import mlflow
        from ignite.handlers.mlflow_logger import MLflowLogger, OutputHandler

        class Logger(MLflowLogger):
            """ignite's logger with TensorBoard's tags, "train/loss" instead of "train loss", that does not wait."""

            def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
                tags = {name.replace(" ", "/", 1): value for name, value in metrics.items()}
                mlflow.log_metrics(tags, step=step, synchronous=False)

        local = "MLFLOW_TRACKING_URI" not in os.environ  # set_tracking_uri sets it
        if local:
            mlflow.set_tracking_uri(f"sqlite:///{_folder(run) / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT_NAME)
        if mlflow.get_experiment_by_name(name) is None:
            with suppress(mlflow.MlflowException):  # another run has just created it
                mlflow.create_experiment(name, (_folder(run) / "mlartifacts").as_uri() if local else None)
        mlflow.set_experiment(name)
        tags = {"pong_ladder_run": _identity(run)}
        same = f"tags.pong_ladder_run = '{tags['pong_ladder_run']}'"
        earlier = mlflow.search_runs(filter_string=same, output_format="list", max_results=1)
        run_id = earlier[0].info.run_id if earlier else None
        mlflow.start_run(run_id=run_id, run_name=run.name, tags=tags)
        mlflow.log_params(dict(settings))
        self._mlflow: Any = mlflow
        super().__init__("mlflow", steps, Logger(), OutputHandler)

    def _close(self, exit_code: int) -> None:
        self._mlflow.flush_async_logging()
        self._mlflow.end_run("FINISHED" if not exit_code else "KILLED" if exit_code > 128 else "FAILED")

    def _send_metrics(self, metrics: Mapping[str, float]) -> None:
        self.logger.log_metrics(metrics, self.steps())

    def _send_picture(self, path: Path) -> None:
        self.logger.log_artifact(str(path))

    def _send_video(self, path: Path) -> None:
        self.logger.log_artifact(str(path), "videos")


TRACKERS: dict[str, type[WandB] | type[MLflow]] = {"wandb": WandB, "mlflow": MLflow}


def require(name: str) -> None:
    """Refuse a tracker that is not installed, before a run folder is made.

    Raises:
        UsageError: if its package is missing.
    """
    if find_spec(name) is None:
        raise UsageError(
            f"--track {name} needs the package {name}, which is not installed; run {install_command(name)}"
        )


def start(name: str, run: Path, settings: Mapping[str, Any], steps: Callable[[], int]) -> Tracker:
    """Open a new or resumed run at a tracker.

    Args:
        name: key of TRACKERS.
        run: run folder.
        settings: seed, script, its options and the hyperparameters, by name.
        steps: function that returns the agent steps so far.

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


def _identity(run: Path) -> str:
    """Return a name of the run that is the same when it is resumed, and differs from that of a run elsewhere."""
    first = read_params(run)["sessions"][0]
    start = {name: first[name] for name in ("argv", "started", "machine")}
    return f"{run.name}-{hashlib.sha256(json.dumps(start, sort_keys=True).encode()).hexdigest()[:8]}"


def _folder(run: Path) -> Path:
    folder = run.parent / FOLDER
    folder.mkdir(exist_ok=True)
    return folder
