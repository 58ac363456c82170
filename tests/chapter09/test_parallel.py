"""03_parallel as a person runs it. test_golden.py kills and resumes it."""

import os
import signal

import psutil
import pytest

from running import PARALLEL, assignments, folder, gone, result_of, run, scalars_of, start, wait_for

pytestmark = pytest.mark.slow

# A game of vectors, because its network is fast. An update learns from 8 transitions.
GAME = ("--env-id", "fakes:Chain-v0", *assignments("replay_initial=120", "replay_size=2000", "batch_size=2"), "--quiet")


def test_players_end_with_the_run_on_ctrl_c(tmp_path):
    options = ("--players", 2, "--replay-ratio", 2, "--set", "checkpoint_every=40", "--runs-dir", tmp_path)
    process = start(PARALLEL, *GAME, *options, "--stop-after", 540, start_new_session=True)
    wait_for(lambda: len(list(tmp_path.glob("*/checkpoints/step-*.pt"))) > 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len([child for child in children if child.ppid() != process.pid]) == 2  # forked by the server
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does, to the players as well
    _, stderr = process.communicate(timeout=60)
    assert gone(child.pid for child in children)
    assert process.returncode == 130
    assert stderr.strip().startswith("Stopping after this update")
    assert len(stderr.splitlines()) == 2


def test_the_replay_ratio_is_held(tmp_path):
    assert run(PARALLEL, *GAME, "--replay-ratio", 4, "--stop-after", 360, "--runs-dir", tmp_path).returncode == 0
    path = folder(tmp_path)
    assert result_of(path)["iterations"] == 120
    scalars = scalars_of(path)
    [(_, ratio)] = scalars["train/replay_ratio"]
    assert ratio == pytest.approx(4)
    assert scalars["train/policy_lag"][0][1] <= 24


def test_the_replay_ratio_has_to_divide_the_batch(refused):
    message = refused(PARALLEL, "--replay-ratio", 5)
    assert "--replay-ratio 5 does not divide the batch of 128; give one of 1, 2, 4, 8, 16, 32, 64, 128" in message
