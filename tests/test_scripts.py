"""Every script, shortened, as a person would run it: a process of its own, started from inside its folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lib import checkpoint
from running import (
    ENVIRONMENT,
    PROJECT,
    assignments,
    checkpoint_of,
    differences,
    episodes_of,
    folder,
    run,
    scalars_of,
    start,
    wait_for,
)

SCRIPTS = sorted(path.relative_to(PROJECT) for path in PROJECT.glob("chapter0*/[0-9][0-9]_*.py"))
BASELINE = Path("chapter09/01_baseline.py")
STEPS = {  # an iteration, where it is not one
    "02_n_envs": 3,
    "03_parallel": 4,
    "04_wrappers": 3,
    "05_native_envs": 3,
    "06_fast_learner": 3,
    "07_pong_in_minutes": 12,
}
KNOBS = {"07_pong_in_minutes": ("--envs", 12)}
CATCH = ("--env-id", "fakes:Catch-v0", "--set", "replay_initial=700", "--set", "replay_size=2000")
ROUNDS = ("--set", "replay_initial=720", "--stop-after", 780)  # multiples of every rung's steps an iteration


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """Every script's run of 60 learner iterations on Catch: (process, run folder) by script."""

    def short(script):
        runs_dir = tmp_path_factory.mktemp(script.stem)
        options = (*CATCH, *ROUNDS, *KNOBS.get(script.stem, ()), "--seed", 3, "--runs-dir", runs_dir)
        process = run(script, *options)
        return process, folder(runs_dir)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(SCRIPTS, pool.map(short, SCRIPTS), strict=True))


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


# The ring wraps around, and the target network is copied, before the run is stopped.
PONG = [
    option
    for assignment in ("replay_initial=1100", "replay_size=1120", "target_net_sync=20", "checkpoint_every=60")
    for option in ("--set", assignment)
]
PONG += ["--seed", "5", "--quiet"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run of 01_baseline on Pong to step 1300."""
    runs_dir = tmp_path_factory.mktemp("uninterrupted")
    assert run(BASELINE, *PONG, "--stop-after", 1300, "--runs-dir", runs_dir).returncode == 0
    return folder(runs_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_and_resumed_run_is_bit_for_bit_the_uninterrupted_one(uninterrupted, tmp_path, number):
    process = start(BASELINE, *PONG, "--stop-after", 1300, "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/checkpoints/step-00000114*.pt.sha256")), process)
    time.sleep(0.3)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number, stderr
        assert re.search(rf"Stopped at step 1,1\d\d: {number.name}. Go on with --resume ", stdout)
    resumed = run(BASELINE, "--resume", folder(tmp_path), "--stop-after", 1300, "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert differences(checkpoint_of(uninterrupted), checkpoint_of(folder(tmp_path))) == []
    assert episodes_of(uninterrupted) == episodes_of(folder(tmp_path))
    assert scalars_of(uninterrupted) == scalars_of(folder(tmp_path))


def test_stopped_in_the_warm_up_a_run_starts_again_from_its_beginning(uninterrupted, tmp_path):
    process = start(BASELINE, *PONG, "--stop-after", 1300, "--runs-dir", tmp_path)
    wait_for(lambda: list(tmp_path.glob("*/events.out*")), process)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert re.search("Interrupted before learning began|Stopped at once", stderr)  # the latter before the warm-up
    resumed = run(BASELINE, "--resume", folder(tmp_path), "--stop-after", 1300, "--quiet")
    assert "the run starts again from its beginning" in resumed.stdout
    assert differences(checkpoint_of(uninterrupted), checkpoint_of(folder(tmp_path))) == []


def test_without_its_replay_a_resumed_run_fills_it_again(tmp_path):
    options = (*CATCH, "--set", "checkpoint_replay=false", "--quiet")
    assert run(BASELINE, *options, "--stop-after", 720, "--runs-dir", tmp_path).returncode == 0
    assert "replay" not in checkpoint_of(folder(tmp_path))
    resumed = run(BASELINE, "--resume", folder(tmp_path), "--stop-after", 1450)
    assert resumed.returncode == 0, resumed.stderr
    assert "Resumed at step 720." in resumed.stdout
    assert "Replay warm-up: 701 steps" in resumed.stdout
    assert checkpoint_of(folder(tmp_path))["iteration"]["iteration"] == 20 + 1450 - 720 - 700


def test_a_damaged_newest_checkpoint_gives_way_and_the_run_ends_the_same(uninterrupted, tmp_path):
    path = tmp_path / "copy"
    shutil.copytree(uninterrupted, path)
    newest = max((path / "checkpoints").glob("step-*.pt"))
    newest.write_bytes(newest.read_bytes()[:-1000])
    resumed = run(BASELINE, "--resume", path, "--stop-after", 1300, "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert f"{newest} is damaged" in resumed.stdout
    assert differences(checkpoint_of(uninterrupted), checkpoint_of(path)) == []
    assert scalars_of(uninterrupted) == scalars_of(path)


def test_the_time_limit_ends_a_run_that_can_be_resumed(tmp_path):
    process = run(BASELINE, *CATCH, "--time-limit", 1, "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    assert re.search(r"Stopped at step 70\d: time limit\. Go on with --resume ", process.stdout)


def test_a_refused_resume_changes_nothing(uninterrupted):
    before = {path: path.stat().st_mtime_ns for path in uninterrupted.rglob("*.*")}
    for options in (["--stop-after", 1200], ["--set", "gamma=0.5"]):
        process = run(BASELINE, "--resume", uninterrupted, *options)
        assert process.returncode == 2
    unchanged = {path for path, time_ns in before.items() if path.exists() and path.stat().st_mtime_ns == time_ns}
    assert set(before) - unchanged <= {uninterrupted / "params.json"}


PARALLEL = Path("chapter09/03_parallel.py")
PLAYERS = (*CATCH, *ROUNDS[:2], "--players", 2, "--set", "checkpoint_every=40", "--quiet", "--seed", 3)


def gone(processes, seconds=10):
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    return not alive


def start_players(runs_dir):
    """A run of two players that has saved twice: (process, players, all processes that it has started)."""
    process = start(PARALLEL, *PLAYERS, "--stop-after", 1140, "--runs-dir", runs_dir, start_new_session=True)
    wait_for(lambda: len(list(runs_dir.glob("*/checkpoints/step-*.sha256"))) > 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    return process, [child for child in children if child.ppid() != process.pid], children  # the server forks them


@pytest.fixture(scope="module")
def uninterrupted_players(tmp_path_factory):
    """A run of 03_parallel with two players to step 1140."""
    runs_dir = tmp_path_factory.mktemp("players")
    process = run(PARALLEL, *PLAYERS, "--stop-after", 1140, "--runs-dir", runs_dir)
    assert process.returncode == 0, process.stderr
    return folder(runs_dir)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_players_end_with_the_run_and_a_resumed_run_is_the_uninterrupted_one(uninterrupted_players, tmp_path, number):
    process, players, children = start_players(tmp_path)
    assert len(players) == 2
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)  # as a terminal does: to the players, too
    _, stderr = process.communicate(timeout=60)
    assert gone(children)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert stderr == ""
    resumed = run(PARALLEL, "--resume", folder(tmp_path), "--stop-after", 1140, "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert differences(checkpoint_of(uninterrupted_players), checkpoint_of(folder(tmp_path))) == []
    assert episodes_of(uninterrupted_players) == episodes_of(folder(tmp_path))
    assert scalars_of(uninterrupted_players) == scalars_of(folder(tmp_path))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_player_ends_the_run_with_its_name_and_nothing_is_lost(uninterrupted_players, tmp_path, number):
    process, players, children = start_players(tmp_path)
    began = time.monotonic()
    players[1].send_signal(number)
    _, stderr = process.communicate(timeout=60)
    assert time.monotonic() - began < 12  # ten, and the end of the process
    assert process.returncode == 1
    how = "was killed by SIGKILL" if number == signal.SIGKILL else "is stuck"
    assert re.search(rf"^error: player [01] \(process {players[1].pid}\) {how}", stderr)
    assert gone(children)
    resumed = run(PARALLEL, "--resume", folder(tmp_path), "--stop-after", 1140, "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert differences(checkpoint_of(uninterrupted_players), checkpoint_of(folder(tmp_path))) == []


@pytest.mark.parametrize("options", [(), ("--parallel",)])
def test_several_environments_of_pong_are_resumed_bit_for_bit(tmp_path, options):
    script = Path("chapter09/04_wrappers.py")
    options = (*PONG, "--envs", 2, *options)
    for runs_dir, stops in ((tmp_path / "one", [1160]), (tmp_path / "two", [1130, 1160])):
        for stop in stops:
            start = ("--resume", folder(runs_dir)) if runs_dir.exists() else (*options, "--runs-dir", runs_dir)
            process = run(script, *start, "--stop-after", stop)
            assert process.returncode == 0, process.stderr
    assert differences(checkpoint_of(folder(tmp_path / "one")), checkpoint_of(folder(tmp_path / "two"))) == []
    assert episodes_of(folder(tmp_path / "one")) == episodes_of(folder(tmp_path / "two"))


def test_the_replay_ratio_has_to_divide_the_batch():
    process = run(PARALLEL, "--replay-ratio", 5)
    assert process.returncode == 2
    assert (
        "--replay-ratio 5 does not divide the batch of 128; give one of 1, 2, 4, 8, 16, 32, 64, 128" in process.stderr
    )


@pytest.mark.parametrize(("ratio", "iterations"), [(64, 120)])
def test_the_replay_ratio_asked_for_is_the_one_that_is_held(tmp_path, ratio, iterations):
    options = (*CATCH, *ROUNDS[:2], "--replay-ratio", ratio, "--stop-after", 960, "--quiet", "--runs-dir", tmp_path)
    assert run(PARALLEL, *options).returncode == 0
    assert json.loads((folder(tmp_path) / "result.json").read_text())["iterations"] == iterations
    if iterations >= 100:
        accumulator = EventAccumulator(str(folder(tmp_path)))
        accumulator.Reload()
        [measured] = accumulator.Scalars("train/replay_ratio")
        assert measured.value == pytest.approx(ratio)
        assert accumulator.Scalars("train/policy_lag")[0].value <= 24


RING = ("--envs", "4", *assignments("replay_initial=160", "replay_size=480", "batch_size=4", "checkpoint_every=80"))
NATIVE = {
    Path("distributed/01_ppo.py"): assignments(  # and with a goal out of reach, so that there is some progress
        *("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128", "stop_reward=9", "kl_final=0.001")
    ),
    Path("chapter08/08_dqn_rainbow.py"): RING,
    Path("chapter09/05_native_envs.py"): RING,
    Path("chapter09/06_fast_learner.py"): RING,
    Path("chapter09/07_pong_in_minutes.py"): RING,
}


@pytest.mark.parametrize("env_id", ["fakes:Catch-v0", "PongNoFrameskip-v4"])
@pytest.mark.parametrize("script", NATIVE, ids=str)
def test_native_environments_are_resumed_bit_for_bit(tmp_path, script, env_id):
    for runs_dir, stops in ((tmp_path / "one", [640]), (tmp_path / "two", [256, 640])):
        for stop in stops:
            start = ("--resume", folder(runs_dir)) if runs_dir.exists() else ("--env-id", env_id, *NATIVE[script])
            start += () if runs_dir.exists() else ("--runs-dir", runs_dir)
            process = run(script, *start, "--stop-after", stop, "--quiet")
            assert process.returncode == 0, process.stderr
            assert f"Stopped at step {stop}: step limit." in process.stdout
    one, two = (folder(tmp_path / name) for name in ("one", "two"))
    assert differences(checkpoint_of(one), checkpoint_of(two)) == []
    assert episodes_of(one) == episodes_of(two)
    if script.stem == "01_ppo" and env_id.startswith("fakes"):
        assert [step for step, _ in scalars_of(one)["train/kl"]] == list(range(128, 641, 64))
        ones, twos = (scalars_of(each) for each in (one, two))
        assert ones.pop("train/replay_ratio")[-1] == twos.pop("train/replay_ratio")[-1] == (640, 1.0)
        assert ones == twos


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
    process = start(BASELINE, *PONG, "--runs-dir", tmp_path)
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


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--game", "chess"], 2, "unknown game 'chess'"),
        (["--env-id", "CartPole-v1"], 2, "needs images"),
        (["--set", "replay_size=10000000000"], 2, "GB are free; try --set replay_size="),
        (["--runs-dir", "/proc/runs"], 1, "/proc/runs"),
    ],
)
def test_wrong_use_and_faults_are_one_or_two_lines(options, code, message):
    process = run(BASELINE, *options)
    assert process.returncode == code
    assert message in process.stderr
    assert process.stderr.startswith("error: ")
    assert len(process.stderr.strip().splitlines()) <= 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_cuda_without_a_gpu_names_the_way_out():
    process = run(BASELINE, "--cuda")
    assert process.returncode == 2
    assert "--device cpu" in process.stderr


def test_help_shows_the_idea_and_every_common_option():
    said = run(BASELINE, "--help").stdout
    for option in ("--cuda", "--device", "--game", "--env-id", "--seed", "--set", "--stop-after", "--time-limit"):
        assert option in said
    assert "textbook DQN" in said
