"""A search and its best setting: their runs and their table."""

import math

import pandas as pd

import lab
import launch
import tuned


def test_a_search_that_goes_on_replaces_the_trials_of_an_earlier_search(results, monkeypatch, tmp_path):
    monkeypatch.setattr(tuned, "RUNS", tmp_path / "runs")
    folder = tmp_path / "runs" / "tune" / "search"
    folder.mkdir(parents=True)
    (folder / "params.json").write_text('{"learning_rate": 0.001, "gamma": 0.9}')
    monkeypatch.setattr(launch, "start", lambda words: None)
    for commit, episodes in (("one", "7"), ("two", "8"), ("three", "8")):
        monkeypatch.setattr(lab, "commit", lambda commit=commit: commit)
        trial = dict.fromkeys(tuned.TRIAL_COLUMNS, "1") | {"episodes": episodes}
        pd.DataFrame([trial]).to_csv(folder / "trials.csv", index=False)
        assert tuned.search(go_on=True) == {"learning_rate": 0.001, "gamma": 0.9}
    trials, stamped = lab.read(tuned.TRIALS_NAME)
    assert list(trials.episodes) == [8]
    assert stamped["commit"] == "two"  # the third search found nothing new


def test_an_unsolved_run_of_a_tuned_setting_counts_as_slower_than_all_others():
    own, best = tuned.SETTING_NAMES
    rows = [(best, 1, "solved", 200.0, 50_000), (own, 1, "solved", 300.0, 60_000)]
    rows += [(own, 2, "step limit", math.inf, 100_000), (best, 2, "solved", 210.0, 40_000)]
    frame = pd.DataFrame(rows, columns=["setting", "seed", "stopped", "episodes", "steps"])
    frame = frame.assign(learning_rate=1e-3, gamma=0.99, mean_100=475.0)
    _, _, own, best = tuned.table(frame).splitlines()
    assert "| 1 of 2 | never (300 to never) | never (60,000 to never) |" in own
    assert "| 2 of 2 | 205 (200 to 210) | 45,000 (40,000 to 50,000) |" in best
    assert tuned.table(frame[frame.setting == tuned.SETTING_NAMES[0]]).splitlines()[-1] == own  # of an interrupted one
