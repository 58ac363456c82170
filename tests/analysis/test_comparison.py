"""Groups, outcomes and summaries of runs."""

import numpy as np
import pytest

from finished_runs import edit_params, in_use, make_run
from lib.analysis import comparison, intervals
from lib.analysis.comparison import Group
from lib.analysis.run_data import Run
from lib.run.folder import read_json, write_json
from running import PROJECT


def read(*paths):
    return [Run.read(path) for path in paths]


def summarise(*paths):
    return comparison.summarise(Group("", tuple(read(*paths))))


def outcome_of(path):
    return comparison.outcome_of(Run.read(path))


def test_runs_that_differ_only_in_the_seed_or_name_are_one_group(tmp_path):
    two, unset = {"players": 2}, {"max_lag": None, "without": [], "async_envs": False}
    settings = [{"knobs": two}, {"knobs": {"players": 4}}, {"knobs": two, "gamma": 0.9}]
    settings += [{"script": "02_other"}, {"knobs": two | unset}, {"knobs": two | {"patience": 9}}]
    for number, own in enumerate([*settings, {"knobs": two, "run_name": "mine"}, {"knobs": two}]):
        run = make_run(tmp_path / str(number), number, episodes=1, **own)
    edit_params(run, lambda params: params.update(init="models/pong"))
    found = read(*sorted(tmp_path.iterdir()))
    assert {group.label: [int(run.name) for run in group.runs] for group in comparison.group_runs(found)} == {
        "01_ppo, players=2, gamma=0.99": [0, 4, 5, 6],
        "01_ppo, players=4, gamma=0.99": [1],
        "01_ppo, players=2, gamma=0.9": [2],
        "02_other, gamma=0.99": [3],
        "01_ppo, players=2, gamma=0.99, init=models/pong": [7],
    }
    assert list(comparison.settings_table(found)) == ["seed", "script", "players", "gamma", "patience", "init"]


def test_few_runs_are_summarised_by_mean_and_range_and_more_by_an_interval(tmp_path):
    runs = [make_run(tmp_path / f"{seed}", seed, lambda n, seed=seed: 10.0 * seed) for seed in range(1, 6)]
    centre, low, high = intervals.interval(np.arange(1.0, 6.0))
    assert 1.0 < low < high < 5.0
    summary = summarise(*runs)
    assert f"interquartile mean return {10 * centre:.2f} (95% interval {10 * low:.2f} to {10 * high:.2f})" in summary
    assert f"solved in {centre:.2f} (95% interval {low:.2f} to {high:.2f}) minutes" in summary
    assert "interquartile mean return 20.00 (range 10.00 to 30.00)" in summarise(*runs[:3])
    assert "solved in 1.50 (range 1.00 to 2.00) minutes" in summarise(*runs[:2])
    (runs[1] / "result.json").unlink()
    assert "in 1 of 2 runs, which took 1.00 minutes" in summarise(*runs[:2])


def test_a_summary_notes_what_makes_its_numbers_less_certain(tmp_path):
    one, two, copy = (make_run(tmp_path / name, seed) for name, seed in (("one", 1), ("two", 2), ("copy", 1)))
    assert ";" not in summarise(one, two)
    assert "; some of these runs have the same seed" in summarise(one, two, copy)
    edit_params(two, lambda params: params["sessions"][0].update(commit="abc123+"))
    edit_params(two, lambda params: params["sessions"][0]["machine"].update(device="a GPU"))
    write_json(two / "result.json", read_json(two / "result.json") | {"stopped": "time limit"})
    notes = "; 1 stopped early, and can be resumed; they ran at different commits; they ran on different machines, or "
    assert notes in summarise(one, two)
    with in_use(two):
        assert "; 1 still running;" in summarise(one, two)


def test_only_an_evaluation_of_the_best_or_the_last_network_is_an_outcome(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "checkpoints").mkdir()
    for name in ("best-000000500.pt", "best-000000900.pt", "step-000001000.pt"):
        (run / "checkpoints" / name).touch()
    newest = {"mean": 20.5, "checkpoint": "best-000000900.pt"}
    write_json(run / "evaluation.json", newest)
    assert outcome_of(run)["evaluated"] == 20.5
    write_json(run / "evaluation.json", newest | {"checkpoint": "best-000000500.pt"})
    assert outcome_of(run)["evaluated"] is None
    assert "evaluated" not in comparison.outcome_table(read(run))  # no run has it


def test_the_outcome_of_a_published_model_is_that_of_its_evaluation(tmp_path):
    model = PROJECT / "models/boxing"
    outcome = outcome_of(model)
    assert (outcome["steps"], outcome["ended"]) == (2_481_152, "published model")
    assert outcome["evaluated"] == pytest.approx(77.97)
    table = comparison.outcome_table(read(make_run(tmp_path / "run"), model))
    assert [comparison.format_value(value) for value in table["episodes"]] == ["150", "-"]  # they are not published


def test_the_outcome_of_a_run_in_progress_comes_from_its_episodes(tmp_path):
    run = make_run(tmp_path / "run", returns=lambda episode: 21.0 if episode <= 15 else -21.0)
    assert outcome_of(run)["ended"] == "solved"
    with in_use(run):  # resumed, so result.json is from an earlier process
        with (run / "episodes.csv").open("a") as file:
            file.write("151,15100,100,")  # a row that is just being written
        outcome = outcome_of(run)
    assert (outcome["ended"], outcome["steps"], outcome["episodes"], outcome["minutes"]) == ("running", 15e3, 150, 15.0)
    assert outcome["best"] == pytest.approx(-14.7)  # mean of a hundred episodes, although those of fewer are higher
    assert outcome_of(make_run(tmp_path / "short", episodes=50))["best"] == pytest.approx(-14.9)  # of all


def test_names_leave_out_what_all_runs_share_and_have_their_folders_if_they_are_equal(tmp_path):
    names = ("2026-11-20T1015-pong-01_ppo", "2026-11-20T1016-pong-01_ppo-seed2", "2026-11-20T1017-pong-01_ppo")
    one, two, again = read(*(make_run(tmp_path / "here" / name, episodes=1) for name in names))
    assert comparison.short_names([one, two]) == ["01_ppo", "01_ppo-seed2"]
    assert comparison.short_names([one, two, again]) == [names[0], "01_ppo-seed2", names[2]]
    elsewhere = make_run(tmp_path / "there" / names[0], episodes=1)
    assert comparison.short_names([one, *read(elsewhere)]) == [f"here/{names[0]}", f"there/{names[0]}"]
