"""03_parallel as a person would run it: its players end with it, and their loss is told."""

import json
import os
import re
import signal
import time

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from running import (
    CATCH,
    PARALLEL,
    ROUNDS,
    checkpoint_of,
    differences,
    episodes_of,
    folder,
    run,
    run_by_itself,
    scalars_of,
    start,
    wait_for,
)

LIGHT = ("--replay-ratio", 8)  # four steps an update, as with the usual batch
PLAYERS = (*CATCH, *ROUNDS[:2], "--players", 2, *LIGHT, "--set", "checkpoint_every=40", "--quiet", "--seed", 3)


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
    process = run_by_itself(PARALLEL, *PLAYERS, "--stop-after", 1140, "--runs-dir", runs_dir)
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


@pytest.mark.parametrize(("ratio", "iterations"), [(16, 120)])
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
