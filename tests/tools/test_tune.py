"""tools/tune.py: searches by trials, each a run of a script."""

import json
import signal
from pathlib import Path

import optuna
import pandas as pd
import psutil
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState

from lib.errors import UsageError
from running import PROJECT, SMALL_PPO, gone, run, start, wait_for
from tools import tune

TUNE = Path("tools/tune.py")


@pytest.mark.long
def test_an_interrupted_search_continues_with_the_runs_that_it_began(tmp_path):
    game = ("--env-id", "fakes:Chain-v0", *SMALL_PPO, "--set", "checkpoint_every=64", "--set", "stop_reward=none")
    search = (PROJECT / "distributed/01_ppo.py", *game, "--stop-after", 6400, "--trials", 2, "--runs-dir", tmp_path)
    process = start(TUNE, *search, start_new_session=True)
    wait_for(lambda: list(tmp_path.glob("tune/*/trials/0/runs/*/checkpoints/step-*.pt")), process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert gone(child.pid for child in children)
    again = run(TUNE, *search)
    assert again.returncode == 0, again.stderr
    [folder] = (tmp_path / "tune").iterdir()
    trials = pd.read_csv(folder / "trials.csv")
    assert len(trials) == 2
    assert json.loads((folder / "params.json").read_text())["gamma"] == trials.params_gamma[0]
    [resumed] = (folder / "trials/0/runs").iterdir()
    assert len(json.loads((resumed / "params.json").read_text())["sessions"]) == 2


SCRIPT = """
import json, pathlib, sys, time
x = float(next(word for word in sys.argv if word.startswith("x="))[2:])
if x > 8.0:
    sys.exit("error: x is too large")
run = pathlib.Path(sys.argv[sys.argv.index("--runs-dir") + 1], "run")
run.mkdir(parents=True)
(run / "params.json").write_text(json.dumps({"hyperparameters": {"max_steps": 4000}}))
rows = [f"{step},{length},{x},1.0" for step, length in ((1500, 1500), (2000, 500), (3000, 1000), (4000, 1000))]
(run / "episodes.csv").write_text("\\n".join(["step,length,return,seconds", *rows, ""]))
time.sleep(1.0)
"""


@pytest.mark.slow
def test_a_trial_below_the_median_is_pruned_and_one_that_fails_ends_the_search(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = run(TUNE, script, "--runs-dir", tmp_path, "--space", "x=1.0:2.0", "--trials", 9)
    assert "is pruned" in process.stdout
    [file] = tmp_path.glob("tune/*/study.db")
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{file}")
    complete, pruned = (study.get_trials(states=[state]) for state in (TrialState.COMPLETE, TrialState.PRUNED))
    values = [trial.params["x"] for trial in complete]
    assert [trial.value for trial in complete] == pytest.approx(values)
    assert all(trial.number >= 5 and trial.params["x"] < max(values) for trial in pruned)
    failed = run(TUNE, script, "--runs-dir", tmp_path, "--space", "x=9")
    assert failed.returncode == 1
    assert "error: trial 0 ended with exit code 1: error: x is too large (all output is in" in failed.stderr


def test_a_space_is_a_range_or_a_list():
    for text, distribution in {
        "batch_size=16:32": IntDistribution(16, 32),
        "learning_rate=1e-5:1e-3": FloatDistribution(1e-5, 1e-3, log=True),
        "kl_target=null,0.01": CategoricalDistribution([None, 0.01]),
    }.items():
        assert tune.searched(text) == (text.partition("=")[0], distribution)
    for text in ("gamma", "gamma=0.9:0.8"):
        with pytest.raises(UsageError, match=f"--space {text} is not FIELD=low:high or FIELD=a,b,c"):
            tune.searched(text)


def test_the_value_of_a_trial_weights_returns_by_length_and_counts_saved_steps_with_the_last_mean():
    episodes = pd.DataFrame({"step": [10.0, 40.0, 90.0], "length": [10.0, 30.0, 50.0], "return": [1.0, 2.0, 6.0]})
    assert tune.average_return(episodes, 40) == (10 * 1 + 30 * 2) / 40
    assert tune.average_return(episodes, 100) == (10 * 1 + 30 * 2 + 50 * 6 + 10 * 3) / 100
    with pytest.raises(UsageError, match="no episode ended within 5 agent steps"):
        tune.average_return(episodes, 5)
