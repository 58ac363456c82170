"""--tune: a search by trials, each a run of the script."""

import json
import signal

import pandas as pd
import psutil
import pytest

from running import BASELINE, assignments, run_by_itself, start, wait_for

pytest.importorskip("ray.tune", exc_type=ImportError)
pytestmark = pytest.mark.slow

SMALL = assignments("replay_initial=100", "replay_size=1000", "epsilon_frames=400", "stop_reward=0.9")
SEARCH = ("--env-id", "fakes:Chain-v0", *SMALL, "--tune", 3, "--seed", 2)


def test_an_interrupted_search_continues_and_its_best_hyperparameters_can_be_used(tmp_path):
    process = start(BASELINE, *SEARCH, "--runs-dir", tmp_path, start_new_session=True)
    wait_for(lambda: list(tmp_path.glob("tune/*/ray/run_trial*/runs/*/result.json")), process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    _, alive = psutil.wait_procs(children, timeout=20)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []
    again = run_by_itself(BASELINE, *SEARCH, "--runs-dir", tmp_path)
    assert again.returncode == 0, again.stderr
    [folder] = (tmp_path / "tune").iterdir()
    trials = pd.read_csv(folder / "trials.csv")
    assert len(trials) == 3
    assert trials.learning_rate.between(1e-5, 1e-4).all()
    assert set(trials.gamma) <= {0.9, 0.92, 0.95, 0.98, 0.99, 0.995}
    assert trials.episodes.dropna().is_monotonic_increasing
    best = json.loads((folder / "params.json").read_text())
    assert best == {"learning_rate": trials.learning_rate[0], "gamma": trials.gamma[0]}
    assert (folder / "trials.png").stat().st_size > 1000
    used = run_by_itself(
        BASELINE,
        *SEARCH[:-4],
        "--config",
        folder / "params.json",
        "--stop-after",
        200,
        "--runs-dir",
        tmp_path / "used",
    )
    assert used.returncode == 0, used.stderr
    [params] = (tmp_path / "used").glob("*/params.json")
    assert json.loads(params.read_text())["hyperparameters"]["gamma"] == best["gamma"]


def test_a_search_without_a_goal_is_refused(tmp_path):
    options = ("--env-id", "fakes:Chain-v0", *SMALL[:-2], "--tune", 1, "--runs-dir", tmp_path)
    process = run_by_itself(BASELINE, *options)
    assert process.returncode == 2
    assert "--tune needs a goal" in process.stderr
    assert not list(tmp_path.iterdir())
