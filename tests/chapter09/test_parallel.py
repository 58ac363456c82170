"""03_parallel as a person runs it: its players end with it, and it goes on if a player is lost."""

import csv
import os
import re
import signal

import psutil
import pytest

from running import PARALLEL, assignments, folder, gone, result_of, run, scalars_of, start, wait_for

pytestmark = pytest.mark.slow

# A game of vectors, because its network is fast; test_players.py and test_resume.py have players of images.
SMALL = assignments("replay_initial=120", "replay_size=2000", "batch_size=2")
GAME = ("--env-id", "fakes:Chain-v0", *SMALL)  # an update learns from 8 transitions
LAST = 540
PLAYERS = (*GAME, "--players", 2, "--replay-ratio", 2, "--set", "checkpoint_every=40", "--quiet", "--seed", 3)


def start_players(runs_dir):
    """Start a run of two players and wait for two checkpoints. Return its process, its players, and all children."""
    process = start(PARALLEL, *PLAYERS, "--stop-after", LAST, "--runs-dir", runs_dir, start_new_session=True)
    wait_for(lambda: len(list(runs_dir.glob("*/checkpoints/step-*.pt"))) > 1, process)
    children = psutil.Process(process.pid).children(recursive=True)
    return process, [child for child in children if child.ppid() != process.pid], children  # forked by the server


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.long)])
def test_players_end_with_the_run(tmp_path, number):
    """test_golden.py resumes such a run."""
    process, players, children = start_players(tmp_path)
    assert len(players) == 2
    if number == signal.SIGKILL:
        process.kill()
    else:
        os.killpg(process.pid, number)  # as a terminal does, to the players as well
    _, stderr = process.communicate(timeout=60)
    assert gone(child.pid for child in children)
    if number != signal.SIGKILL:
        assert process.returncode == 128 + number
        assert stderr.strip().startswith("Stopping after this update")
        assert len(stderr.splitlines()) == 2


def test_a_run_goes_on_if_a_player_is_killed(tmp_path):
    process, players, children = start_players(tmp_path)
    players[1].kill()
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert re.search(r"Player [01] \(environment \d, seed 3\) was killed by SIGKILL. Its unfinished episodes", stdout)
    assert gone(child.pid for child in children)
    with (folder(tmp_path) / "actors.csv").open() as file:
        assert sorted(row["losses"] for row in csv.DictReader(file)) == ["0", "1"]


def test_the_replay_ratio_is_held(tmp_path):
    options = (*GAME, "--replay-ratio", 4, "--stop-after", 360, "--quiet")
    assert run(PARALLEL, *options, "--runs-dir", tmp_path).returncode == 0
    path = folder(tmp_path)
    assert result_of(path)["iterations"] == 120
    scalars = scalars_of(path)
    [(_, ratio)] = scalars["train/replay_ratio"]
    assert ratio == pytest.approx(4)
    assert scalars["train/policy_lag"][0][1] <= 24
