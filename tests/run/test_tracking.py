"""Trackers in offline mode: they get what TensorBoard gets, and cannot change or end the training."""

import json
import struct
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from lib.errors import UsageError
from lib.run import tracking
from running import (
    ENVIRONMENT,
    PROJECT,
    assignments,
    checkpoint_of,
    contents,
    differences,
    folder,
    resuming,
    run,
    scalars_of,
)

PPO = Path("distributed/01_ppo.py")
SMALL = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=640", "stop_reward=-1", "max_steps=2560")
OPTIONS = (
    *("--env-id", "fakes:Shown-v0", *SMALL, "--quiet"),
    *("--record-every", 40, "--evaluate-every", 640),
)


def train(runs_dir, *options, **variables):
    process = run(PPO, *OPTIONS, "--runs-dir", runs_dir, *options, env=ENVIRONMENT | variables)
    assert process.returncode == 0, process.stderr
    [path] = [path for path in runs_dir.iterdir() if path.name != tracking.FOLDER]
    return path, process.stderr


@pytest.fixture(scope="module")
def untracked(tmp_path_factory):
    return train(tmp_path_factory.mktemp("untracked"))[0]


def assert_the_same_run(tracked, untracked):
    found = differences(checkpoint_of(tracked), checkpoint_of(untracked))
    assert [name for name in found if not name.endswith("/seconds")] == []


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_gets_scalars_parameters_curve_videos_and_the_final_evaluation(untracked, tmp_path):
    path, _ = train(tmp_path, "--track", "mlflow")
    assert_the_same_run(path, untracked)
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / tracking.FOLDER / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(tracking.PROJECT_NAME)
    [tracked] = client.search_runs([experiment.experiment_id])
    assert (tracked.info.run_name, tracked.info.status) == (path.name, "FINISHED")
    result, scalars = json.loads((path / "result.json").read_text()), scalars_of(path)
    assert set(scalars) <= set(tracked.data.metrics)
    for tag in ("train/loss", "evaluation/mean"):
        history = {metric.step: metric.value for metric in client.get_metric_history(tracked.info.run_id, tag)}
        assert history == pytest.approx(dict(scalars[tag]))
    assert tracked.data.metrics["end/mean_100"] == result["mean_100"]
    assert tracked.data.metrics["end/evaluation_mean"] == result["evaluation"]["mean"]
    assert [tracked.data.params[name] for name in ("seed", "script", "envs")] == ["1", "01_ppo", "4"]
    artifacts = {Path(entry.path).name for entry in client.list_artifacts(tracked.info.run_id)}
    assert artifacts == {"curve.png", "videos"}
    videos = {Path(entry.path).name for entry in client.list_artifacts(tracked.info.run_id, "videos")}
    assert videos == {video.name for video in (path / "videos").iterdir()}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_gets_scalars_parameters_curve_videos_and_the_final_evaluation(untracked, tmp_path):
    path, _ = train(tmp_path, "--track", "wandb", WANDB_MODE="offline", WANDB_SILENT="true")
    assert_the_same_run(path, untracked)
    [offline] = (tmp_path / tracking.FOLDER / "wandb").glob("offline-run-*")
    config, history, summary = read_offline(offline)
    assert (config["seed"], config["script"], config["envs"]) == (1, "01_ppo", 4)
    scalars = scalars_of(path)
    assert set(scalars) <= set(summary)
    losses = {row["agent_steps"]: row["train/loss"] for row in history if "train/loss" in row}
    assert losses == pytest.approx(dict(scalars["train/loss"]))
    returns = [row["episodes/reward"] for row in history if "episodes/reward" in row]
    assert returns == [value for _, value in scalars["episodes/reward"]]  # several end in one rollout
    result = json.loads((path / "result.json").read_text())
    assert summary["end/evaluation_mean"] == result["evaluation"]["mean"]
    media = offline / "files" / "media"
    assert len(list(media.rglob("*.png"))) == 1
    assert len(list(media.rglob("*.webm"))) == len(list((path / "videos").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_a_resumed_run_continues_the_same_run_at_mlflow(tmp_path):
    path, _ = train(tmp_path, "--track", "mlflow", "--stop-after", 640)
    process = run(PPO, *resuming(path), "--quiet", "--track", "mlflow", "--stop-after", 1280)
    assert process.returncode == 0, process.stderr
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{tmp_path / tracking.FOLDER / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(tracking.PROJECT_NAME)
    [tracked] = client.search_runs([experiment.experiment_id])
    assert tracked.data.metrics["end/mean_100"] == json.loads((path / "result.json").read_text())["mean_100"]


def test_a_refused_tracker_changes_no_run(ends, refused, monkeypatch, tmp_path):
    options = (*OPTIONS[:2], *SMALL, "--quiet")
    assert ends(PPO, *options, "--stop-after", 640, "--runs-dir", tmp_path)[0] == 0
    path = folder(tmp_path)
    before = contents(path)

    def refuse(*arguments):
        raise ValueError("no account")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", refuse)
    for start in ((*resuming(path), "--quiet"), (*options, "--runs-dir", tmp_path)):
        assert "no account" in refused(PPO, *start, "--track", "wandb", "--stop-after", 1280)
        assert folder(tmp_path) == path  # a new run leaves no folder
    assert contents(path) == before


def read_offline(folder):
    """Return configuration, history and summary from the log of an offline run of wandb."""
    from wandb.proto import wandb_internal_pb2

    [file] = folder.glob("run-*.wandb")
    config, history = {}, []
    for data in records(file.read_bytes()):
        record = wandb_internal_pb2.Record()  # type: ignore[attr-defined,unused-ignore]
        record.ParseFromString(data)
        for item in record.run.config.update:
            config[item.key] = json.loads(item.value_json)
        if record.history.item:
            row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            history.append(row)
    summary = {}
    for row in history:
        summary |= row
    return config, history, summary


def records(log, block=32768):
    """Yield the records of a log in LevelDB's format, after the seven bytes of wandb's header."""
    position, parts = 7, []
    while position < len(log):
        if block - position % block < 7:  # the end of a block is padded
            position += block - position % block
        _, length, kind = struct.unpack_from("<IHB", log, position)
        parts.append(log[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):  # a whole record, or its last part
            yield b"".join(parts)
            parts = []


class Broken(tracking.Tracker):
    """A tracker whose server stops to answer."""

    calls, closed_with = 0, None

    def _close(self, exit_code):
        Broken.closed_with = exit_code

    def _send_metrics(self, metrics):
        Broken.calls += 1
        raise ConnectionError("no route")

    def _send_picture(self, path):
        raise AssertionError("called after a failure")

    _send_video = _send_picture


def test_a_tracker_that_fails_is_left_alone(caplog, tmp_path):
    picture = tmp_path / "curve.png"
    picture.touch()
    Broken.calls = 0
    broken = Broken("broken", lambda: 0, SimpleNamespace(close=None), None)
    result: dict[str, object] = {"mean_100": 1.0, "best_mean": 1.0, "seconds": 1.0, "stopped": "solved"}
    result["this_process"] = {"steps_per_second": 1.0}
    broken.finish(result, picture)
    broken.video(tmp_path)
    assert (Broken.calls, Broken.closed_with) == (1, 0)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no route" in caplog.text


def test_a_missing_package_is_reported(refused, monkeypatch, tmp_path):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    message = refused(PPO, "--track", "mlflow", "--runs-dir", tmp_path)
    assert f"pip install -e '{PROJECT}[mlflow]'" in message
    assert list(tmp_path.iterdir()) == []


def test_a_tracker_that_refuses_ends_the_start(monkeypatch, tmp_path):
    def refuse(*arguments):
        raise ValueError("no account\nand more")

    monkeypatch.setitem(tracking.TRACKERS, "wandb", refuse)
    with pytest.raises(UsageError, match="no account; WANDB_MODE=offline"):
        tracking.start("wandb", tmp_path, {}, lambda: 0)
