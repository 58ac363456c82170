"""Benchmarks: results files, statistics, and the tables made from them."""

import argparse
import json
import math
import os
import runpy
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pandas as pd
import pytest

import atari
import chapter08
import chapter09
import check_docs
import curve
import distributed
import lab
import ladder
import launch
import markup
import minutes
import own_environment
import own_games
import significance
import time_to_solve
import trials
import tuned
from finished_runs import make_run
from lib.run import run_json
from lib.run.stopping import NOT_FINITE


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Folder in place of benchmarks/results."""
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    return tmp_path


def test_an_interrupted_measurement_goes_on_with_its_rows(results):
    first = lab.Results("folder/x", ("round", "rung", "value"))
    first.add(round=0, rung="a", value="1.50")
    second = lab.Results("folder/x", ("round", "rung", "value"), go_on=True)
    assert second.has(round=0, rung="a")
    assert not second.has(round=0, rung="b")
    second.add(round=0, rung="b", value="2.50")
    assert second.has(round=0, rung="b")
    frame, stamped = lab.read("folder/x")
    assert list(frame["value"]) == [1.5, 2.5]
    assert list(frame["rung"]) == ["a", "b"]
    assert stamped["machine"]["cores"] >= 1


def test_a_new_measurement_keeps_the_old_rows_until_its_first_row(results):
    lab.Results("x", ("round",)).add(round=0)
    new = lab.Results("x", ("round",))
    assert list(lab.read("x")[0]["round"]) == [0]
    new.add(round=7)
    assert list(lab.read("x")[0]["round"]) == [7]


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
@pytest.mark.parametrize(
    ("key", "changed"),
    [
        ("commit", "another"),
        ("versions", {"torch": "1"}),
        ("machine", {"cores": 0}),
        ("settings", {"steps": 20}),
    ],
)
def test_a_measurement_under_other_conditions_is_not_continued(results, key, changed):
    stamped = lab.stamp(steps=10) | {"commit": "abc"}
    lab.Results("x", ("round",), stamped).add(round=0)
    assert lab.can_go_on("x", ("round",), stamped)
    assert not lab.can_go_on("x", ("round", "more"), stamped)
    assert not lab.can_go_on("x", ("round",), stamped | {key: changed})
    with pytest.raises(SystemExit, match=key):
        lab.Results("x", ("round",), stamped | {key: changed}, go_on=True)
    for command in (("init", "-q"), ("add", "x.csv"), ("commit", "-qm", "measured")):  # by an earlier measurement
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(results), *command]
        subprocess.run(git, check=True)
    again = lab.Results("x", ("round",), stamped | {key: changed}, go_on=True)
    assert not again.has(round=0)
    again.add(round=9)
    assert lab.read("x")[0]["round"].tolist() == [9]


def test_settings_are_compared_as_they_are_written(results):
    stamped = lab.stamp(settings=("envs=2",), place=(1, (2, 3)))
    lab.Results("x", ("round",), stamped).add(round=0)
    assert lab.Results("x", ("round",), stamped, go_on=True).has(round=0)


@pytest.mark.parametrize(
    ("options", "device"),
    [
        (["--envs", "3"], "cpu"),
        (["--cuda"], "cuda"),
        (["--device", "cuda:1", "--set", "epochs=2"], "cuda:1"),
        (["--device=cuda"], "cuda"),
    ],
)
def test_the_device_is_read_from_a_scripts_options(options, device):
    assert launch.device_of(options) == device


@pytest.mark.parametrize(
    ("rung", "path"),
    [("01_baseline --envs 3", "chapter09/01_baseline.py"), ("distributed/01_ppo", "distributed/01_ppo.py")],
)
def test_a_rung_is_started_from_chapter_9_or_from_its_own_folder(rung, path):
    python, script, *options = launch.command(rung, "--quiet")
    assert python == sys.executable
    assert script == str(lab.PROJECT / path)
    assert options == [*rung.split()[1:], "--quiet"]


SLOW = """
import os, sys, time
try:
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()) + ".")
    time.sleep(20)
except KeyboardInterrupt:
    time.sleep(1)
    sys.exit(9)
"""


def test_ctrl_c_is_left_to_the_running_script(tmp_path):
    started = tmp_path / "pid"

    def press_ctrl_c():
        while not (started.exists() and started.read_text().endswith(".")):
            time.sleep(0.02)
        for pid in (os.getpid(), int(started.read_text()[:-1])):
            os.kill(pid, signal.SIGINT)

    threading.Thread(target=press_ctrl_c, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        launch.start([sys.executable, "-c", SLOW, str(started)])
    assert ended.value.code == 9


def test_after_a_failed_call_no_other_begins():
    begun = []

    def call(number):
        begun.append(number)
        time.sleep(0.01)
        if number == 1:
            raise ValueError("it broke")
        return 10 * number

    with pytest.raises(ValueError, match="it broke"):
        assert list(launch.in_parallel(1, call, range(500)))
    assert begun == [0, 1]
    assert sorted(launch.in_parallel(2, call, [2, 3])) == [(2, 20), (3, 30)]


def test_after_a_failed_training_no_other_is_started(tmp_path, monkeypatch):
    programs = [sys.executable, "-c", "exit(7)"], [sys.executable, "-c", f"open({str(tmp_path / 'started')!r}, 'w')"]
    monkeypatch.setattr(launch, "command", lambda rung, *options: programs[rung])
    monkeypatch.setattr(minutes, "_folders", lambda *asked: [(tmp_path / str(rung), rung, 1) for rung in (0, 1)])
    with pytest.raises(SystemExit) as ended:
        minutes.train("best", "cpu", go_on=False, rungs=(), seeds=1, jobs=1)
    assert ended.value.code == 7
    assert not (tmp_path / "started").exists()


MEASURED = {
    "last_1000_steps_per_second": 50.0,
    "warm_up_steps_per_second": 9.0,
    "parts": {},
    "training_seconds": 20.0,
    "training_steps": 1000,
}


def trained(rung, steps):
    reached = {} if steps is None else {"17.0": {"step": steps // 2}, "18.0": {"step": steps}}
    return minutes.Trained(rung, pd.DataFrame(), {"result": {"reached": reached, "episodes": 300}})


def test_a_run_that_was_killed_before_its_first_checkpoint_is_not_continued(tmp_path):
    for name, files in (("a", ["params.json"]), ("b", ["params.json", "checkpoints/step-000000064.pt"])):
        for file in files:
            (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / file).touch()
    assert minutes.runs_in(tmp_path) == [tmp_path / "b"]


def test_minutes_are_steps_divided_by_the_median_speed():
    runs = [trained("01_baseline", 600_000), trained("03_parallel", 480_000), trained("03_parallel", None)]
    # The machine was slow in the second round, so medians of the speeds would not show that 03 was twice as fast.
    speeds = {"01_baseline": pd.Series([100.0, 50.0, 120.0]), "03_parallel": pd.Series([200.0, 100.0, 100.0])}
    *_, baseline, parallel = minutes.table(runs, speeds).splitlines()
    assert baseline.split(" | ")[2:6] == ["100 (50 to 120)", "50", "100", ""]
    assert parallel.split(" | ")[3:5] == ["never (40 to never)", "never (80 to never)"]
    *_, parallel = minutes.table([runs[0], runs[1]], speeds).splitlines()
    assert parallel.split(" | ")[3:6] == ["40", "80", "-60 %"]
    *_, parallel = minutes.table([trained("01_baseline", None), runs[1]], speeds).splitlines()
    assert parallel.split(" | ")[3:6] == ["40", "80", ""]  # nothing to compare with


def test_a_run_whose_results_are_kept_is_not_trained_again(monkeypatch, results, tmp_path):
    started = []
    monkeypatch.setattr(
        launch, "command", lambda rung, *options: started.append(options) or [sys.executable, "--version"]
    )
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    lab.Results("minutes-best/03_parallel-seed1", ("episode",), trained("03_parallel", 9).stamped).add(episode=1)
    minutes.train("best", "cpu", go_on=False, rungs=["03_parallel"], seeds=2, jobs=1)
    assert [options[options.index("--seed") + 1] for options in started] == ["2"]


def test_speeds_are_measured_only_if_one_is_missing(monkeypatch, results):
    def measured_rungs():
        timed = []
        monkeypatch.setattr(launch, "timed", lambda rung, *_: timed.append(rung) or MEASURED)
        monkeypatch.setattr(sys, "argv", ["chapter09.py", "--params", "best", "--rounds", "2"])
        chapter09.main()
        return timed

    for name in ("blocks", "pictures"):
        monkeypatch.setattr(chapter09, name, lambda: ())
    monkeypatch.setattr(minutes, "train", lambda *asked: None)
    for rung in ("03_parallel", "07_pong_in_minutes"):
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
        every = sorted(set(minutes.LADDER) & {run.rung for run in minutes.read("best")})
        assert measured_rungs() == [*every, *every[::-1]]  # all anew, because rungs are compared round by round
        assert measured_rungs() == []


def test_the_asked_for_number_of_seeds_is_trained():
    rung = "02_n_envs --envs 3"
    assert [seed for _, _, seed in minutes._folders("best", "cpu", [rung], 3)] == [1, 2, 3]
    assert [seed for _, _, seed in minutes._folders("best", "cpu", ["01_baseline", rung], 0)] == [1, 1, 2, 3]


def test_speeds_with_tuned_hyperparameters_are_measured_again_without_training(monkeypatch, results):
    for rung in ("03_parallel", minutes.PLAIN, minutes.REMEDIES[0]):
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
    lab.Results("minutes-best/speed", chapter09.COLUMNS).add(**dict.fromkeys(chapter09.COLUMNS, 1))
    monkeypatch.setattr(launch, "timed", lambda rung, *_: MEASURED)
    monkeypatch.setattr(minutes, "train", pytest.fail)
    for name in ("blocks", "pictures"):
        monkeypatch.setattr(chapter09, name, lambda: ())
    monkeypatch.setattr(sys, "argv", ["chapter09.py", "speed", "--params", "best", "--rounds", "2"])
    chapter09.main()
    frame = lab.read("minutes-best/speed")[0]
    assert (sorted(frame.rung.unique()), frame.steps_per_second.tolist()) == (
        ["03_parallel", minutes.PLAIN],
        [50.0] * 4,
    )
    remedies = lab.read("minutes-best/speed-remedies")[0]
    assert sorted(remedies.rung.unique()) == [minutes.PLAIN, minutes.REMEDIES[0]]
    assert not lab.path_of("chapter09/speed").exists()


def test_a_remedy_alone_is_timed_and_shown(monkeypatch, results, capsys):
    rung = minutes.REMEDIES[0]
    lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
    monkeypatch.setattr(launch, "timed", lambda rung, *_: MEASURED)
    for name in ("blocks", "pictures"):
        monkeypatch.setattr(chapter09, name, lambda: ())
    monkeypatch.setattr(sys, "argv", ["chapter09.py", "speed", "--params", "best", "--rounds", "1"])
    chapter09.main()
    assert f"| `{rung}` | 1 | 50 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("knobs", "rung"),
    [
        ({"players": 1, "replay_ratio": 32, "engine": "ray", "patience": 9, "address": "a:1"}, "x"),
        (
            {"envs": 3, "parallel": False, "stack": 4, "noop_max": 0, "max_frames": 0},
            "x --envs 3 --noop-max 0 --max-frames 0",
        ),
        ({"parallel": True, "players": 2, "async_envs": True}, "x --parallel --players 2"),
    ],
)
def test_a_rung_has_its_options_but_not_those_that_change_no_result(knobs, rung):
    assert curve.rung_of({"script": "x", "knobs": knobs}) == rung


def test_a_rung_whose_speed_was_not_measured_is_left_out(results):
    for rung in ("01_baseline", "03_parallel"):
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode",), trained(rung, 9).stamped).add(episode=1)
    assert minutes.timed("best")[0] == []
    lab.Results("minutes-best/speed", ("round", "rung", "steps_per_second")).add(
        round=0, rung="01_baseline", steps_per_second=100
    )
    runs, speeds = minutes.timed("best")
    assert [run.rung for run in runs] == ["01_baseline"]
    assert speeds["01_baseline"].tolist() == [100]


def test_a_rung_that_equals_its_parent_has_the_parent_s_steps_to_solve_pong(monkeypatch, tmp_path):
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    for rung, steps in (("01_baseline", 600_000), ("02_n_envs --envs 3", 500_000)):
        stamped = trained(rung, steps).stamped
        lab.Results(f"minutes-best/{lab.slug(rung)}-seed1", ("episode", "step"), stamped).add(episode=1, step=steps)
    found = {run.rung: run.steps_to("18.0") for run in minutes.read("best")}
    assert found == {
        "00_slow_grads": 600_000,
        "01_baseline": 600_000,
        "02_n_envs --envs 3": 500_000,
        "04_wrappers --envs 3": 500_000,
    }


def test_a_diverged_run_is_a_result_and_a_failed_run_is_not(tmp_path):
    script = tmp_path / "script.py"
    text = """import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--runs-dir") + 1], "run")
folder.mkdir()
(folder / "result.json").write_text(json.dumps({"stopped": %r}))
sys.exit(1)
"""
    script.write_text(text % NOT_FINITE)
    with launch.finished_run(str(script.with_suffix(""))) as run:
        assert run.name == "run"
    script.write_text(text % "SIGTERM")
    with pytest.raises(subprocess.CalledProcessError), launch.finished_run(str(script.with_suffix(""))):
        pass


def test_every_second_round_goes_backwards():
    assert list(lab.turns(2, ["a", "b"])) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_ratios_are_taken_within_a_round_and_incomplete_rounds_are_left_out():
    frame = pd.DataFrame(
        {"round": [0, 0, 1, 1, 2], "rung": ["b", "a", "a", "b", "a"], "value": [2.0, 1.0, 10.0, 30.0, 5.0]}
    )
    table = lab.rounds(frame, "rung", "value")
    assert list(table.columns) == ["b", "a"]
    assert list(lab.ratios(table, "a")["b"]) == [2.0, 3.0]


def test_a_table_without_complete_rounds_or_without_its_reference_is_refused():
    frame = pd.DataFrame({"round": [0, 1], "rung": ["a", "b"], "value": [1.0, 2.0]})
    with pytest.raises(SystemExit, match="no round of this measurement is complete"):
        lab.rounds(frame, "rung", "value")
    with pytest.raises(SystemExit, match="01_baseline was not measured"):
        lab.ratios(lab.rounds(frame[:1], "rung", "value"), "01_baseline")


def test_some_own_games_are_measured_without_a_change_of_the_page_s_results(results, monkeypatch, capsys):
    row = dict.fromkeys(own_games.COLUMNS[3:], 100.0)
    monkeypatch.setattr(own_games, "measure", lambda turn: row)
    monkeypatch.setattr(markup, "write", list)
    for options in ([], ["--game", "CartPole-v1", "--seeds", "4"]):
        monkeypatch.setattr(sys, "argv", ["own_games.py", "--jobs", "1", *options])
        own_games.main()
    assert len(lab.read("own_games/02_ppo_fast")[0]) == 3 * len(own_games.STEPS)
    assert len(lab.read("own_games_selected/02_ppo_fast")[0]) == 1
    assert "| `CartPole-v1` | 475 | `02_ppo_fast` | 1 of 1 |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("values", "options", "text"),
    [
        ([155.2, 98.4, 271.6], {"digits": 0, "unit": " s"}, "155 s (98 to 272)"),
        ([1615.6], {"digits": 0, "unit": " s", "single": "seed"}, "1,616 s (one seed)"),
        ([5.0, math.inf, 3.0], {"digits": 0}, "5 (3 to never)"),
        ([5.0, math.inf, 3.0, math.inf], {"digits": 0}, "never (3 to never)"),
        ([100.0, math.inf, math.inf], {"digits": 0, "unit": " s"}, "never (100 to never)"),
    ],
)
def test_a_spread_is_the_median_and_the_range(values, options, text):
    assert markup.spread(pd.Series(values), **options) == text


def test_one_sentence_says_where_several_files_were_measured():
    stamped = {
        "measured": "2026-11-22T10:00:00",
        "machine": {"cores": 2, "processor": "AMD EPYC", "device": "cpu", "torch_threads": 2},
        "versions": {"torch": "2.13.0+cpu", "ale-py": "0.12.1"},
    }
    other = stamped | {"measured": "2026-11-20T10:00:00"}
    sentence = markup.measured_on([stamped, other])
    assert sentence.count("2 cores (AMD EPYC), no GPU") == 1
    assert "2026-11-20 to 2026-11-22" in sentence


@pytest.mark.parametrize(("fast", "text"), [(True, "no GPU, bfloat16, "), (False, "no GPU, no bfloat16, ")])
def test_a_measurement_says_whether_the_machine_is_fast_in_bfloat16(fast, text):
    stamped = lab.stamp()
    assert isinstance(stamped["machine"]["fast_bfloat16"], bool)
    stamped["machine"]["fast_bfloat16"] = fast
    assert text in markup.measured_on([stamped])


def test_a_block_replaces_only_the_text_between_its_markers():
    block = markup.Block("page.md", "speed", "new")
    assert block.put_into("a\n<!-- speed -->\nold\n<!-- /speed -->\nb") == "a\n<!-- speed -->\nnew\n<!-- /speed -->\nb"
    with pytest.raises(ValueError, match=r"page\.md has no block <!-- speed -->"):
        block.put_into("a")


def test_the_check_of_the_pages_finds_old_tables_and_dead_links(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[x](#a-heading) [y](#none) [z](gone.md)\n`lib/gone.py`\n<!-- t -->\n1\n<!-- /t -->\n")
    assert list(check_docs.outdated([markup.Block("page.md", "t", "1")])) == []
    [line] = check_docs.outdated([markup.Block("page.md", "t", "2")])
    assert line.startswith("page.md: block 't'")
    assert list(check_docs.without_results(page, [markup.Block("page.md", "t", "1")])) == []
    [line] = check_docs.without_results(page, [markup.Block("other.md", "t", "1")])
    assert line.startswith("page.md: block 't' has no results")
    page.write_text(page.read_text().replace("\n1\n", "\n"))
    assert list(check_docs.without_results(page, [])) == []  # nothing is claimed
    assert [line.split(": ")[1] for line in check_docs.broken_links(page)] == [
        "the page has no heading for #none",
        "gone.md does not exist",
    ]
    assert list(check_docs.missing_files(page)) == ["page.md: lib/gone.py does not exist"]


def test_the_permutation_test_on_numbers_worked_by_hand():
    # Of the 6 ways to draw two of four, only {3, 4} and {1, 2} are as far apart.
    assert significance.permutation_test(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == pytest.approx(2 / 6)
    assert significance.permutation_test(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 1.0


def test_the_permutation_test_draws_divisions_if_there_are_too_many(monkeypatch):
    a, b = np.arange(6.0), np.arange(6.0) + 1.5
    exact = significance.permutation_test(a, b)
    monkeypatch.setattr(significance, "MOST_DIVISIONS", 900)
    assert significance.permutation_test(a, b) == pytest.approx(exact, abs=0.05)


def test_runs_without_the_goal_share_the_last_rank():
    never = math.inf
    # Ranks 1, 2 and 4.5, 4.5, 4.5. Of the 10 ways to draw two of five, only {1, 2} is as far apart.
    assert significance.rank_test(pd.Series([100, 200]), pd.Series([never, never, never])) == pytest.approx(1 / 10)
    assert significance.rank_test(pd.Series([never, never]), pd.Series([never, never])) == 1.0


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
        SystemExit, match=r"with other conditions \(commit\); give a new --label, or --anew to replace it"
    ):
        measure("two", "--seeds", "4-5")
    assert measure("one", "--seeds", "1-1") == ([1, 2, 3], "one")
    assert measure("two", "--seeds", "4-5", "--anew") == ([4, 5], "two")


@pytest.fixture
def atari_run(results, tmp_path):
    run = make_run(tmp_path / "run", returns=float, episodes=12)  # without videos
    result = json.loads((run / "result.json").read_text())
    run_json.write_json(run / "result.json", result | {"mean_100": 6.5})
    return run


def test_the_curve_of_an_atari_run_begins_with_its_tenth_episode(atari_run):
    atari.keep(atari_run, atari.STEPS, "distributed/02_ppo_fast", "Boxing", 3)
    atari.keep(atari_run, 1000, "distributed/02_ppo_fast", "Boxing", 3)  # a try, which the table does not show
    [kept] = atari.read()
    assert (kept.game, kept.seed, kept.mean_100) == ("Boxing", 3, 6.5)
    assert list(kept.curve.step) == [1000, 1100, 1200]
    assert list(kept.curve.mean_100) == [5.5, 6.0, 6.5]


def test_the_numbers_of_seeds_of_both_scripts_are_shown_if_they_differ():
    def run(script, seed):
        return atari.Run(script, "Breakout", seed, 40.0, pd.DataFrame(), {})

    runs = [run("distributed/01_ppo", 1), *(run("distributed/02_ppo_fast", seed) for seed in (1, 2, 3))]
    assert "| Breakout | 1 / 3 | 40.0 | 40.0 (40.0 to 40.0) |" in atari.table(runs)
    assert "| Breakout | 1 | 40.0 | 40.0 |" in atari.table(runs[:2])


def test_an_atari_run_that_moved_names_all_its_machines(atari_run):
    params = run_json.read_params(atari_run)
    [first] = params["sessions"]
    second = first | {"machine": first["machine"] | {"cores": 99}}
    run_json.write_json(atari_run / "params.json", params | {"sessions": [first, second]})
    atari.keep(atari_run, atari.STEPS, "distributed/02_ppo_fast", "Boxing", 3)
    [block] = atari.blocks()
    assert "; and on 99 cores (" in block.text


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
        {"stopped": ["solved"] * 3, "evaluation_mean": [20.0, 17.9, 18.0], "seconds": [100.0, 50.0, 700.0]}
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
    assert rows["`04_ppo_actors`"] == ["", "", "", "", "700 s (100 to never), 2 of 3 seeds", "1 of 3"]


@pytest.mark.parametrize("text", ["110-101", "101", "a-b", ""])
def test_a_wrong_range_of_seeds_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="such as 101-110"):
        trials.seeds(text)


@pytest.mark.parametrize(
    ("reached", "seeds", "text"),
    [
        ([], 3, "0 of 3 seeds"),
        ([300.0], 1, "300 (one seed)"),
        ([300.0, 200.0], 2, "250 (200 to 300)"),
        ([300.0, 200.0], 3, "300 (200 to never), 2 of 3 seeds"),
        ([300.0], 3, "never (300 to never), 1 of 3 seeds"),
    ],
)
def test_a_seed_that_did_not_reach_the_goal_counts_as_slower_than_all_others(reached, seeds, text):
    assert markup.spread_of_seeds(pd.Series(reached, dtype=float), seeds) == text


def test_an_unknown_value_is_not_called_never():
    assert markup.spread(pd.Series([float("nan")])) == ""
    assert markup.spread(pd.Series([float("nan"), 2.0])) == "2.0 (2.0 to 2.0)"


def test_only_complete_rounds_are_counted():
    frame = pd.DataFrame({"round": [0, 0, 1, 1, 2], "rung": ["a", "b", "b", "a", "a"]})
    assert lab.count_rounds(frame) == 2
    assert lab.count_rounds(frame.drop(columns="round")) == 0


def test_a_missing_results_file_is_named(results):
    with pytest.raises(SystemExit, match=r"nothing\.csv is missing; measure it"):
        lab.read("nothing")


def test_the_ladder_reads_the_scripts_headers():
    rows = {name: (parent, int(lines or 0), keeps) for name, parent, lines, keeps, _ in ladder.rows()}
    assert rows["chapter08/01_dqn_basic.py"][0] == "none"
    parent, lines, keeps = rows["chapter09/02_n_envs.py"]
    assert (parent, keeps) == ("chapter09/01_baseline.py", "statistics")
    assert 0 < lines < 50


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


def test_results_are_kept_apart_by_script_and_options():
    assert time_to_solve.results_of("distributed/01_ppo") == "solve/distributed-01_ppo"
    assert time_to_solve.results_of("07_pong_in_minutes --envs 32 --set epochs=2") == (
        "solve/07_pong_in_minutes-envs-32-set-epochs-2"
    )


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


def test_means_are_over_the_last_steps_and_the_goal_of_blocks_depends_on_the_random_player():
    steps = own_environment.GAMES["blocks"].steps
    rows = [
        ("blocks", 1, steps - own_environment.LAST, 10, 99.0, 5.0),
        ("blocks", 1, steps - 10, 30, 12.0, 5.0),
        ("blocks", 1, steps, 10, 16.0, 9.0),
        ("blocks", 2, steps, 10, 20.0, 7.0),
        ("blocks", 2, steps + own_environment.BIN, 1, 99.0, 99.0),  # the update went on for a few steps
    ]
    columns = ("game", "seed", "step", "episodes", "mean_return", "mean_steps")
    frame = pd.DataFrame([(*row, 21.0) for row in rows], columns=[*columns, "greedy_return"])
    assert own_environment.last_means(frame, "blocks", "mean_return").to_dict() == {1: 13.0, 2: 20.0}
    random = pd.DataFrame({"mean_return": [1.5], "mean_steps": [16.0]}, index=["blocks"])
    assert own_environment.goal_of("blocks", random) == 15.0
    [row] = own_environment.table(frame, random).splitlines()[2:]
    assert "| 16.5 (13.0 to 20.0) | 21.0 (21.0 to 21.0) | 15.0 |" in row
    assert "| 875,000 (850,000 to 900,000) |" in row
    [row] = own_environment.table(frame, random * 10).splitlines()[2:]  # the goal is ten times higher
    assert "| 150.0 | not in 900,000 |" in row


def test_the_planned_speed_of_many_actors_is_worked_by_hand():
    turns = {"engine": "inline", "actors": [1, 2], "wait": [8.192, 1.0], "learn": [0.9216, 1.0]}
    rows = [line.strip("| ").split(" | ") for line in distributed.plan_table(pd.DataFrame(turns)).splitlines()[2:]]
    assert [row[1] for row in rows] == ["1,000", "8,000", "64,000", "512,000"]
    assert [row[2] for row in rows] == ["10,000"] * 4


def test_every_variant_of_chapter_8_is_rainbow_without_the_other_parts():
    script = runpy.run_path(str(lab.PROJECT / "chapter08" / "08_dqn_rainbow.py"))
    assert set(chapter08.PARTS) == set(script["PARTS"])
    assert chapter08.VARIANTS["rainbow"] == chapter08.PARTS
    assert chapter08.VARIANTS["basic"] == ()
    assert {part for parts in chapter08.VARIANTS.values() for part in parts} == set(chapter08.PARTS)
    assert [(lab.PROJECT / f"{script}.py").exists() for script in chapter08.SCRIPTS] == [True] * 8


@pytest.fixture
def fake_runs(monkeypatch, results):
    """Replace chapter 8's runs by a function of the seed; the returned function returns the list of started runs."""

    def replace(curve_of_seed):
        started = []

        def curve(task, seed, variant):
            started.append((seed, variant))
            return curve_of_seed(seed)

        monkeypatch.setattr(chapter08, "curve", curve)
        return started

    return replace


def test_each_run_of_chapter_8_is_measured_once_and_kept_with_its_commit(monkeypatch, results, fake_runs):
    started = fake_runs(lambda seed: ({250: seed / 2, 500: 1.0}, 300.0 if seed == 1 else float("nan")))
    variants = ["basic", "double, n_steps"]
    monkeypatch.setattr(lab, "commit", lambda: "one")
    chapter08.learn("toy", variants, seeds=1, jobs=1, go_on=False)
    monkeypatch.setattr(lab, "commit", lambda: "another")
    chapter08.learn("toy", variants, seeds=2, jobs=2, go_on=True)
    assert sorted(started) == [(seed, variant) for seed in (1, 2) for variant in variants]
    frame, stamps = chapter08.measured("toy")
    assert {stamped["commit"] for stamped in stamps} == {"one", "another"}
    [*_, basic, both] = chapter08.learn_table("toy", frame).splitlines()
    assert basic == "| basic | 0.88 (0.75 to 1.00) | 1.00 | 375 (250 to 500) | never (300 to never), 1 of 2 seeds |"
    assert both.startswith("| double, n_steps |")
    chapter08.learn("toy", variants, seeds=1, jobs=1, go_on=False)
    assert len(started) == 6


def test_bins_without_a_finished_episode_are_interpolated(fake_runs):
    # The first run has no episode in the second bin; the second one, which diverged, none in the last.
    fake_runs(lambda seed: ({250: 0.0, 750: 1.0} if seed == 1 else {250: 0.0, 500: 0.0}, float("nan")))
    chapter08.learn("toy", ["basic"], seeds=2, jobs=1, go_on=True)
    *_, basic = chapter08.learn_table("toy", chapter08.measured("toy")[0]).splitlines()
    assert basic.startswith("| basic | 0.25 (0.00 to 0.50) | 1.00 |")


def test_runs_of_chapter_8_with_different_settings_are_not_put_into_one_table(monkeypatch, results, fake_runs):
    fake_runs(lambda seed: ({250: 0.5}, float("nan")))
    chapter08.learn("toy", ["basic"], seeds=2, jobs=1, go_on=True)
    monkeypatch.setitem(chapter08.TASKS, "toy", chapter08.TASKS["toy"]._replace(steps=7000))
    chapter08.learn("toy", ["basic"], seeds=1, jobs=1, go_on=False)
    with pytest.raises(SystemExit, match="were measured with different settings"):
        chapter08.measured("toy")


def test_the_stamp_is_json(results):
    lab.Results("x", ("a",), lab.stamp(steps=3)).add(a=1)
    assert json.loads((results / "x.csv").read_text().splitlines()[0][2:])["settings"] == {"steps": 3}


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
