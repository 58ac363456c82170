"""Time to solve Pong: the row of a run, and which scripts can be timed."""

import sys

import pandas as pd
import pytest

import lab
import time_to_solve

RESULT = {
    "stopped": "solved",
    "steps": 3072,
    "episodes": 130,
    "seconds": 70.0,
    "reached": {
        "17.0": {"seconds": 50.0, "step": 2000, "episode": 110},
        "18.0": {"seconds": 60.0, "step": 2048, "episode": 120},
    },
    "this_process": {
        "seconds": 70.0,
        "learning_since": 4.0,
        "training_seconds": 55.0,
        "steps_per_second": 47.3,
        "parts": {"act": 10.0, "learn": 40.0},
    },
    "evaluation": {"mean": 20.0, "std": 1.0, "distinct": 3, "returns": [21.0, 20.0, 19.0]},
}


def test_a_solved_run_counts_until_the_goal_was_reached():
    row = time_to_solve.figures(RESULT)
    assert (row["seconds"], row["steps"], row["episodes"], row["start"]) == ("60.0", 2048, 120, "4.0")
    assert (row["act"], row["environment"], row["rest"]) == ("10.0", "0.0", "5.0")
    assert (row["evaluation_mean"], row["evaluation_worst"]) == (20.0, 19.0)
    assert set(row) | {"seed", "emulator"} == set(time_to_solve.COLUMNS)


def test_a_run_that_was_not_solved_counts_to_its_end():
    unsolved = {name: value for name, value in RESULT.items() if name != "evaluation"}
    row = time_to_solve.figures(unsolved | {"stopped": "time limit", "reached": {}})
    assert (row["seconds"], row["steps"], row["evaluation_mean"]) == ("70.0", 3072, "")


def test_a_goal_that_was_reached_after_the_limit_does_not_count():
    frame = pd.DataFrame(
        {
            "stopped": ["solved", "solved", "solved", "time limit"],
            "seconds": [600.0, 600.1, 9.0, 720.0],
        }
    )
    own = time_to_solve.Solved("x", "solve/x", frame, {"settings": {"time_limit": 600}})
    assert time_to_solve.solved_in_time(own).tolist() == [True, False, True, False]


def test_results_are_kept_apart_by_script_and_options():
    assert time_to_solve.results_of("distributed/01_ppo") == "solve/distributed-01_ppo"
    assert time_to_solve.results_of("07_pong_in_minutes --envs 32 --set epochs=2") == (
        "solve/07_pong_in_minutes-envs-32-set-epochs-2"
    )


def test_measuring_other_seeds_keeps_the_results_of_the_earlier_ones(results):
    name = time_to_solve.results_of("distributed/01_ppo")
    row = dict.fromkeys(time_to_solve.COLUMNS, "1")
    for seed in (411, 412):
        lab.Results(name, time_to_solve.COLUMNS, lab.stamp(), go_on=True).add(**row | {"seed": seed})
    before = lab.path_of(name).read_text()
    with pytest.raises(SystemExit, match=r"(?s)settings.* of seed 411 would be deleted.*--overwrite"):
        time_to_solve.solve("distributed/01_ppo", [412, 413], 600)
    assert lab.path_of(name).read_text() == before


@pytest.mark.parametrize(
    "options",
    [
        ["--script", "distributed/01_ppo.py"],
        ["--script", ""],
        ["--script", "05_native_envs --game freeway"],
        ["--script", "distributed/01_ppo --env-id=CartPole-v1"],
        ["--seeds", "0"],
    ],
)
def test_scripts_that_cannot_be_timed_on_pong_are_refused(monkeypatch, capsys, options):
    monkeypatch.setattr(sys, "argv", ["time_to_solve.py", *options])
    with pytest.raises(SystemExit, match="2"):
        time_to_solve.main()
    assert f"argument {options[0]}: " in capsys.readouterr().err


def test_a_device_is_refused_where_it_would_be_ignored(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["time_to_solve.py", "--device", "cuda"])
    with pytest.raises(SystemExit, match="2"):
        time_to_solve.main()
    assert "--device is for speed" in capsys.readouterr().err
