"""A run that is stopped, however that happens, goes on as if it had not been."""

import re
import shutil
import signal
import time
from pathlib import Path

import pytest

from lib.ppo.update import Trainer
from running import (
    BASELINE,
    CATCH,
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

# The ring wraps around, and the target network is copied, before the run is stopped.
PONG = (
    *assignments("replay_initial=1100", "replay_size=1120", "target_net_sync=20", "checkpoint_every=60"),
    *(*assignments("batch_size=4", "epsilon_frames=150"), "--seed", 5, "--quiet"),
)


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
    time.sleep(0.1)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    if number == signal.SIGKILL:
        assert process.returncode == -number
    else:
        assert process.returncode == 128 + number, stderr
        assert re.search(rf"Stopped at step 1,[12]\d\d: {number.name}. Go on with --resume ", stdout)
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
    refused = run(BASELINE, "--resume", folder(tmp_path), "--stop-after", 1420)
    assert refused.returncode == 2
    assert "is at step 720 already, and fills its replay with 700 more first; give --stop-after more" in refused.stderr
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


def test_a_refused_resume_changes_nothing(uninterrupted):
    def content():
        return {
            path: path.read_bytes()
            for path in uninterrupted.rglob("*")
            if path.is_file() and path.name not in ("lock", "pid")  # which say who looks at it
        }

    before = content()
    for options in (["--stop-after", 1200], ["--set", "gamma=0.5"]):
        process = run(BASELINE, "--resume", uninterrupted, *options)
        assert process.returncode == 2
    assert content() == before


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


RING = (
    *("--envs", "4"),
    *assignments("replay_initial=160", "replay_size=240", "batch_size=4", "checkpoint_every=80", "epsilon_frames=300"),
)
NATIVE = {
    Path("distributed/01_ppo.py"): assignments(  # and with a goal out of reach, so that there is some progress
        *("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=128", "stop_reward=9", "kl_final=0.001")
    ),
    Path("chapter08/08_dqn_rainbow.py"): RING,
    Path("chapter09/05_native_envs.py"): RING,
    Path("chapter09/06_fast_learner.py"): RING,
    Path("chapter09/07_pong_in_minutes.py"): RING,
}


@pytest.mark.parametrize(
    ("script", "env_id", "goal"),
    [
        *((script, "PongNoFrameskip-v4", None) for script in NATIVE),
        *((script, "fakes:Catch-v0", None) for script in list(NATIVE)[:2]),
        (Path("distributed/01_ppo.py"), "fakes:Catch-v0", -0.1),  # so near that some updates are of one epoch
    ],
)
def test_native_environments_are_resumed_bit_for_bit(tmp_path, script, env_id, goal):
    first, last = (256, 640) if script.stem == "01_ppo" else (200, 320)  # the ring wraps around
    for runs_dir, stops in ((tmp_path / "one", [last]), (tmp_path / "two", [first, last])):
        for stop in stops:
            start = ("--resume", folder(runs_dir)) if runs_dir.exists() else ("--env-id", env_id, *NATIVE[script])
            start += () if runs_dir.exists() else ("--runs-dir", runs_dir)
            if goal is not None and "--resume" not in start:
                start += tuple(assignments(f"stop_reward={goal}"))
            process = run(script, *start, "--stop-after", stop, "--quiet")
            assert process.returncode == 0, process.stderr
            assert f"Stopped at step {stop}: step limit." in process.stdout
    one, two = (folder(tmp_path / name) for name in ("one", "two"))
    assert differences(checkpoint_of(one), checkpoint_of(two)) == []
    assert episodes_of(one) == episodes_of(two)
    if goal is not None:
        progress = dict(scalars_of(one)["train/progress"])
        assert max(value for step, value in progress.items() if step <= first) >= Trainer.FINAL_TEMPERATURE_FROM
        assert {progress[step] >= Trainer.SINGLE_EPOCH_FROM for step in progress if step > first} == {True, False}
    if script.stem == "01_ppo" and env_id.startswith("fakes"):
        assert [step for step, _ in scalars_of(one)["train/kl"]] == list(range(128, 641, 64))
        ones, twos = (scalars_of(each) for each in (one, two))
        assert ones.pop("train/replay_ratio")[-1] == twos.pop("train/replay_ratio")[-1] == (640, 1.0)
        assert ones == twos
