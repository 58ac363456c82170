"""What one measurement does: runs, their figures, and peers."""

import math
import subprocess
from pathlib import Path

import pandas as pd
import pytest

import measures
from experiments import EXPERIMENTS
from lib.run.folder import write_json
from lib.run.stopping import NOT_FINITE
from results import PROJECT, Job, Place


@pytest.fixture
def played(tmp_path, monkeypatch):
    """Function that plays a run that ends in some way, and returns the options of its script; [] if it had ended."""
    monkeypatch.setattr(measures, "PROJECT", tmp_path)

    def play(ends, settings="script --a 1", commit="one", goes_on=True):
        options = []

        def run(command, **_):
            options[:] = command[2:]
            is_new = "--runs-dir" in options
            run = Path(options[options.index("--runs-dir") + 1], "run") if is_new else Path(options[-2])
            (run / "checkpoints").mkdir(parents=True, exist_ok=True)
            (run / "checkpoints" / "step-1.pt").touch()
            write_json(run / "result.json", {"stopped": ends})
            return subprocess.CompletedProcess(command, ends != "solved")

        monkeypatch.setattr(subprocess, "run", run)
        measures.play_run(Job("x", "v", 3, settings, Place(commit, "m")), goes_on)
        return options

    return play


def test_a_diverged_run_is_a_result_and_an_interrupted_one_goes_on_only_as_it_was(played):
    assert played(NOT_FINITE)[:5] == ["--a", "1", "--seed", "3", "--runs-dir"]
    with pytest.raises(subprocess.CalledProcessError):
        played("SIGINT", commit="two")
    assert "--resume" not in played("solved", commit="three")
    assert "--resume" not in played("solved", settings="script --a 2", commit="two")
    assert played("solved", commit="two")[:3] == ["--a", "1", "--resume"]
    assert played("SIGINT", commit="two") == []
    assert "--resume" not in played("solved", commit="two", goes_on=False)


def test_the_figures_of_a_run_count_to_its_goal(tmp_path):
    speeds = dict.fromkeys(["steps_per_second", "last_1000_steps_per_second", "warm_up_steps_per_second"], 9.0)
    process = {"learning_since": 4.0, "training_seconds": 55.0, "parts": {"act": 10.0, "learn": 40.0}} | speeds
    reached = {"18.0": {"seconds": 60.0, "step": 2048, "episode": 120}}
    evaluation = {"mean": 20.0, "std": 1.0, "distinct": 3, "returns": [21.0, 20.0, 19.0]}
    result = {
        "stopped": "solved",
        "steps": 3072,
        "episodes": 130,
        "seconds": 70.0,
        "mean_100": 18.1,
        "reached": reached,
    }
    write_json(tmp_path / "result.json", result | {"this_process": process, "evaluation": evaluation})
    write_json(tmp_path / "params.json", {"format": 2, "hyperparameters": {"stop_reward": 18, "milestone": 17.0}})
    figures = measures.figures(tmp_path)
    assert (figures["steps_to_goal"], figures["seconds_to_goal"], figures["episodes_to_goal"]) == (2048, 60.0, 120)
    assert figures["steps_to_milestone"] == math.inf
    assert (figures["evaluation_worst"], figures["learn"], figures["rest"]) == (19.0, 40.0, 5.0)


def test_curves_are_means_of_bins(tmp_path):
    rows = {"step": [5, 10, 11, 31], "seconds": [1, 4, 6, 9], "return": [1.0, 2.0, 6.0, 8.0], "length": 5}
    pd.DataFrame(rows).to_csv(tmp_path / "episodes.csv")
    by_step = measures.binned(tmp_path, "return", 10)
    assert by_step[["step", "seconds", "value"]].to_numpy().tolist() == [[10, 4, 1.5], [20, 6, 6], [40, 9, 8]]


def test_every_variant_names_a_script():
    for name, experiment in EXPERIMENTS.items():
        for variant, settings in experiment.variants.items():
            if name not in ("latency", "lag") and "; until" not in settings and variant != measures.EMULATOR:
                assert (PROJECT / measures.command(settings)[1]).exists(), (name, settings)
