"""Every script, shortened, as a person would run it: a process of its own, started from inside its folder."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib.run import checkpoint
from running import (
    BASELINE,
    CATCH,
    ENVIRONMENT,
    PARALLEL,
    PROJECT,
    ROUNDS,
    assignments,
    checkpoint_of,
    differences,
    episodes_of,
    folder,
    run,
    scalars_of,
    start,
    two_at_a_time,
    wait_for,
)

SCRIPTS = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("chapter0*/[0-9][0-9]_*.py"))
STEPS = {  # an iteration, where it is not one
    "02_n_envs": 3,
    "03_parallel": 4,
    "04_wrappers": 3,
    "05_native_envs": 3,
    "06_fast_learner": 3,
    "07_pong_in_minutes": 12,
}
KNOBS = {"03_parallel": ("--replay-ratio", 8), "07_pong_in_minutes": ("--envs", 12)}


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """Every script's run of 60 learner iterations on Catch: (process, run folder) by script."""

    def short(script):
        runs_dir = tmp_path_factory.mktemp(script.stem)
        options = (*CATCH, *ROUNDS, *KNOBS.get(script.stem, ()), "--seed", 3, "--runs-dir", runs_dir)
        process = run(script, *options)
        return process, folder(runs_dir)

    return two_at_a_time(tmp_path_factory, short, SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_a_script_runs_from_inside_its_folder(catch, script):
    process, path = catch[script]
    steps = STEPS.get(script.stem, 1)
    assert process.returncode == 0, process.stderr
    assert re.search(r"^Episode 12: reward=-?\d+, steps=6, speed=\d+\.\d f/s, elapsed=0:00:\d\d$", process.stdout, re.M)
    warm_up = rf"^Replay warm-up: {720 + steps} steps in \d+\.\d s, \d+ steps/s\.\nLearning"
    assert re.search(warm_up, process.stdout, re.M)
    assert "Stopped at step 780: step limit." in process.stdout
    assert "Replay warm-up" in process.stderr
    assert "Training" in process.stderr
    assert path.name.endswith(f"-fakes-Catch-v0-{script.stem}")
    assert {"params.json", "result.json", "episodes.csv", "checkpoints"} <= set(os.listdir(path))
    result = json.loads((path / "result.json").read_text())
    assert (result["stopped"], result["steps"], result["iterations"]) == ("step limit", 780, 60 // steps)
    assert episodes_of(path)[1][0::2] == ["1", "6"]
    assert checkpoint_of(path)["source"]["steps_done"] == 780


def test_rungs_that_keep_exactly_the_same_numbers_do(catch):
    contents = {script.stem: checkpoint_of(path) for script, (_, path) in catch.items()}
    for parent, exact in (("01_baseline", "00_slow_grads"), ("02_n_envs", "04_wrappers")):
        assert differences(contents[parent], contents[exact]) == []


def test_returns_of_one_step_are_the_basic_ones(catch, tmp_path):
    basic, n_steps = Path("chapter08/01_dqn_basic.py"), Path("chapter08/02_dqn_n_steps.py")
    run(n_steps, *CATCH, *ROUNDS, "--seed", 3, "-n", 1, "--quiet", "--runs-dir", tmp_path)
    assert differences(checkpoint_of(catch[basic][1]), checkpoint_of(folder(tmp_path))) == []
    assert differences(checkpoint_of(catch[basic][1]), checkpoint_of(catch[n_steps][1])) != []


def test_another_seed_gives_other_numbers(catch, tmp_path):
    run(BASELINE, *CATCH, *ROUNDS, "--seed", 4, "--quiet", "--runs-dir", tmp_path)
    assert any(
        "net" in name for name in differences(checkpoint_of(catch[BASELINE][1]), checkpoint_of(folder(tmp_path)))
    )


def test_from_the_root_a_solved_run_says_so_and_exits_with_zero(tmp_path):
    process = subprocess.run(
        [sys.executable, PROJECT / BASELINE, *CATCH, "--set", "stop_reward=-2", "--quiet", "--runs-dir", "relative"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert process.returncode == 0, process.stderr
    assert re.search(r"Game solved in 0:00:\d\d, after 116 episodes and 1 iterations!", process.stdout)
    assert "Episode" not in process.stdout
    assert process.stderr == ""
    assert folder(tmp_path / "relative").name.endswith("01_baseline")


@pytest.mark.parametrize("script", [BASELINE, PARALLEL, Path("distributed/01_ppo.py")], ids=str)
def test_a_run_that_is_evaluated_and_recorded_is_bit_for_bit_the_one_that_is_not(tmp_path, script):
    own = assignments("envs=4", "rollout=16", "minibatch=32") if script.stem == "01_ppo" else CATCH[2:]
    options = ("--env-id", "fakes:Coded-v0", *own, "--seed", 3, "--quiet", "--stop-after", 800)
    for name, more in (("without", ()), ("with", ("--evaluate-every", 40, "--record-every", 30))):
        process = run(script, *options, *more, "--runs-dir", tmp_path / name)
        assert process.returncode == 0, process.stderr
    without, evaluated = (folder(tmp_path / name) for name in ("without", "with"))
    assert differences(checkpoint_of(without), checkpoint_of(evaluated)) == []
    assert episodes_of(without) == episodes_of(evaluated)
    scalars = scalars_of(evaluated)
    steps, means = zip(*scalars["evaluation/mean"], strict=True)
    assert [step // 40 for step in steps] == sorted({step // 40 for step in steps})
    assert steps[-1] >= 800
    assert all(0.0 < mean < 500.0 for mean in means)
    check_videos(evaluated, 30)
    assert not (without / "videos").exists()
    scalars = {tag: values for tag, values in scalars.items() if not tag.startswith("evaluation/")}
    assert repr(scalars) == repr(scalars_of(without))  # there is a NaN among them


def check_videos(run, every):
    """A run's videos are those that its episodes.csv names, and show as much as it says; TensorBoard has them too."""
    with (run / "episodes.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 3 * every
    recorded = [row for row in rows if row["video"]]
    assert [int(row["episode"]) for row in recorded] == list(range(every, len(rows) + 1, every))
    for row in recorded:
        assert row["video"] == f"videos/episode-{row['episode']}-return-{row['return']}.webm"
        video = cv2.VideoCapture(str(run / row["video"]))
        assert video.get(cv2.CAP_PROP_FRAME_COUNT) == int(row["length"]) + 1
        assert video.get(cv2.CAP_PROP_FPS) == 20
    assert {f"videos/{path.name}" for path in (run / "videos").iterdir()} == {row["video"] for row in recorded}
    accumulator = EventAccumulator(str(run), size_guidance={"images": 0})
    accumulator.Reload()
    shown = accumulator.Images("videos/last")
    assert [image.step for image in shown] == [int(row["step"]) for row in recorded]
    assert all(image.encoded_image_string.startswith(b"GIF89a") for image in shown)


def test_the_time_limit_ends_a_run_that_can_be_resumed(tmp_path):
    process = run(BASELINE, *CATCH, "--time-limit", 1, "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    assert re.search(r"Stopped at step 70\d: time limit\. Go on with --resume ", process.stdout)


def test_the_replay_ratio_has_to_divide_the_batch(refused):
    said = refused(PARALLEL, "--replay-ratio", 5)
    assert "--replay-ratio 5 does not divide the batch of 128; give one of 1, 2, 4, 8, 16, 32, 64, 128" in said


def test_a_solved_run_ends_with_an_evaluation_and_a_picture(tmp_path):
    limits = assignments("stop_reward=-1", "envs=4", "rollout=16", "minibatch=32")
    process = run(Path("distributed/01_ppo.py"), "--env-id", "fakes:Catch-v0", *limits, "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    assert re.search(r"^Game solved in 0:0\d:\d\d, after 1\d\d episodes", process.stdout, re.M)
    assert re.search(r"^Evaluation: mean return -?\d\.\d\d, .* over 20 episodes", process.stdout, re.M)
    path = folder(tmp_path)
    found = json.loads((path / "result.json").read_text())["evaluation"]
    assert len(found["returns"]) == found["episodes"] == 20
    assert set(found["returns"]) <= {-1.0, 1.0}
    assert (path / "curve.png").exists()
    assert list((path / "checkpoints").glob("step-*.pt"))


def test_one_update_is_too_short_to_tell_a_speed(tmp_path):
    small = assignments("envs=4", "rollout=16", "minibatch=32")
    options = ("--env-id", "fakes:Catch-v0", *small, "--stop-after", 100, "--quiet", "--runs-dir", tmp_path)
    process = run(Path("distributed/01_ppo.py"), *options)
    assert process.returncode == 0, process.stderr
    assert "Too short to measure the speed" in process.stdout
    assert "steps/s" not in process.stdout


@pytest.mark.parametrize("name", ["chapter09/01_baseline.py", "chapter09/05_native_envs.py", "distributed/01_ppo.py"])
def test_a_solved_run_that_is_resumed_is_evaluated_and_learns_no_more(tmp_path, name):
    own = assignments("envs=4", "rollout=16", "minibatch=32") if "ppo" in name else CATCH[2:]
    process = run(Path(name), *CATCH[:2], *own, "--set", "stop_reward=-2", "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    path = folder(tmp_path)
    before, result = checkpoint_of(path), json.loads((path / "result.json").read_text())
    (path / "curve.png").unlink()
    resumed = run(Path(name), "--resume", path, "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert "Nothing was learnt in this process." in resumed.stdout
    solved = re.search(r"Game solved in .*", process.stdout)[0]
    assert solved in resumed.stdout
    assert not differences(before, checkpoint_of(path))
    again = json.loads((path / "result.json").read_text())
    for told in ("stopped", "steps", "iterations", "reached", "evaluation"):
        assert again[told] == result[told]
    assert (path / "curve.png").exists()


FAILING = ("--set", "replay_initial=700", "--set", "replay_size=2000", "--quiet")


@pytest.mark.parametrize(("how", "code"), [("raise", 1), ("die", 7)])
def test_an_environment_that_fails_leaves_the_last_checkpoint(tmp_path, how, code):
    process = run(BASELINE, "--env-id", f"fakes:Failing-{how}-v0", *FAILING, "--runs-dir", tmp_path)
    assert process.returncode == code
    assert ("RuntimeError: the paddle broke" in process.stderr) == (how == "raise")
    assert checkpoint_of(folder(tmp_path))["source"]["steps_done"] == 701


def test_a_second_signal_ends_a_run_whose_environment_hangs(tmp_path):
    process = start(BASELINE, "--env-id", "fakes:Failing-hang-v0", *FAILING, "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.pt")), process)
    time.sleep(2)  # by now it hangs, in the first step after this checkpoint
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    assert checkpoint_of(folder(tmp_path))["source"]["steps_done"] == 701


def test_a_run_in_use_is_refused(tmp_path):
    process = start(BASELINE, *CATCH, "--quiet", "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-*.sha256")), process)
    second = run(BASELINE, "--resume", folder(tmp_path))
    process.kill()
    process.communicate()
    assert second.returncode == 2
    assert f"in use by process {process.pid}" in second.stderr


@pytest.mark.parametrize(
    "script", [BASELINE, *map(Path, ("chapter08/05_dqn_prio_replay.py", "chapter08/08_dqn_rainbow.py"))]
)
def test_a_loss_that_is_no_number_ends_the_run_with_the_last_good_state(tmp_path, script):
    process = run(script, *CATCH, "--set", "learning_rate=1e30", "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 1
    assert "loss not finite" in process.stdout
    net = checkpoint.newest(folder(tmp_path) / "checkpoints")["net"]
    assert all(bool(torch.isfinite(weights).all()) for weights in net.values())
    assert "The last good state is in " in process.stdout


def test_a_first_update_that_is_no_number_leaves_nothing_and_says_so(tmp_path):
    small = ("--set", "envs=2", "--set", "rollout=16", "--set", "minibatch=16")
    options = (*small, "--env-id", "CartPole-v1", "--set", "learning_rate=1e30", "--quiet", "--runs-dir", tmp_path)
    process = run(Path("distributed/01_ppo.py"), *options)
    assert process.returncode == 1
    assert "loss not finite" in process.stdout
    assert "Nothing was saved yet; try a new run with a smaller learning_rate." in process.stdout


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--game", "chess"], 2, "unknown game 'chess'"),
        (["--env-id", "Pendulum-v1"], 2, "finitely many actions"),
        (["--set", "replay_size=10000000000"], 2, "GB are free; try --set replay_size="),
        (["--runs-dir", "/proc/runs"], 1, "/proc/runs"),
    ],
)
def test_wrong_use_and_faults_are_one_or_two_lines(refused, options, code, message):
    said = refused(BASELINE, *options, code=code)
    assert message in said
    assert said.startswith("error: ")
    assert len(said.strip().splitlines()) <= 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_names_the_way_out(refused):
    assert "--device cpu" in refused(BASELINE, "--cuda")


def test_help_shows_the_idea_and_every_common_option():
    said = run(BASELINE, "--help").stdout
    for option in ("--cuda", "--device", "--game", "--env-id", "--seed", "--set", "--stop-after", "--time-limit"):
        assert option in said
    assert "textbook DQN" in said
