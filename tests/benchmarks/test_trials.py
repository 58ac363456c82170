"""Trials of settings: when they are replaced, and their tables."""

import argparse
import math

import pandas as pd
import pytest

import lab
import markup
import trials
from lib.system import machine


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


def test_a_trial_goes_on_at_another_commit_and_is_replaced_only_if_asked(results, monkeypatch):
    monkeypatch.setattr(trials, "measure", lambda script, seed, steps: dict.fromkeys(trials.COLUMNS[1:-1], 1))
    monkeypatch.setattr(markup, "write", lambda blocks: None)

    def measure(commit, *words, threads=1):
        monkeypatch.setattr(lab, "commit", lambda: commit)
        monkeypatch.setattr(machine, "machine", lambda device: {"device": device, "cores": threads})
        monkeypatch.setattr("sys.argv", ["trials.py", "distributed/02_ppo_fast", *words])
        trials.main()
        frame, _ = lab.read(trials.results_of("distributed/02_ppo_fast"))
        return list(zip(frame.seed, frame.commit, strict=True))

    assert measure("one", "--seeds", "1-2") == [(1, "one"), (2, "one")]
    assert measure("two", "--seeds", "2-3") == [(1, "one"), (2, "one"), (3, "two")]
    with pytest.raises(SystemExit, match=r"with other conditions \(machine\); give a new --label, or --overwrite"):
        measure("two", "--seeds", "4-4", threads=4)
    assert measure("two", "--seeds", "4-4", "--overwrite", threads=4) == [(4, "two")]


@pytest.mark.parametrize("text", ["110-101", "101", "a-b", ""])
def test_a_wrong_range_of_seeds_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 101-110"):
        trials.seeds(text)
