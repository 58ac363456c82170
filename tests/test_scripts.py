"""Short end-to-end runs of every script of chapters 8 and 9, and the ways in which a run ends."""

import functools
import os
import re
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from lib.run import checkpoint, curve, evaluation
from running import BASELINE, CATCH, DQNS, SMALL_DQN, checkpoint_of, differences, folder, result_of, resuming, run

pytestmark = pytest.mark.slow

# CATCH has 4 iterations of 12 agent steps after the warm-up, which is a multiple of every script's environments.
WARM_UP, STEPS, LAST = 120, 12, 168
IMAGES = (*CATCH, "--stop-after", LAST)
# Vectors, for the tests in which the network does not matter: an update takes 1 ms instead of 30 ms.
VECTORS = ("--env-id", "fakes:Chain-v0")


@pytest.fixture(scope="module")
def short_run(tmp_path_factory):
    """Function that runs a script once on images, and returns (process, run folder)."""

    @functools.cache
    def run_script(script):
        runs_dir = tmp_path_factory.mktemp(script.stem)
        own = ("--envs", 12) if script.stem == "07_pong_in_minutes" else ()
        process = run(script, *IMAGES, *own, "--runs-dir", runs_dir)
        return process, folder(runs_dir)

    return run_script


@pytest.mark.parametrize("script", DQNS, ids=str)
def test_a_script_runs_from_inside_its_folder(short_run, script):
    process, path = short_run(script)
    assert process.returncode == 0, process.stderr
    episode = r"^Episode 1: reward=-?\d, steps=6, speed=\d+\.\d f/s, elapsed=0:00:\d\d$"
    assert re.search(episode, process.stdout, re.M)
    assert re.search(rf"{WARM_UP + STEPS} steps, \d+ steps/s", process.stdout)  # the warm-up
    assert f"Stopped at step {LAST}: step limit." in process.stdout
    assert process.stderr == ""  # no bar in a file
    assert re.search(rf"-fakes-Catch-v0-{script.stem}(=\d)?-.*batch_size=2-learn_every=12.*-seed3$", path.name)
    assert {"params.json", "result.json", "episodes.csv", "checkpoints"} <= set(os.listdir(path))
    result = result_of(path)
    assert (result["stopped"], result["steps"], result["iterations"]) == ("step limit", LAST, 4)
    assert checkpoint_of(path)["source"]["steps_done"] == LAST


def test_a_script_that_keeps_results_exactly_equals_its_parent(short_run):
    for parent, script in (("01_baseline", "00_slow_grads"), ("02_n_envs", "04_wrappers")):
        states = [checkpoint_of(short_run(Path(f"chapter09/{name}.py"))[1]) for name in (parent, script)]
        assert differences(*states) == []


def test_one_step_returns_equal_basic_dqn(short_run, answer, tmp_path):
    basic, n_steps = Path("chapter08/01_dqn_basic.py"), Path("chapter08/02_dqn_n_steps.py")
    answer(n_steps, *IMAGES, "-n", 1, "--quiet", "--runs-dir", tmp_path)
    expected = checkpoint_of(short_run(basic)[1])
    assert differences(expected, checkpoint_of(folder(tmp_path))) == []
    assert differences(expected, checkpoint_of(short_run(n_steps)[1])) != []


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """Folder and output of a solved run of 01_baseline that was started from another folder."""
    cwd = tmp_path_factory.mktemp("solved")
    options = (*VECTORS, *SMALL_DQN, "--set", "stop_reward=-2", "--quiet", "--runs-dir", "relative")
    process = run(BASELINE, *options, cwd=cwd)
    assert (process.returncode, process.stderr) == (0, "")
    return folder(cwd / "relative"), process.stdout


@pytest.fixture
def solved_run(solved, tmp_path):
    """A copy of the folder of `solved`, which a test may change."""
    return Path(shutil.copytree(solved[0], tmp_path / solved[0].name))


def test_a_solved_run_ends_with_an_evaluation_and_learns_no_more_if_resumed(solved, solved_run, answer, monkeypatch):
    output = solved[1]
    line = re.search(r"^Game solved in 0:0\d:\d\d, after 1\d\d episodes and 1 iterations!$", output, re.M)
    assert line
    assert "Episode" not in output  # --quiet
    assert re.search(r"^Evaluation: mean return -?\d\.\d\d, .* over 20 episodes", output, re.M)
    before, result = checkpoint_of(solved_run), result_of(solved_run)
    assert len(result["evaluation"]["returns"]) == result["evaluation"]["episodes"] == 20
    assert set(result["evaluation"]["returns"]) <= {0.0, 1.0}
    assert (solved_run / "curve.png").exists()
    monkeypatch.setattr(curve, "draw_curve", Mock(side_effect=KeyboardInterrupt))
    output = answer(BASELINE, *resuming(solved_run), "--quiet")
    assert "No update was made in this process." in output
    assert line[0] in output
    assert "The learning curve was stopped; the run is saved." in output
    assert not differences(before, checkpoint_of(solved_run))
    assert result_of(solved_run) == result


def test_a_solved_run_without_its_evaluation_is_evaluated_whatever_its_step_limit(solved_run, answer, monkeypatch):
    result = result_of(solved_run)
    (solved_run / "result.json").unlink()  # as if it was killed before its result
    at_its_step = (*resuming(solved_run), "--stop-after", result["steps"], "--quiet")
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "evaluate", Mock(side_effect=KeyboardInterrupt))
        answer(BASELINE, *at_its_step)
    answer(BASELINE, *at_its_step)
    assert result_of(solved_run)["evaluation"]["returns"] == result["evaluation"]["returns"]


def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_state(ends, tmp_path):
    options = (*CATCH[:2], *SMALL_DQN, "--set", "learning_rate=1e30", "--quiet", "--runs-dir", tmp_path)
    code, output, _ = ends(BASELINE, *options)
    assert code == 1
    assert "loss not finite" in output
    newest = checkpoint.newest(folder(tmp_path) / "checkpoints")
    assert all(bool(torch.isfinite(weights).all()) for weights in newest["net"].values())
    assert "--resume" not in output  # the same would happen again
