"""--tune: a search by trials, each a run of the script."""

import ast
import dataclasses
import json
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import psutil
import pytest
import torch

from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import search, tuning
from lib.run.folder import write_json
from lib.run.options import RunOptions
from lib.run.stopping import EXIT_CODES, NOT_FINITE
from lib.run.tuning import base_space, tune_params
from running import BASELINE, ENVIRONMENT, assignments, run_by_itself, start, wait_for

# Ray Tune needs pyarrow. It is not imported here, because Ray reads on its import where it may listen.
needs_ray_tune = pytest.mark.skipif(find_spec("pyarrow") is None, reason="Ray Tune is not installed")

SMALL = assignments("replay_initial=100", "replay_size=1000", "epsilon_frames=400", "stop_reward=0.1")
PPO = Path("distributed/02_ppo_fast.py")
LARGEST = 0.001  # learning rate of the search; ten times the script's own
SEARCH = ("--env-id", "fakes:Chain-v0", *SMALL, "--set", f"learning_rate={LARGEST}", "--tune", 3, "--seed", 2)


@needs_ray_tune
@pytest.mark.long
def test_an_interrupted_search_continues_and_writes_the_best_hyperparameters(tmp_path):
    process = start(BASELINE, *SEARCH, "--runs-dir", tmp_path, start_new_session=True)
    wait_for(lambda: list(tmp_path.glob("tune/*/trials/*/runs/*/result.json")), process)
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
    assert trials.learning_rate.between(LARGEST / 10, LARGEST).all()
    assert set(trials.gamma) <= {0.9, 0.92, 0.95, 0.98, 0.99, 0.995}
    assert trials.episodes.dropna().is_monotonic_increasing
    best = json.loads((folder / "params.json").read_text())
    assert best == {"learning_rate": trials.learning_rate[0], "gamma": trials.gamma[0]}
    assert (folder / "trials.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("script", "message"), [(BASELINE, "--tune needs a goal"), (PPO, "--tune searches the hyperparameters of a DQN")]
)
def test_a_search_without_a_goal_or_a_dqn_is_refused(refused, tmp_path, script, message):
    small = SMALL[:-2] if script == BASELINE else ()
    assert message in refused(script, "--env-id", "fakes:Chain-v0", *small, "--tune", 1, "--runs-dir", tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_setting_that_all_trials_would_replace_is_refused(tmp_path, refused):
    config = tmp_path / "params.json"
    config.write_text('{"gamma": 0.9}')
    assert "leave out --config" in refused(BASELINE, *SEARCH, "--config", config)
    assert "leave out --set gamma=0.9" in refused(BASELINE, *SEARCH, "--set", "gamma=0.9")


@needs_ray_tune
@pytest.mark.long
@pytest.mark.parametrize("before", ["", "import ray.tune"])
def test_the_ray_of_a_search_listens_on_this_machine_only(before):
    program = f"""
{before}
import psutil
from lib.run.tuning import ray_tune, start_ray
ray_tune()
start_ray()
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
print({{each.laddr.ip for one in processes for each in one.net_connections() if each.status == psutil.CONN_LISTEN}})
"""
    process = subprocess.run(
        [sys.executable, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=True
    )
    listening = ast.literal_eval(process.stdout)
    assert listening
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """Function that runs a trial whose script is replaced, and returns the script's options."""
    context = SimpleNamespace(get_trial_id=lambda: "search_00003")
    tune = SimpleNamespace(get_context=lambda: context)
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(tune=tune))
    result = {"stopped": "step limit", "episodes": 3, "best_mean": 1.0, "steps": 9, "seconds": 2.0}

    def options_of(*words, gamma=0.9, **changes):
        seen = []

        def start(command, cwd, **options):
            assert cwd == "/where/the/user/is"
            seen.extend(command[2:])
            run = Path(options["stdout"].name).parent / "runs/run"
            run.mkdir(parents=True, exist_ok=True)
            given = dict(word.split("=") for word in command if word.startswith(("learning_rate=3", "gamma=")))
            write_json(run / "params.json", {"hyperparameters": {name: float(text) for name, text in given.items()}})
            write_json(run / "result.json", result | changes)
            return SimpleNamespace(wait=lambda: EXIT_CODES[(result | changes)["stopped"]])

        monkeypatch.setattr(subprocess, "Popen", start)
        config = {"learning_rate": np.float64(3e-5), "gamma": gamma}
        trial = search.run_trial(config, tmp_path, ["python", "script.py", *words], "/where/the/user/is", None)
        assert trial["trial"] == "00003"
        return seen

    return options_of


def test_a_resumed_trial_has_the_options_that_a_run_does_not_record(trial, tmp_path):
    words = ("--params", "best", "--stop-after", "30000", "--cuda", "--env-id", "fakes:Chain-v0", "--set", "gamma=1.0")
    run = tmp_path / "trials/00003/runs/run"
    first = trial(*words)
    assert trial(*words) == []  # it has ended
    (run / "result.json").unlink()
    resumed = trial(*words)
    assert first[:9] == list(words)
    assert resumed[:2] == ["--resume", str(run)]
    assert resumed[2:7] == ["--stop-after", "30000", "--cuda", "--env-id", "fakes:Chain-v0"]
    assert "gamma=1.0" not in resumed


def test_a_trial_does_not_take_the_result_of_an_earlier_search_in_the_folder(trial, tmp_path):
    trial(gamma=0.9)
    assert "gamma=0.95" in trial(gamma=0.95)
    assert trial(gamma=0.95) == trial(gamma=0.9) == []
    assert sorted(path.name for path in tmp_path.glob("trials/*")) == ["00003", "00003-2"]


def test_a_trial_that_diverged_is_not_repeated_and_comes_last(trial):
    trial(stopped=NOT_FINITE, best_mean=20.0)
    assert trial() == []
    diverged, other = (
        {"episodes": search.UNSOLVED, "stopped": why, "best_mean": mean}
        for why, mean in ((NOT_FINITE, 20.0), ("step limit", -21.0))
    )
    assert search._rank(other) < search._rank(diverged)


def test_the_best_trial_of_a_search_comes_with_a_command(tmp_path, caplog):
    caplog.set_level("INFO")
    best = {"stopped": "step limit", "learning_rate": np.float64(1e-4), "gamma": 0.9}
    folder = tmp_path / "my runs"
    search._log_best(folder, best, ["learning_rate", "gamma"], ["01_baseline.py", "--env-id", "a b"])
    assert f"Best hyperparameters: --config '{folder / 'params.json'}'" in caplog.text
    assert "No trial has solved the game." in caplog.text
    assert "01_baseline.py --env-id 'a b' --set learning_rate=0.0001 --set gamma=0.9" in caplog.text


def test_the_hyperparameters_of_a_trial_win_over_the_users_largest_learning_rate(trial):
    words = trial("--set", "learning_rate=0.001")
    assert words.index("learning_rate=0.001") < words.index("learning_rate=3e-05")
    assert "gamma=0.9" in words


def test_trials_are_quiet_even_if_the_search_is_verbose():
    words = search._trial_command(["--tune", "4", "--verbose", "--seed", "2"])
    assert words[2:] == ["--seed", "2", "--set", "tuner_mode=true"]


def test_trials_find_the_first_weights_although_they_have_a_folder_of_their_own():
    words = search._trial_command(["--init", "a run", "--seed", "2"], Path("/runs/a run"))
    assert words[2:] == ["--seed", "2", "--init", "/runs/a run", "--set", "tuner_mode=true"]


def test_a_search_whose_trials_were_too_short_ends_with_its_table(tmp_path, caplog):
    caplog.set_level("INFO")
    short = {"trial": "00000", "stopped": "step limit", "episodes": search.UNSOLVED, "best_mean": None}
    trial = short | {"steps": 20, "seconds": 1.0, "learning_rate": 1e-4, "gamma": 0.9}
    search._write_results(tmp_path, [trial], ["learning_rate", "gamma"], "a search")
    assert (tmp_path / "trials.csv").read_text().splitlines()[1] == "00000,step limit,,,20,1.0,0.0001,0.9"
    assert "No trial has played 10 episodes" in caplog.text
    assert not (tmp_path / "trials.png").exists()


@pytest.mark.parametrize(("final", "smallest"), [(None, 1e-4), (3e-4, 3e-4), (5e-5, 1e-4)])
def test_no_trial_has_a_learning_rate_below_its_final_one(final, smallest):
    params = dataclasses.replace(HYPERPARAMS["pong"], learning_rate=1e-3, learning_rate_final=final)
    tune = SimpleNamespace(loguniform=lambda low, high: (low, high), choice=list)
    assert base_space(tune, params)["learning_rate"] == pytest.approx((smallest, 1e-3))


def test_every_trial_of_the_books_search_has_a_final_learning_rate_that_it_can_fall_to(monkeypatch):
    class Searched(Exception):
        pass

    def tuner(trainable, param_space, **options):
        for rate in param_space["learning_rate"]:
            trainable({"learning_rate": rate})
        raise Searched

    tune = SimpleNamespace(
        loguniform=lambda low, high: (low, high),
        choice=list,
        with_resources=lambda trainable, resources: trainable,
        TuneConfig=SimpleNamespace,
        RunConfig=SimpleNamespace,
        Tuner=tuner,
    )
    monkeypatch.setattr(tuning, "ray_tune", lambda: tune)
    monkeypatch.setattr(tuning, "start_ray", lambda: None)
    rates = []

    def train(params, device, extra):
        rates.append((params.learning_rate_final, params.learning_rate))

    with pytest.raises(Searched):
        tune_params(dataclasses.replace(HYPERPARAMS["pong"], learning_rate_final=5e-5), train, torch.device("cpu"))
    assert rates == [(5e-5, 5e-5), (5e-5, 1e-4)]


def test_a_search_draws_its_trials_with_the_seed(monkeypatch, tmp_path):
    class Searched(Exception):
        pass

    class Tuner:
        can_restore = staticmethod(lambda folder: False)

        def __init__(self, trainable, param_space, tune_config, run_config):
            raise Searched(tune_config)

    tune = SimpleNamespace(
        loguniform=lambda low, high: (low, high),
        choice=list,
        with_resources=lambda trainable, resources: trainable,
        with_parameters=lambda trainable, **parameters: trainable,
        TuneConfig=dict,
        RunConfig=dict,
        Callback=object,
        Tuner=Tuner,
        search=SimpleNamespace(BasicVariantGenerator=dict),
    )
    monkeypatch.setattr(search, "ray_tune", lambda: tune)
    monkeypatch.setattr(search, "start_ray", lambda: None)
    options = RunOptions(seed=7, tune=2, runs_dir=tmp_path)
    with pytest.raises(Searched) as searched:
        search.search(HYPERPARAMS["pong"], options, "01_baseline", ["01_baseline.py", "--tune", "2"])
    assert searched.value.args == ({"num_samples": 2, "search_alg": {"random_state": 7}},)


def test_a_trial_gets_a_gpu_from_ray_and_never_a_certain_one():
    assert tuning.trial_resources(torch.device("cpu")) == {"cpu": 1}
    assert tuning.trial_resources(torch.device("cuda:0")) == tuning.trial_resources(torch.device("cuda")) == {"gpu": 1}
    with pytest.raises(UsageError, match=r"a search on cuda:1 is not possible.* use the device cuda, and choose GPUs"):
        tuning.trial_resources(torch.device("cuda:1"))


def test_a_search_is_not_continued_with_other_options(tmp_path):
    search._require_same_search(tmp_path, 4, [])  # of an earlier version
    write_json(tmp_path / search.SEARCH_FILE, {"samples": 4, "options": ["--stop-after", "30000"]})
    two = {"samples": 4, "options": ["--stop-after", "30", "--time-limit", "90"]}
    (tmp_path / "two").mkdir()
    write_json(tmp_path / "two" / search.SEARCH_FILE, two)
    search._require_same_search(tmp_path, 4, ["--stop-after", "30000"])
    search._require_same_search(tmp_path / "two", 4, ["--time-limit", "90", "--stop-after", "30"])
    with pytest.raises(UsageError, match="Give the same options"):
        search._require_same_search(tmp_path / "two", 4, ["--stop-after", "90", "--time-limit", "30"])
    write_json(tmp_path / "two" / search.SEARCH_FILE, {"samples": 4, "options": ["-n", "4", "--v-max", "-1"]})
    search._require_same_search(tmp_path / "two", 4, ["--v-max", "-1", "-n", "4"])
    for samples, words in ((20, ["--stop-after", "30000"]), (4, [])):
        with pytest.raises(UsageError, match=r"started with --tune 4 --stop-after 30000\. Give the same options"):
            search._require_same_search(tmp_path, samples, words)


def test_a_search_that_continues_at_another_commit_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(search, "current_commit", lambda: "new")
    for commit, warned in ((None, False), ("new", False), ("old", True)):
        write_json(tmp_path / search.SEARCH_FILE, {"samples": 4, "options": [], "commit": commit})
        search._require_same_search(tmp_path, 4, [])
        assert ("started at commit old; the code is at new" in caplog.text) == warned


def test_a_final_learning_rate_above_the_searchs_is_refused():
    params = dataclasses.replace(HYPERPARAMS["pong"], learning_rate=3e-4, learning_rate_final=2e-4)
    with pytest.raises(UsageError, match=r"learning_rate_final is 0\.0002; set it below 0\.0001"):
        tune_params(params, pytest.fail, torch.device("cpu"))
