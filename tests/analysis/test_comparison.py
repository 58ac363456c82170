"""Groups, outcomes and summaries of runs."""

import math

import numpy as np
import pytest

from finished_runs import edit_params, in_use, make_run
from lib.analysis import comparison, intervals
from lib.analysis.comparison import Group, format_value
from lib.analysis.run_data import Run
from lib.run.folder import read_json, write_json
from running import PROJECT


def read_all(runs):
    return [Run.read(run) for run in runs]


def group_runs(runs):
    """Return the label and the folders of each group."""
    return [(group.label, *(run.path for run in group.runs)) for group in comparison.group_runs(read_all(runs))]


def summarise(*runs):
    return comparison.summarise(Group("", tuple(read_all(runs))))


def outcome_of(run):
    return comparison.outcome_of(Run.read(run))


def settings_table(runs):
    return comparison.settings_table(read_all(runs))


def outcome_table(runs):
    return comparison.outcome_table(read_all(runs))


def short_names(runs):
    return comparison.short_names(read_all(runs))


def test_runs_that_differ_only_in_the_seed_or_name_are_one_group(tmp_path):
    one = make_run(tmp_path / "a1", 1, knobs={"players": 2}, episodes=1)
    two = make_run(tmp_path / "a2", 2, knobs={"players": 2}, episodes=1)
    knob = make_run(tmp_path / "b", knobs={"players": 4}, episodes=1)
    gamma = make_run(tmp_path / "c", knobs={"players": 2}, gamma=0.9, episodes=1)
    script = make_run(tmp_path / "d", script="02_other", knobs={"players": 2}, episodes=1)
    renamed = make_run(tmp_path / "e", 3, knobs={"players": 2}, run_name="mine", episodes=1)
    assert group_runs([one, knob, gamma, script, two, renamed]) == [
        ("01_ppo, players=2, gamma=0.99", one, two, renamed),
        ("01_ppo, players=4, gamma=0.99", knob),
        ("01_ppo, players=2, gamma=0.9", gamma),
        ("02_other, players=2, gamma=0.99", script),
    ]


def test_a_setting_that_is_not_set_equals_a_missing_one(tmp_path):
    runs = [
        make_run(
            tmp_path / "a", 1, knobs={"max_lag": None, "without": [], "async_envs": False, "players": 2}, episodes=1
        ),
        make_run(tmp_path / "b", 2, knobs={}, episodes=1),
    ]
    assert list(settings_table(runs)) == ["seed", "players"]
    third = make_run(tmp_path / "c", 3, knobs={"players": 2}, episodes=1)
    assert [len(runs) for _, *runs in group_runs([*runs, third])] == [2, 1]


def test_a_run_with_initial_weights_is_in_a_group_of_its_own(tmp_path):
    runs = [make_run(tmp_path / name, seed, episodes=1) for seed, name in enumerate("ab")]
    edit_params(runs[1], lambda params: params.update(init="models/pong"))
    assert len(group_runs(runs)) == 2
    assert list(settings_table(runs)) == ["seed", "init"]


def test_a_run_without_an_episode_leaves_the_others_their_mean(tmp_path):
    runs = [make_run(tmp_path / f"{seed}", seed, lambda n: 10.0) for seed in range(3)]
    (runs[2] / "result.json").unlink()
    (runs[2] / "episodes.csv").write_text((runs[2] / "episodes.csv").read_text().splitlines()[0] + "\n")
    assert summarise(*runs).startswith("mean return 10.00 (range 10.00 to 10.00) in 2 of 3 runs")


def test_few_runs_are_summarised_by_mean_and_range_and_more_by_an_interval(tmp_path):
    runs = [make_run(tmp_path / f"{seed}", seed, lambda n, seed=seed: 10.0 * seed) for seed in range(1, 6)]
    one, two, *_ = runs
    centre, low, high = intervals.interval(np.arange(1.0, 6.0))
    summary = summarise(*runs)
    assert f"interquartile mean return {10 * centre:.2f} (95% interval {10 * low:.2f} to {10 * high:.2f})" in summary
    assert f"solved in {centre:.2f} (95% interval {low:.2f} to {high:.2f}) minutes" in summary
    assert 1.0 < low < high < 5.0
    for number in (3, 4):
        summary = summarise(*runs[:number])
        assert f"interquartile mean return {5 + 5 * number}.00 (range 10.00 to {10 * number}.00)" in summary
    summary = summarise(one, two)
    assert "return 15.00 (range 10.00 to 20.00)" in summary
    assert "solved in 1.50 (range 1.00 to 2.00) minutes" in summary
    (two / "result.json").unlink()
    summary = summarise(one, two)
    assert "return 15.00 (range 10.00 to 20.00)" in summary
    assert "in 1 of 2 runs, which took 1.00 minutes" in summary


def test_differing_settings_begin_with_seed_script_and_learning_rate(tmp_path):
    one = make_run(tmp_path / "one", knobs={"actors": 2}, episodes=1)
    two = make_run(tmp_path / "two", 2, script="02_ppo", knobs={"actors": 3}, learning_rate=0.5, gamma=0.9, episodes=1)
    assert list(settings_table([one, two])) == ["seed", "script", "learning_rate", "actors", "gamma"]


def test_outcomes_that_no_run_has_are_left_out(tmp_path):
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two")
    assert "evaluated" not in outcome_table([one, two])
    evaluation = {"mean": 20.5, "checkpoint": "best-000000001.pt"}
    write_json(two / "evaluation.json", evaluation)
    (two / "checkpoints").mkdir()
    (two / "checkpoints" / "best-000000001.pt").touch()
    assert outcome_table([one, two])["evaluated"].tolist()[1] == 20.5
    for other in ({"epsilon": 0.05}, {"sample": True}, {"checkpoint": "best-000000009.pt"}):  # it is no longer there
        write_json(two / "evaluation.json", evaluation | other)
        assert "evaluated" not in outcome_table([one, two])


def test_an_evaluation_of_an_early_network_is_not_that_of_the_run(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "checkpoints").mkdir()
    for name in ("best-000000500.pt", "best-000000900.pt", "step-000000600.pt", "step-000001000.pt"):
        (run / "checkpoints" / name).touch()
        write_json(run / "evaluation.json", {"mean": 20.5, "checkpoint": name})
        assert outcome_of(run)["evaluated"] == 20.5  # the newest of its kind so far
    for name in ("best-000000500.pt", "step-000000600.pt"):
        write_json(run / "evaluation.json", {"mean": 20.5, "checkpoint": name})
        assert outcome_of(run)["evaluated"] is None


def test_options_on_which_neither_results_nor_speeds_depend_do_not_divide_a_group(tmp_path):
    knobs = [{"patience": 60, "without": ["kl", "entropy"]}, {"patience": 120, "without": ["entropy", "kl"]}]
    runs = [make_run(tmp_path / f"{seed}", seed, knobs=each, episodes=1) for seed, each in enumerate(knobs)]
    assert len(group_runs(runs)) == 1
    assert list(settings_table(runs)) == ["seed", "patience"]
    runs = [make_run(tmp_path / engine, knobs={"engine": engine}, episodes=1) for engine in ("process", "ray")]
    assert [label for label, *_ in group_runs(runs)] == ["engine=process", "engine=ray"]


def test_settings_that_differ_in_the_seventh_digit_are_two_groups(tmp_path):
    runs = [make_run(tmp_path / f"{gamma}", gamma=gamma, episodes=1) for gamma in (0.9999999, 0.9999995, 1.0)]
    assert [label for label, *_ in group_runs(runs)] == ["gamma=0.9999999", "gamma=0.9999995", "gamma=1"]


def test_a_summary_notes_what_makes_its_numbers_less_certain(tmp_path):
    one, two, copy = (make_run(tmp_path / name, seed) for name, seed in (("one", 1), ("two", 2), ("copy", 1)))
    assert ";" not in summarise(one, two)
    assert "; some of these runs have the same seed" in summarise(one, two, copy)
    edit_params(two, lambda params: params["sessions"][0].update(commit="abc123+"))
    assert summarise(one, two).endswith("; they ran at different commits")
    edit_params(two, lambda params: params["sessions"][0]["machine"].update(device="a GPU"))
    assert "; they ran on different machines, or with different numbers of torch threads" in summarise(one, two)
    write_json(two / "result.json", read_json(two / "result.json") | {"stopped": "time limit"})
    assert "; 1 stopped early, and can be resumed" in summarise(one, two)
    with in_use(two):
        summary = summarise(one, two)
    assert "; 1 still running;" in summary
    assert "stopped early" not in summary


def test_the_outcome_of_a_published_model_is_that_of_its_evaluation(tmp_path):
    model = PROJECT / "models/boxing"
    outcome = outcome_of(model)
    assert (outcome["steps"], outcome["ended"]) == (2_481_152, "published model")
    assert math.isnan(outcome["episodes"])  # its training episodes are not published
    table = outcome_table([make_run(tmp_path / "run", episodes=150), model])
    assert [format_value(value) for value in table["episodes"]] == ["150", "-"]
    assert outcome["evaluated"] == pytest.approx(77.97)


@pytest.mark.parametrize(
    ("stopped", "steps", "ended"),
    [
        ("solved", 9, True),
        ("step limit", 10**9, True),
        ("step limit", 9, False),
        ("SIGINT", 9, False),
    ],
)
def test_a_run_that_can_be_resumed_has_not_ended(tmp_path, stopped, steps, ended):
    run = make_run(tmp_path / "run")
    write_json(run / "result.json", read_json(run / "result.json") | {"stopped": stopped, "steps": steps})
    assert Run.read(run).has_ended == ended


def test_runs_of_one_name_in_two_folders_are_told_apart(tmp_path):
    runs = [make_run(tmp_path / folder / "2026-11-20T1015-pong-01_ppo", episodes=1) for folder in ("here", "there")]
    assert short_names(runs) == ["here/2026-11-20T1015-pong-01_ppo", "there/2026-11-20T1015-pong-01_ppo"]
    runs += [make_run(tmp_path / folder / "runs" / "2026-11-20T1015-pong-01_ppo") for folder in ("here", "there")]
    assert list(outcome_table(runs).index) == [str(run.relative_to(tmp_path)) for run in runs]


def test_short_names_leave_out_the_time_and_what_all_runs_share(tmp_path):
    names = ("2026-11-20T1015-pong-01_ppo", "2026-11-20T1016-pong-01_ppo-seed2", "2026-11-20T1017-pong-01_ppo")
    one, two, again = (make_run(tmp_path / name, episodes=1) for name in names)
    assert short_names([one, two]) == ["01_ppo", "01_ppo-seed2"]
    assert short_names([one, two, again]) == [names[0], "01_ppo-seed2", names[2]]
    other = make_run(tmp_path / "2026-11-20T1018-mine-01_ppo", run_name="mine", episodes=1)
    assert short_names([one, other]) == ["pong-01_ppo", "mine-01_ppo"]


def test_a_label_names_the_game_before_the_settings_that_belong_to_it(tmp_path):
    one = make_run(tmp_path / "one", episodes=1)
    other = make_run(tmp_path / "other", env_name="Freeway", learning_rate=0.5, episodes=1)
    assert [label for label, *_ in group_runs([one, other])] == ["PongNoFrameskip-v4", "Freeway"]


@pytest.mark.parametrize(("episodes", "best"), [(90, 21.0), (200, -14.7)])
def test_the_best_mean_is_of_a_hundred_episodes_once_there_are_so_many(tmp_path, episodes, best):
    run = make_run(tmp_path / "run", returns=lambda episode: 21.0 if episode <= 15 else -21.0, episodes=episodes)
    assert outcome_of(run)["best"] == pytest.approx(best)


def test_the_outcome_of_a_run_in_progress_comes_from_its_episodes(tmp_path):
    run = make_run(tmp_path / "run")
    assert outcome_of(run)["ended"] == "solved"
    with in_use(run):  # resumed, so result.json is from an earlier process
        with (run / "episodes.csv").open("a") as file:
            file.write("151,15100,100,")  # a row that is just being written
        outcome = outcome_of(run)
    assert outcome["ended"] == "running"
    assert (outcome["steps"], outcome["episodes"], outcome["minutes"]) == (15_000, 150, 15.0)
    assert outcome_of(run)["ended"] == "solved"
