"""Trackers get what TensorBoard gets, and cannot change or end the training."""

import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from lib.run import tracking
from running import SMALL_PPO, assignments, checkpoint_of, differences, folder, result_of, run, scalars_of

PPO = Path("distributed/01_ppo.py")
SMALL = (*SMALL_PPO, *assignments("checkpoint_every=320", "stop_reward=-1", "max_steps=640"))
OPTIONS = ("--env-id", "fakes:Numbers-v0", *SMALL, "--quiet", "--record-every", 40, "--evaluate-every", 320)


@pytest.fixture
def recorded(monkeypatch):
    """What stand-ins of wandb and mlflow have been given."""
    given = SimpleNamespace(rows=[], files=[], closed=[], config={}, names=[])

    def log(row, step=None):
        torch.rand(1)  # a tracker may draw random numbers
        given.rows.append({"agent_steps": step, **row})

    wandb = Mock(
        init=lambda **options: given.config.update(options["config"]) or given.names.append(options["id"]),
        log=lambda row: given.files.append(row) if {"video", "curve"} & row.keys() else log(row),
        finish=given.closed.append,
    )
    mlflow = Mock(
        search_runs=lambda **options: [],
        start_run=lambda run_id, run_name, tags: given.names.append(tags["run"]),
        log_params=given.config.update,
        log_metrics=log,
        log_artifact=given.files.append,
        end_run=lambda status: given.closed.append(0 if status == "FINISHED" else status),
    )
    for name, module in (("wandb", wandb), ("mlflow", mlflow)):
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    return given


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Folder of a run without a tracker."""
    runs_dir = tmp_path_factory.mktemp("plain")
    assert run(PPO, *OPTIONS, "--runs-dir", runs_dir).returncode == 0
    return folder(runs_dir)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_gets_scalars_parameters_curve_videos_and_the_final_evaluation(
    answer, tmp_path, plain, recorded, name
):
    answer(PPO, *OPTIONS, "--track", name, "--runs-dir", tmp_path)
    path = folder(tmp_path)
    found = differences(checkpoint_of(path), checkpoint_of(plain))
    assert [difference for difference in found if not difference.endswith("/seconds")] == []
    scalars = scalars_of(path)
    for tag in ("train/loss", "evaluation/mean"):
        assert {row["agent_steps"]: row[tag] for row in recorded.rows if tag in row} == pytest.approx(
            dict(scalars[tag])
        )
    returns = [row["episodes/reward"] for row in recorded.rows if "episodes/reward" in row]
    assert returns == pytest.approx([value for _, value in scalars["episodes/reward"]])  # several end in one rollout
    assert max(row["agent_steps"] for row in recorded.rows if "episodes/reward" in row) > len(returns)
    assert recorded.rows[-1]["result/evaluation_mean"] == result_of(path)["evaluation"]["mean"]
    assert [recorded.config[field] for field in ("seed", "script", "envs")] == [1, "01_ppo", 4]
    assert path.name[-60:] in recorded.names[-1]
    assert len(recorded.files) == 1 + len(list((path / "videos").iterdir())) > 1
    assert recorded.closed == [0]


def test_a_tracker_that_fails_is_left_alone(caplog, tmp_path):
    call = Mock(side_effect=ConnectionError("no route"))
    broken = tracking.Tracker("broken", lambda: 0, call, call, call)
    broken.finish(tmp_path, {"stopped": "solved"})
    broken.attempt(broken.upload, tmp_path / "video.webm")
    assert call.call_count == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "no route" in caplog.text
