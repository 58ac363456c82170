"""Scripts in the manner of the book's second and third editions train on lib; see tests/book."""

import dataclasses
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from ignite.engine import Engine, Events

from lib import book
from lib.common import HYPERPARAMS, SEED, Hyperparams, argparser
from lib.run.episodes import EpisodeEvents, register_events
from running import ENVIRONMENT, PROJECT, folder, result_of, run, tags_of

BOOK = Path("tests/book")


def run_book(script, *options, cwd):
    """Run one of the scripts to its end in the folder `cwd`. Return its output, the run folder and its tags."""
    process = run(BOOK / script, *options, cwd=cwd)
    assert process.returncode == 0, process.stderr
    assert "Warning" not in process.stderr  # ignite's, about a missing metric
    path = folder(cwd / "runs")
    return process.stdout, path, set(tags_of(path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["basic", "rainbow"])
def test_a_script_of_the_third_edition_trains_until_it_is_solved(tmp_path, kind):
    output, path, tags = run_book("third_dqn.py", "--kind", kind, cwd=tmp_path)
    assert re.fullmatch(rf"\d{{4}}-\d\d-\d\dT\d{{4}}-chain-book={kind}", path.name)
    assert tags >= {"episodes/reward", "episodes/steps", "episodes/avg_reward", "train/avg_loss"}
    assert ("train/values" in tags) == (kind == "basic")
    assert re.search(r"Game solved in 0:0\d:\d\d, after \d+ episodes and \d+ iterations!", output)
    solved, episodes, iterations = re.search(r"trained (\w+) (\d+) (\d+)", output).groups()
    assert solved == "True"
    result = result_of(path)
    assert (result["stopped"], result["episodes"], result["iterations"]) == ("solved", int(episodes), int(iterations))
    assert result["steps"] == 100 + int(iterations) + 1  # the warm-up, and the one step by which PTAN's source is ahead


@pytest.mark.slow
def test_a_script_of_the_second_edition_trains_until_it_is_solved(tmp_path):
    output, path, tags = run_book("second_dqn.py", cwd=tmp_path)
    assert "trained True" in output
    assert "\niteration 200\n" in output
    assert path.name.endswith("-chain-second=2")
    assert {"train/loss", "train/avg_loss", "train/avg_fps", "train/epsilon"} <= tags
    params = json.loads((path / "params.json").read_text())
    assert params["hyperparameters"]["batch_size"] == 32
    assert params["seed"] == SEED  # with which the script seeds torch
    assert "Learning. Ctrl-C stops; without save={'net': net} in setup_ignite, no network is saved." in output


@pytest.mark.long
@pytest.mark.skipif(find_spec("pyarrow") is None, reason="Ray Tune is not installed")
def test_the_books_search_runs_trials_and_reports_the_best(tmp_path):
    command = [sys.executable, PROJECT / BOOK / "third_dqn.py", "--tune", "1"]
    process = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=300)
    assert process.returncode == 0, process.stderr
    assert re.search(r"Best hyperparameters: \{.*'gamma': 0\.\d+.*\}; result: \{'episodes': \d+", process.stdout)
    assert {path.name.partition("-chain")[1] for path in (tmp_path / "runs").iterdir()} == {"", "-chain"}  # tune, a run


@pytest.mark.parametrize(("returns", "limit", "episodes"), [(-20.0, 340, 11), (0.0, 20, 23)])
def test_a_trial_ends_early_if_it_learns_too_little_or_too_slowly(returns, limit, episodes):
    fields = dataclasses.asdict(HYPERPARAMS["pong"]) | {"tuner_mode": True, "episodes_to_solve": limit}
    engine = Engine(lambda engine, batch: None)
    register_events(engine)
    book.stop_hopeless_trial(engine, Hyperparams(**fields), reward_episode=10, reward_min=-19.0)

    @engine.on(Events.ITERATION_COMPLETED)
    def end_of_an_episode(engine):
        engine.state.episode, engine.state.metrics["avg_reward"] = engine.state.iteration, returns
        engine.fire_event(EpisodeEvents.EPISODE_COMPLETED)

    assert engine.run([None] * 40).iteration == episodes


def test_a_script_may_add_an_option_that_the_parser_has():
    parser = argparser()
    assert parser.parse_args([]).double is False  # the third edition's 03_dqn_double.py reads it
    parser.add_argument("--double", default=True, action="store_true")
    assert parser.parse_args([]).double is True
