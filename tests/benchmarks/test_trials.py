"""Trials of settings: when they are replaced, and their tables."""

import argparse
import math

import pandas as pd
import pytest

import lab
import markup
import time_to_solve
import trials


def test_the_table_of_trials_counts_the_runs_that_reached_the_goal():
    frame = pd.DataFrame({"seed": [1, 2, 3], "steps_to_goal": [300_000, 400_000, math.inf], "greedy": 19.5})
    settings = {"label": "distributed/x --without kl", "against": "distributed/x", "max_steps": 800_000}
    reference = {"label": "distributed/x", "against": None, "max_steps": 800_000}
    compared = [(frame.assign(steps_to_goal=100_000), {"settings": reference}), (frame, {"settings": settings})]
    assert [cell.strip() for cell in trials.table(compared).splitlines()[-1].strip("|").split("|")] == [
        "`x --without kl`",
        "1 to 3",
        "2 of 3",
        "400 (300 to never)",
        "19.5",
        "`x`",
        "0.1",
    ]
    reference["max_steps"] = 400_000
    assert trials.table(compared).splitlines()[-1].endswith("| 19.5 |  |  |")


def test_a_trial_at_another_commit_is_replaced_only_if_asked(results, monkeypatch):
    monkeypatch.setattr(trials, "measure", lambda script, seed, steps: dict.fromkeys(trials.COLUMNS[1:], 1))
    monkeypatch.setattr(markup, "write", lambda blocks: None)

    def measure(commit, *words):
        monkeypatch.setattr(lab, "commit", lambda: commit)
        monkeypatch.setattr("sys.argv", ["trials.py", "distributed/02_ppo_fast", *words])
        trials.main()
        frame, stamped = lab.read(trials.results_of("distributed/02_ppo_fast"))
        return sorted(frame.seed), stamped["commit"]

    assert measure("one", "--seeds", "1-2") == ([1, 2], "one")
    assert measure("one", "--seeds", "2-3") == ([1, 2, 3], "one")
    with pytest.raises(
        SystemExit, match=r"with other conditions \(commit\); give a new --label, or --overwrite to replace it"
    ):
        measure("two", "--seeds", "4-5")
    assert measure("one", "--seeds", "1-1") == ([1, 2, 3], "one")
    assert measure("two", "--seeds", "4-5", "--overwrite") == ([4, 5], "two")


def test_ppo_without_the_goal_stands_beside_ppo_with_it(capsys):
    without, knowing = trials.HAS_GOAL_SCHEDULES
    frame = pd.DataFrame({"seed": [1, 2, 3], "steps_to_goal": [300_000, math.inf, math.inf]})

    def trial(label, frame, max_steps=800_000):
        return frame, {"settings": {"label": label, "max_steps": max_steps}}

    table = trials.goal_table([trial(without, frame), trial(knowing, frame.clip(upper=500_000))])
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in table.splitlines()]
    assert cells[0][2] == "solved within 800,000 agent steps"
    assert cells[2] == ["`distributed/02_ppo_fast`", "no", "1 of 3 seeds", "never (300 to never)"]
    assert cells[3] == ["`distributed/03_ppo_goal`", "**yes**", "3 of 3 seeds", "500 (300 to 500)"]
    assert trials.comparable([trial(without, frame), trial(knowing, frame[::-1])])
    for other in (trial(knowing, frame, 400_000), trial(knowing, frame.assign(seed=[4, 5, 6]))):
        assert not trials.comparable([trial(without, frame), other])
    assert capsys.readouterr().err.count("differ in --max-steps or --seeds") == 2


def test_a_run_counts_as_solved_only_if_greedy_play_reached_the_goal_too():
    frame = pd.DataFrame(
        {
            "seed": [7, 8, 9],
            "stopped": ["solved"] * 3,
            "evaluation_mean": [20.0, 17.9, 18.0],
            "seconds": [100.0, 50.0, 700.0],
            "steps": [200_000, 90_000, 900_000],
        }
    )
    timed = time_to_solve.Solved("distributed/04_ppo_actors", "solve/x", frame, {"settings": {"time_limit": 900}})
    assert time_to_solve.time_to_goal(timed) == "700 s (100 to never), 2 of 3 seeds"
    goal = pd.DataFrame({"seed": [1, 2], "steps_to_goal": [300_000, math.inf]})
    settings = {"label": trials.GOAL_TRIAL, "max_steps": 800_000}
    short = {"label": "distributed/02_ppo_fast", "max_steps": 400_000}
    table = trials.pong_table([(goal, {"settings": settings}), (goal, {"settings": short})], [timed])
    rows = {
        cells[0]: cells[1:] for row in table.splitlines() if (cells := [c.strip() for c in row.strip("|").split("|")])
    }
    assert rows["`03_ppo_goal`"] == ["1 to 2", "1 of 2", "never (300 to never)", "", "", ""]
    assert rows["`02_ppo_fast`"] == rows["`03_ppo_goal`"]  # no p, because its runs were shorter
    timed_cells = ["7 to 9", "2 of 3", "900 (200 to never)", "", "700 s (100 to never), 2 of 3 seeds", "1 of 3"]
    assert rows["`04_ppo_actors`"] == timed_cells


@pytest.mark.parametrize("text", ["110-101", "101", "a-b", ""])
def test_a_wrong_range_of_seeds_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 101-110"):
        trials.seeds(text)
