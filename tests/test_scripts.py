"""Short end-to-end runs of every script of chapters 8 and 9, and the ways in which a run ends."""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from unittest.mock import Mock

import cv2
import pytest
import torch

from lib.run import checkpoint, curve, evaluation
from running import (
    BASELINE,
    PARALLEL,
    PROJECT,
    SMALL_DQN,
    SMALL_PPO,
    assignments,
    checkpoint_of,
    differences,
    episodes_of,
    folder,
    result_of,
    resuming,
    run,
    scalars_of,
    start,
    two_at_a_time,
    wait_for,
)

pytestmark = pytest.mark.slow

PPO = Path("distributed/01_ppo.py")
SCRIPTS = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("chapter0*/[0-9][0-9]_*.py"))
LEARN_EVERY = 2
STEPS_PER_ITERATION = {  # LEARN_EVERY in all other scripts
    "02_n_envs": 3,
    "03_parallel": 4,
    "04_wrappers": 3,
    "05_native_envs": 3,
    "06_fast_learner": 3,
    "07_pong_in_minutes": 12,
}
OWN_OPTIONS = {"03_parallel": ("--replay-ratio", 8), "07_pong_in_minutes": ("--envs", 12)}

# Images, and 24 steps after the warm-up: the warm-up and the end are multiples of every script's steps per iteration.
WARM_UP, LAST = 120, 132
IMAGES = (
    *("--env-id", "fakes:Catch-v0", "--stop-after", LAST),
    *assignments(f"replay_initial={WARM_UP}", "replay_size=2000", "batch_size=8", "target_net_sync=12"),
    *("--set", f"learn_every={LEARN_EVERY}"),
)
# Vectors, for the tests in which the network does not matter: an update takes 1 ms instead of 30 ms.
VECTORS = ("--env-id", "fakes:Chain-v0")


def small(script: Path) -> list[str]:
    return SMALL_PPO if script == PPO else SMALL_DQN


@pytest.fixture(scope="module")
def short_runs(tmp_path_factory):
    """A run of 12 learning steps on images for each script: {script: (process, run folder)}."""

    def short_run(script):
        runs_dir = tmp_path_factory.mktemp(script.stem)
        process = run(script, *IMAGES, *OWN_OPTIONS.get(script.stem, ()), "--seed", 3, "--runs-dir", runs_dir)
        return process, folder(runs_dir)

    return two_at_a_time(tmp_path_factory, short_run, SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_runs_from_inside_its_folder(short_runs, script):
    process, path = short_runs[script]
    steps = STEPS_PER_ITERATION.get(script.stem, LEARN_EVERY)
    assert process.returncode == 0, process.stderr
    episode = r"(Episode 1: reward=-?\d, steps=6, speed=\d+\.\d f/s|Episodes 1 to \d+: best=-?\d, mean=.*)"
    assert re.search(rf"^{episode}, elapsed=0:00:\d\d$", process.stdout, re.M)
    assert re.search(rf"{WARM_UP + steps} steps, \d+ steps/s", process.stdout)  # the warm-up
    assert f"Stopped at step {LAST}: step limit." in process.stdout
    assert process.stderr == ""  # no bar in a file
    assert re.search(rf"-fakes-Catch-v0-{script.stem}(=\d)?-.*batch_size=8-learn_every=2-seed3$", path.name)
    assert {"params.json", "result.json", "episodes.csv", "checkpoints"} <= set(os.listdir(path))
    result = json.loads((path / "result.json").read_text())
    iterations = (LAST - WARM_UP) // steps
    assert (result["stopped"], result["steps"], result["iterations"]) == ("step limit", LAST, iterations)
    assert episodes_of(path)[1][0::2] == ["1", "6"]
    assert checkpoint_of(path)["source"]["steps_done"] == LAST


@pytest.mark.parametrize(
    ("parent", "script"),
    [
        ("chapter09/01_baseline.py", "chapter09/00_slow_grads.py"),
        ("chapter09/02_n_envs.py", "chapter09/04_wrappers.py"),
    ],
)
def test_a_script_that_keeps_results_exactly_equals_its_parent(short_runs, parent, script):
    _, parent_folder = short_runs[Path(parent)]
    _, path = short_runs[Path(script)]
    assert differences(checkpoint_of(parent_folder), checkpoint_of(path)) == []


def test_one_step_returns_equal_basic_dqn(short_runs, tmp_path):
    basic, n_steps = Path("chapter08/01_dqn_basic.py"), Path("chapter08/02_dqn_n_steps.py")
    run(n_steps, *IMAGES, "--seed", 3, "-n", 1, "--quiet", "--runs-dir", tmp_path)
    expected = checkpoint_of(short_runs[basic][1])
    assert differences(expected, checkpoint_of(folder(tmp_path))) == []
    assert differences(expected, checkpoint_of(short_runs[n_steps][1])) != []


def test_from_another_folder_a_solved_run_exits_with_zero(tmp_path):
    options = (*VECTORS, *SMALL_DQN, "--set", "stop_reward=-2", "--quiet", "--runs-dir", "relative")
    process = run(BASELINE, *options, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert re.search(r"Game solved in 0:00:\d\d, after 1\d\d episodes and 1 iterations!", process.stdout)
    assert "Episode" not in process.stdout
    assert process.stderr == ""
    assert "-01_baseline-" in folder(tmp_path / "relative").name


@pytest.mark.parametrize(
    ("script", "options", "last"),
    [  # 100 iterations at least, because chapter 9's scripts log every 100 iterations
        (BASELINE, assignments("replay_initial=60", "batch_size=2"), 192),
        pytest.param(
            PARALLEL,
            [*assignments("replay_initial=60", "batch_size=2"), "--replay-ratio", 8],
            192,
            marks=pytest.mark.long,
        ),
        (PPO, SMALL_PPO, 256),
    ],
)
def test_evaluation_and_videos_do_not_change_a_run(tmp_path, script, options, last):
    game = ("--env-id", "fakes:Coded-v0", *options, "--seed", 3, "--quiet", "--stop-after", last)
    for name, more in (("plain", ()), ("watched", ("--evaluate-every", 48, "--record-every", 10))):
        process = run(script, *game, *more, "--runs-dir", tmp_path / name)
        assert process.returncode == 0, process.stderr
    plain, watched = (folder(tmp_path / name) for name in ("plain", "watched"))
    assert differences(checkpoint_of(plain), checkpoint_of(watched)) == ["/evaluations"]
    assert episodes_of(plain) == episodes_of(watched)
    scalars = scalars_of(watched)
    steps, means = zip(*scalars["evaluation/mean"], strict=True)
    assert len(steps) > 1
    assert [step // 48 for step in steps] == sorted({step // 48 for step in steps})
    assert steps[-1] >= last // 48 * 48
    assert all(0.0 < mean < 500.0 for mean in means)
    check_videos(watched, every=10)
    assert not (plain / "videos").exists()
    scalars = {tag: values for tag, values in scalars.items() if not tag.startswith("evaluation/")}
    assert repr(scalars) == repr(scalars_of(plain))  # repr, because nan != nan


def check_videos(path, every):
    """Check that episodes.csv and the video files agree on which episodes were recorded."""
    with (path / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 3 * every
    recorded = [row for row in rows if row["video"]]
    assert [int(row["episode"]) for row in recorded] == list(range(every, len(rows) + 1, every))
    for row in recorded:
        assert row["video"] == f"videos/episode-{row['episode']}-return-{row['return']}.webm"
        video = cv2.VideoCapture(str(path / row["video"]))
        assert video.get(cv2.CAP_PROP_FRAME_COUNT) == int(row["length"]) + 1
        assert video.get(cv2.CAP_PROP_FPS) == 20
    assert {f"videos/{file.name}" for file in (path / "videos").iterdir()} == {row["video"] for row in recorded}


def test_the_time_limit_ends_a_run_that_can_be_resumed(tmp_path):
    process = run(BASELINE, *VECTORS, *SMALL_DQN, "--time-limit", 1, "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    assert re.search(r"Stopped at step [\d,]+: time limit\.", process.stdout)
    [resume] = re.findall(r"^\S+ \S*01_baseline\.py (--resume .*)  # ", process.stdout, re.M)
    assert (folder(tmp_path) / "curve.png").exists()
    assert run(BASELINE, *shlex.split(resume), "--time-limit", 1, "--quiet").returncode == 0


def test_the_replay_ratio_has_to_divide_the_batch(refused):
    message = refused(PARALLEL, "--replay-ratio", 5)
    for fact in ("--replay-ratio 5", "128", "1, 2, 4, 8, 16, 32, 64, 128"):
        assert fact in message


@pytest.mark.parametrize("script", [BASELINE, Path("chapter09/05_native_envs.py"), PPO], ids=str)
def test_a_solved_run_ends_with_an_evaluation_and_a_picture_and_learns_no_more_if_resumed(tmp_path, script):
    process = run(script, *VECTORS, *small(script), "--set", "stop_reward=-2", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    solved = re.search(r"^Game solved in 0:0\d:\d\d, after 1\d\d episodes.*$", process.stdout, re.M)
    assert solved
    assert re.search(r"^Evaluation: mean return -?\d\.\d\d, .* over 20 episodes", process.stdout, re.M)
    path = folder(tmp_path)
    before, result = checkpoint_of(path), result_of(path)
    assert len(result["evaluation"]["returns"]) == result["evaluation"]["episodes"] == 20
    assert set(result["evaluation"]["returns"]) <= {0.0, 1.0}
    (path / "curve.png").unlink()

    resumed = run(script, *resuming(path), "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert "No update was made in this process." in resumed.stdout
    assert solved[0] in resumed.stdout
    assert not differences(before, checkpoint_of(path))
    assert result_of(path) == result
    assert (path / "curve.png").exists()


def test_a_run_that_ends_at_its_own_step_limit_is_evaluated_too(ends, refused, tmp_path):
    options = (*VECTORS, *small(PPO), *assignments("stop_reward=none", "max_steps=640"), "--quiet")
    code, output, errors = ends(PPO, *options, "--runs-dir", tmp_path)
    assert code == 0, errors
    assert re.search(r"^Evaluation: mean return -?\d\.\d\d, .* over 20 episodes", output, re.M)
    path = folder(tmp_path)
    result = result_of(path)
    assert result["evaluation"]["episodes"] == 20
    without_evaluation = {name: value for name, value in result.items() if name != "evaluation"}
    (path / "result.json").write_text(json.dumps(without_evaluation))  # as if it was interrupted
    before = checkpoint_of(path)
    assert ends(PPO, *resuming(path), "--quiet")[0] == 0
    assert result_of(path) == result
    assert not differences(before, checkpoint_of(path))
    assert "would go on at step 640" in refused(PPO, *resuming(path))


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """Folder of a solved run of 01_baseline."""
    runs_dir = tmp_path_factory.mktemp("solved")
    options = (*VECTORS, *SMALL_DQN, "--set", "stop_reward=-2", "--quiet")
    assert run(BASELINE, *options, "--runs-dir", runs_dir).returncode == 0
    return folder(runs_dir)


def test_a_solved_run_keeps_its_result_if_what_comes_after_it_is_stopped(solved, tmp_path, ends, monkeypatch):
    path = tmp_path / solved.name
    shutil.copytree(solved, path)
    result = result_of(path)
    assert result["evaluation"]

    monkeypatch.setattr(curve, "draw_curve", Mock(side_effect=KeyboardInterrupt))
    code, output, _ = ends(BASELINE, *resuming(path), "--quiet")
    assert code == 0
    assert "The learning curve was stopped; the run is saved." in output
    assert result_of(path) | {"evaluation": None} == result | {"evaluation": None}
    assert result_of(path)["evaluation"]["returns"] == result["evaluation"]["returns"]


def test_a_solved_run_without_its_evaluation_is_evaluated_whatever_its_step_limit(solved, tmp_path, ends, monkeypatch):
    path = tmp_path / solved.name
    shutil.copytree(solved, path)
    result = result_of(path)
    (path / "result.json").unlink()  # as if it was killed before its result
    at_its_step = (*resuming(path), "--stop-after", result["steps"], "--quiet")
    with monkeypatch.context() as patched:
        patched.setattr(evaluation, "evaluate", Mock(side_effect=KeyboardInterrupt))
        code, _, errors = ends(BASELINE, *at_its_step)
    assert code == 0, errors
    assert ends(BASELINE, *at_its_step)[0] == 0
    assert result_of(path)["evaluation"]["returns"] == result["evaluation"]["returns"]


@pytest.mark.parametrize(
    "script",
    [BASELINE, pytest.param(PARALLEL, marks=pytest.mark.long), Path("chapter09/05_native_envs.py"), PPO],
    ids=str,
)
def test_a_run_killed_before_its_result_ends_with_one_if_it_is_resumed_at_its_step_limit(tmp_path, ends, script):
    options = (*VECTORS, *small(script), "--stop-after", 320, "--quiet")
    assert run(script, *options, "--runs-dir", tmp_path).returncode == 0
    path = folder(tmp_path)
    before, result = checkpoint_of(path), result_of(path)
    (path / "result.json").unlink()
    again = (*resuming(path), "--stop-after", 320, "--quiet")
    assert ends(script, *again)[0] == 0
    same = ("stopped", "steps", "iterations", "episodes", "mean_100", "best_mean")
    assert [result_of(path)[name] for name in same] == [result[name] for name in same]
    assert not differences(before, checkpoint_of(path))
    assert "give a larger --stop-after" in ends(script, *again)[2]


FAILING = (*assignments("replay_initial=100", "replay_size=2000"), "--quiet")


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("die", 7)])
def test_an_environment_that_fails_leaves_the_last_checkpoint(tmp_path, how, code):
    process = run(BASELINE, "--env-id", f"fakes:Failing-{how}-v0", *FAILING, "--runs-dir", tmp_path)
    assert process.returncode == code
    assert ("RuntimeError: the paddle broke" in process.stderr) == (how == "raise")
    assert ("\nTo continue: " in process.stderr) == (how == "raise")
    assert checkpoint_of(folder(tmp_path))["source"]["steps_done"] == 101


def test_a_signal_ends_a_run_whose_environment_hangs(tmp_path):
    process = start(BASELINE, "--env-id", "fakes:Failing-hang-v0", *FAILING, "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
    time.sleep(1)  # the step after this checkpoint hangs
    process.send_signal(signal.SIGTERM)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert re.search(r"error: a call of the environment did not return after SIGTERM\. .*fakes\.py \(step\)", errors)
    assert "\nRaised by fakes:Failing-hang-v0 (episode" in errors
    assert errors.splitlines()[-1].startswith("To continue: ")


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_run_whose_environment_hangs(tmp_path):
    process = start(BASELINE, "--env-id", "fakes:Failing-hang-v0", *FAILING, "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
    time.sleep(1)  # the step after this checkpoint hangs
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert checkpoint_of(folder(tmp_path))["source"]["steps_done"] == 101


def test_a_run_in_use_is_refused(tmp_path):
    process = start(BASELINE, *VECTORS, *SMALL_DQN, "--quiet", "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
    second = run(BASELINE, *resuming(folder(tmp_path)))
    process.kill()
    process.communicate()
    assert second.returncode == 2
    assert f"process {process.pid}" in second.stderr


DIVERGING = ("--set", "learning_rate=1e30", "--quiet", "--runs-dir")


@pytest.mark.parametrize("name", ["chapter09/01_baseline", "chapter08/05_dqn_prio_replay", "chapter08/08_dqn_rainbow"])
def test_a_loss_that_is_not_finite_ends_the_run_with_the_last_good_state(tmp_path, name):
    process = run(Path(f"{name}.py"), *IMAGES[:2], *SMALL_DQN, *DIVERGING, tmp_path)
    assert process.returncode == 1
    assert "loss not finite" in process.stdout
    newest = checkpoint.newest(folder(tmp_path) / "checkpoints")
    assert all(bool(torch.isfinite(weights).all()) for weights in newest["net"].values())
    assert "--resume" not in process.stdout  # the same would happen again


def test_a_first_update_that_is_not_finite_leaves_no_checkpoint(tmp_path):
    small_rollout = assignments("envs=2", "rollout=16", "minibatch=16")
    process = run(PPO, *small_rollout, "--env-id", "CartPole-v1", *DIVERGING, tmp_path)
    assert process.returncode == 1
    assert "loss not finite" in process.stdout
    assert "not saved; try a new run with a smaller learning_rate" in process.stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--game", "chess"], 2, "unknown game 'chess'"),
        (["--env-id", "Pendulum-v1"], 2, "takes this space"),
        (["--set", "replay_size=10000000000"], 2, "GB are free; --set replay_size="),
        (["--runs-dir", "/proc/runs"], 1, "/proc/runs"),
    ],
)
def test_an_error_message_has_one_or_two_lines(refused, options, code, message):
    stderr = refused(BASELINE, *options, code=code)
    assert message in stderr
    assert stderr.startswith("error: ")
    assert len(stderr.strip().splitlines()) <= 2
