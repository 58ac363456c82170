"""Groups, outcomes and summaries of runs."""

import os

from finished_runs import make_run
from lib.analysis.comparison import Group, group_runs, read_outcome, summarise


def test_runs_that_differ_only_in_the_seed_or_name_are_one_group(tmp_path):
    one = make_run(tmp_path / "a1", 1, knobs={"players": 2}, episodes=1)
    two = make_run(tmp_path / "a2", 2, knobs={"players": 2}, episodes=1)
    knob = make_run(tmp_path / "b", knobs={"players": 4}, episodes=1)
    gamma = make_run(tmp_path / "c", knobs={"players": 2}, gamma=0.9, episodes=1)
    script = make_run(tmp_path / "d", script="02_other", knobs={"players": 2}, episodes=1)
    renamed = make_run(tmp_path / "e", 3, knobs={"players": 2}, run_name="mine", episodes=1)
    assert group_runs([one, knob, gamma, script, two, renamed]) == [
        Group("01_ppo, players=2, gamma=0.99", (one, two, renamed)),
        Group("01_ppo, players=4, gamma=0.99", (knob,)),
        Group("01_ppo, players=2, gamma=0.9", (gamma,)),
        Group("02_other, players=2, gamma=0.99", (script,)),
    ]


def test_a_group_is_summarised_by_mean_and_range(tmp_path):
    one, two, three = (make_run(tmp_path / f"{seed}", seed, lambda n, seed=seed: 10.0 * seed) for seed in (1, 2, 3))
    summary = summarise(Group("", (one, two, three)))
    assert "return 20.00 (10.00 to 30.00)" in summary
    assert "solved in 2.00 (1.00 to 3.00) minutes" in summary
    (two / "result.json").unlink()
    summary = summarise(Group("", (one, two)))
    assert "return 15.00 (10.00 to 20.00)" in summary
    assert "in 1 of 2 runs in 1.00 minutes" in summary


def test_the_outcome_of_a_run_in_progress_comes_from_its_episodes(tmp_path):
    run = make_run(tmp_path / "run")
    assert read_outcome(run)["ended"] == "solved"
    (run / "pid").write_text(str(os.getpid()))  # resumed, so result.json is from an earlier process
    with (run / "episodes.csv").open("a") as file:
        file.write("151,15100,100,")  # a row that is just being written
    outcome = read_outcome(run)
    assert outcome["ended"] == "running"
    assert (outcome["steps"], outcome["episodes"], outcome["minutes"]) == (15_000, 150, 15.0)
    os.utime(run / "pid", (1e9, 1e9))  # another process has this number now
    assert read_outcome(run)["ended"] == "solved"
