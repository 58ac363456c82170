"""Experiment trackers: TensorBoard's scalars, under the same tags, at Weights & Biases or MLflow, by agent steps."""

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from lib.errors import UsageError, first_line
from lib.run.evaluation import SPREAD
from lib.run.folder import Json, read_params
from lib.run.stopping import EXIT_CODES
from lib.system.log import install_command
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

PROJECT_NAME = "pong-ladder"  # project or experiment at the tracker


@dataclasses.dataclass
class Tracker:
    """A run at a tracker. An error of the tracker is logged and ends the tracking, not the training."""

    name: str
    steps: Callable[[], int]  # returns the agent steps so far
    write: Callable[[dict[str, float], int], object]  # sends scalars of an agent step
    upload: Callable[[Path], object]  # sends a picture or a video
    close: Callable[[int], object]  # ends the run with an exit code
    scalars: dict[str, float] = dataclasses.field(default_factory=dict)  # to send next, by their tags
    has_failed: bool = False

    def send_scalars(self) -> None:
        """Send the scalars that were written since the last call."""
        scalars, self.scalars = self.scalars, {}
        self.attempt(self.write, scalars, self.steps())

    def finish(self, run: Path, result: Json) -> None:
        """Send the last scalars, the final evaluation and the learning curve, and close the run at the tracker."""
        evaluation = result.get("evaluation", {})
        self.scalars |= {f"result/evaluation_{name}": evaluation[name] for name in SPREAD if name in evaluation}
        self.send_scalars()
        if (run / "curve.png").exists():
            self.attempt(self.upload, run / "curve.png")
        self.attempt(self.close, EXIT_CODES[result["stopped"]])

    def attempt(self, call: Callable[..., object], *arguments: object) -> None:
        """Call one of the functions above, unless one has failed before."""
        if self.has_failed:
            return
        try:
            with undisturbed():
                call(*arguments)
        except Exception as error:  # noqa: BLE001 - the tracker is not our code, and its server may be anywhere
            log.warning("%s failed: %s. Tracking ends; the run and its files are not affected.", self.name, error)
            self.has_failed = True


def track_by_wandb(run: Path, settings: Mapping[str, object], steps: Callable[[], int]) -> Tracker:
    """Open a run at Weights & Biases. wandb's own variables apply, such as WANDB_MODE=offline."""
    import wandb

    def write(scalars: Mapping[str, object], step: int) -> None:
        wandb.log({**scalars, "agent_steps": step})  # wandb's own steps would keep only the last of several calls

    def upload(path: Path) -> None:
        if path.suffix == ".webm":
            write({"video": wandb.Video(str(path), format="webm")}, steps())
        else:
            write({path.stem: wandb.Image(str(path))}, steps())

    os.environ.setdefault("WANDB_PROJECT", PROJECT_NAME)
    quiet = wandb.Settings(console="off")
    wandb.init(id=_id(run), name=run.name, resume="allow", config=dict(settings), settings=quiet)
    wandb.define_metric("*", step_metric="agent_steps")
    return Tracker("wandb", steps, write, upload, wandb.finish)


def track_by_mlflow(run: Path, settings: Mapping[str, object], steps: Callable[[], int]) -> Tracker:
    """Open a run at MLflow. mlflow's own variables apply, such as MLFLOW_TRACKING_URI."""
    import mlflow

    def close(exit_code: int) -> None:
        mlflow.end_run("FINISHED" if not exit_code else "KILLED" if exit_code > 128 else "FAILED")

    mlflow.set_experiment(os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT_NAME))
    earlier = mlflow.search_runs(filter_string=f"tags.run = '{_id(run)}'", output_format="list", max_results=1)
    mlflow.start_run(earlier[0].info.run_id if earlier else None, run_name=run.name, tags={"run": _id(run)})
    mlflow.log_params(dict(settings))
    return Tracker("mlflow", steps, mlflow.log_metrics, mlflow.log_artifact, close)


def _id(run: Path) -> str:
    """Return a name of the run that is the same when it is resumed: its folder, and the second in which it began."""
    started = read_params(run)["sessions"][0]["started"]
    return f"{run.name}-{re.sub('[^0-9]', '', started)}"[-128:]


def start(name: str, run: Path, settings: Mapping[str, object], steps: Callable[[], int]) -> Tracker:
    """Open a run at one of arguments.TRACKERS. If it is not installed, does not answer or refuses: UsageError."""
    if find_spec(name) is None:
        raise UsageError(f"--track {name} needs {name}, which is not installed; run {install_command(name)}")
    try:
        with undisturbed():
            return {"wandb": track_by_wandb, "mlflow": track_by_mlflow}[name](run, settings, steps)
    except Exception as error:  # the tracker is not our code, and its server may be anywhere
        offline = "; WANDB_MODE=offline needs no account" if name == "wandb" else ""
        raise UsageError(f"--track {name} failed at the start: {first_line(error)}{offline}") from error
