"""--tune: a search by trials, each a run of the script."""

import ast
import json
import signal
import subprocess
import sys
from importlib.util import find_spec

import pandas as pd
import psutil
import pytest

from running import BASELINE, ENVIRONMENT, assignments, run_by_itself, start, wait_for

# Ray Tune needs pyarrow. It is not imported here, because Ray reads on its import where it may listen.
pytestmark = [pytest.mark.slow, pytest.mark.skipif(find_spec("pyarrow") is None, reason="Ray Tune is not installed")]

SMALL = assignments("replay_initial=100", "replay_size=1000", "epsilon_frames=400", "stop_reward=0.1")
SEARCH = ("--env-id", "fakes:Chain-v0", *SMALL, "--tune", 3, "--seed", 2)


@pytest.mark.long
def test_an_interrupted_search_continues_and_writes_the_best_hyperparameters(tmp_path):
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


def test_a_search_without_a_goal_is_refused(tmp_path):
    options = ("--env-id", "fakes:Chain-v0", *SMALL[:-2], "--tune", 1, "--runs-dir", tmp_path)
    process = run_by_itself(BASELINE, *options)
    assert process.returncode == 2
    assert "--tune needs a goal" in process.stderr
    assert not list(tmp_path.iterdir())


def test_a_setting_that_would_make_all_trials_alike_is_refused(tmp_path, refused):
    config = tmp_path / "params.json"
    config.write_text('{"gamma": 0.9}')
    assert "leave out --config" in refused(BASELINE, *SEARCH, "--config", config)
    assert "leave out --set gamma=0.9" in refused(BASELINE, *SEARCH, "--set", "gamma=0.9")


def test_the_ray_of_a_search_listens_on_this_machine_only():
    program = """
import psutil
from lib.run.tuning import ray_tune, start_ray
ray_tune()
start_ray()
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
print({each.laddr.ip for one in processes for each in one.net_connections() if each.status == psutil.CONN_LISTEN})
"""
    process = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=True
    )
    assert set(ast.literal_eval(process.stdout)) <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
