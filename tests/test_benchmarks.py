"""What measures has to be right, too: the files it goes on with, and the tables that are made of them."""

import json
import os
import re
import signal
import sys
import threading

import numpy as np
import pandas as pd
import psutil
import pytest

import catch
import chapter08
import chapter09
import curve
import distributed
import lab
import ladder
import own_environment
import time_to_solve
from lib.ppo.actor import Acting, PPOActor


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "RESULTS", tmp_path)
    return tmp_path


def test_an_interrupted_measurement_goes_on_with_its_rows(results):
    first = lab.Results("x", ("round", "rung", "value"))
    first.add(round=0, rung="a", value="1.50")
    second = lab.Results("x", ("round", "rung", "value"), go_on=True)
    assert second.has(round=0, rung="a")
    assert not second.has(round=0, rung="b")
    second.add(round=0, rung="b", value="2.50")
    assert second.has(round=0, rung="b")
    frame, stamped = lab.read("x")
    assert list(frame["value"]) == [1.5, 2.5]
    assert stamped["machine"]["cores"] >= 1
    assert list(frame["rung"]) == ["a", "b"]


def test_a_measurement_of_another_machine_is_not_gone_on_with(results):
    first = lab.Results("x", ("round",))
    first.add(round=0)
    path = first.path
    stamped = json.loads(path.read_text().splitlines()[0][2:])
    stamped["machine"]["cores"] += 1
    path.write_text(f"# {json.dumps(stamped)}\nround\n")
    with pytest.raises(SystemExit, match="other machine"):
        lab.Results("x", ("round",), go_on=True)


def test_a_measurement_with_other_settings_is_not_gone_on_with(results):
    lab.Results("x", ("round",), lab.stamp(steps=10)).add(round=0)
    with pytest.raises(SystemExit, match="other settings"):
        lab.Results("x", ("round",), lab.stamp(steps=20), go_on=True)
    assert lab.Results("x", ("round",), lab.stamp(steps=10), go_on=True).has(round=0)


@pytest.mark.parametrize(
    ("what", "other"),
    [("commit", lambda commit: f"{commit}+"), ("versions", lambda versions: versions | {"torch": "1"})],
)
def test_a_measurement_of_changed_code_or_other_packages_is_not_gone_on_with(results, what, other):
    stamped = lab.stamp() | {"commit": "abc"}
    lab.Results("x", ("round",), stamped).add(round=0)
    changed = stamped | {what: other(stamped[what])}
    assert lab.can_go_on("x", ("round",), stamped)
    assert not lab.can_go_on("x", ("round",), changed)
    assert not lab.can_go_on("x", ("round", "more"), stamped)
    with pytest.raises(SystemExit, match=f"other {what}; measure anew"):
        lab.Results("x", ("round",), changed, go_on=True)


@pytest.mark.parametrize(
    ("words", "device"),
    [
        (["--envs", "3"], "cpu"),
        (["--cuda"], "cuda"),
        (["--device", "cuda:1", "--set", "epochs=2"], "cuda:1"),
        (["--device=cuda"], "cuda"),
    ],
)
def test_where_the_networks_of_a_measured_script_are(words, device):
    assert lab.device_of(words) == device


def test_measured_anew_the_old_rows_stay_until_there_is_a_new_one(results):
    lab.Results("x", ("round",)).add(round=0)
    anew = lab.Results("x", ("round",))
    assert list(lab.read("x")[0]["round"]) == [0]
    anew.add(round=7)
    assert list(lab.read("x")[0]["round"]) == [7]


def test_a_table_without_what_it_compares_to_says_so():
    frame = pd.DataFrame({"round": [0, 1], "rung": ["a", "b"], "value": [1.0, 2.0]})
    with pytest.raises(SystemExit, match="no round of this measurement is complete"):
        lab.rounds(frame, "rung", "value")
    with pytest.raises(SystemExit, match="01_baseline was not measured"):
        lab.ratios(lab.rounds(frame[:1], "rung", "value"), "01_baseline")


def test_ctrl_c_is_left_to_the_script_that_runs(tmp_path):
    slow = "import sys, time\ntry: time.sleep(20)\nexcept KeyboardInterrupt: time.sleep(1), sys.exit(9)"
    threading.Timer(1, lambda: [os.kill(child.pid, signal.SIGINT) for child in psutil.Process().children()]).start()
    threading.Timer(1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(SystemExit) as ended:
        lab.start([sys.executable, "-c", slow])
    assert ended.value.code == 9


def test_ratios_are_taken_within_a_round_and_a_round_half_done_is_left_out():
    frame = pd.DataFrame(
        {"round": [0, 0, 1, 1, 2], "rung": ["b", "a", "a", "b", "a"], "value": [2.0, 1.0, 10.0, 30.0, 5.0]}
    )
    table = lab.rounds(frame, "rung", "value")
    assert list(table.columns) == ["b", "a"]
    assert list(table["b"] / table["a"]) == [2.0, 3.0]


def test_the_permutation_test_on_numbers_worked_by_hand():
    # Of the 6 ways to draw two of four, only {3, 4} and {1, 2} are as far apart.
    assert catch.permutation_test(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == pytest.approx(2 / 6)
    assert catch.permutation_test(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 1.0


def test_the_ladder_reads_the_scripts_headers():
    rows = {row[0]: row[1:4] for row in ladder.rows()}
    assert rows["chapter09/02_n_envs.py"][0] == "chapter09/01_baseline.py"
    assert rows["chapter09/02_n_envs.py"][2] == "statistics"
    assert rows["chapter09/04_wrappers.py"] == ("chapter09/02_n_envs.py", "6", "exact")
    assert rows["chapter08/01_dqn_basic.py"][0] == "none"


@pytest.mark.parametrize(("name", "document", "marker", "write"), chapter09.TABLES)
def test_the_tables_in_the_documents_are_made_of_the_files(name, document, marker, write):
    text = (lab.PROJECT / document).read_text()
    assert f"<!-- {marker} -->\n{chapter09.stamped_table(name, write)}\n<!-- /{marker} -->" in text


def test_the_ladder_in_the_documents_is_that_of_the_scripts():
    table = lab.table(ladder.HEADER, [(f"`{row[0]}`", *row[1:]) for row in ladder.rows()])
    assert f"<!-- ladder -->\n{table}\n<!-- /ladder -->" in (lab.PROJECT / "docs/chapter09.md").read_text()


@pytest.mark.parametrize(("marker", "write"), [("curves", chapter09.solve_table), ("rates", curve.rates)])
def test_the_tables_of_curves_are_made_of_the_kept_ones(marker, write):
    text = (lab.PROJECT / chapter09.CHAPTER).read_text()
    assert f"{write(curve.kept('pong'))}\n<!-- /{marker} -->" in text


def test_the_page_about_speed_is_made_of_the_files():
    text = (lab.PROJECT / time_to_solve.PAGE).read_text()
    assert f"<!-- solve -->\n{time_to_solve.solve_table()}\n<!-- /solve -->" in text
    readme = (lab.PROJECT / "README.md").read_text()
    assert f"<!-- solve -->\n{time_to_solve.solve_table(only_solved=True)}\n<!-- /solve -->" in readme
    assert f"<!-- seeds -->\n{time_to_solve.seeds_table()}\n<!-- /seeds -->" in text
    frame, stamped = lab.read("fast-speed")
    assert f"{time_to_solve.speed_table(frame)} {lab.where(stamped)}\n<!-- /fast-speed -->" in text


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
        "training_seconds": 55.0,
        "steps_per_second": 47.3,
        "parts": {"act": 10.0, "learn": 40.0},
    },
    "evaluation": {"mean": 20.0, "std": 1.0, "distinct": 3, "returns": [21.0, 20.0, 19.0]},
}


def test_a_solved_run_counts_from_where_the_goal_was_reached():
    found = time_to_solve.figures(RESULT)
    assert (found["seconds"], found["steps"], found["episodes"], found["start"]) == ("60.0", 2048, 120, "5.0")
    assert (found["act"], found["environment"], found["rest"]) == ("10.0", "0.0", "5.0")
    assert (found["evaluation_mean"], found["evaluation_worst"]) == (20.0, 19.0)
    assert set(found) | {"seed", "emulator"} == set(time_to_solve.COLUMNS)


def test_a_run_that_was_not_solved_is_slower_than_all_others():
    unsolved = {name: value for name, value in RESULT.items() if name != "evaluation"}
    found = time_to_solve.figures(unsolved | {"stopped": "time limit", "reached": {}})
    assert (found["seconds"], found["steps"], found["evaluation_mean"]) == ("70.0", 3072, "")
    assert lab.spread(pd.Series([5.0, np.inf, 3.0]), 0) == "3 / 5 / inf"
    assert lab.spread(pd.Series([5.0, np.inf, 3.0, np.inf]), 0) == "3 / inf / inf"


def test_results_are_kept_apart_by_script_and_options():
    assert time_to_solve.results_of("distributed/01_ppo") == "solve-distributed-01_ppo"
    assert time_to_solve.results_of("07_pong_in_minutes --envs 32 --set epochs=2") == (
        "solve-07_pong_in_minutes-envs-32-set-epochs-2"
    )


@pytest.mark.parametrize(
    ("rung", "path"),
    [("01_baseline --envs 3", "chapter09/01_baseline.py"), ("distributed/01_ppo", "distributed/01_ppo.py")],
)
def test_a_rung_is_started_from_chapter_9_or_the_folder_it_names(rung, path):
    python, script, *options = lab.command(rung, "--quiet")
    assert python == sys.executable
    assert script == str(lab.PROJECT / path)
    assert options == [*rung.split()[1:], "--quiet"]


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
def test_what_cannot_be_timed_is_refused(monkeypatch, capsys, options):
    monkeypatch.setattr(sys, "argv", ["time_to_solve.py", *options])
    with pytest.raises(SystemExit, match="2"):
        time_to_solve.main()
    assert f"argument {options[0]}: " in capsys.readouterr().err


def test_the_page_about_chapter_8_is_made_of_the_files():
    text = (lab.PROJECT / chapter08.PAGE).read_text()
    for name in chapter08.TABLES:
        assert f"<!-- {name} -->\n{chapter08.stamped_table(name)}\n<!-- /{name} -->" in text


def test_the_page_about_actors_is_made_of_the_files():
    text = (lab.PROJECT / distributed.PAGE).read_text()
    for name in distributed.TABLES:
        assert f"<!-- {name} -->\n{distributed.stamped_table(name)}\n<!-- /{name} -->" in text


def test_the_page_about_environments_of_ones_own_is_made_of_the_files():
    text = (lab.PROJECT / own_environment.DOCUMENT).read_text()
    frame, random = own_environment.measured()
    assert own_environment.table(frame, random) in text


def test_a_game_is_judged_by_its_last_episodes_and_blocks_by_a_random_player(monkeypatch):
    steps = 700_000  # when it was solved
    rows = [("blocks", 1, steps - own_environment.LAST, 10, 99.0, 5.0), ("blocks", 1, steps - 10, 30, 12.0, 5.0)]
    rows += [("blocks", 1, steps, 10, 16.0, 9.0), ("blocks", 2, steps, 10, 20.0, 7.0)]
    columns = ("game", "seed", "step", "episodes", "mean_return", "mean_steps")
    frame = pd.DataFrame([(*row, 21.0) for row in rows], columns=[*columns, "greedy_return"])
    assert own_environment.last_means(frame, "blocks", "mean_return").to_dict() == {1: 13.0, 2: 20.0}
    random = pd.DataFrame({"mean_return": [1.5], "mean_steps": [16.0]}, index=["blocks"])
    assert own_environment.goal_of("blocks", random) == 15.0
    [row] = own_environment.table(frame, random).splitlines()[2:]
    assert "| 13.0 / 16.5 / 20.0 | 21.0 / 21.0 / 21.0 | 15.0 | 2 of 2," in row


def test_the_plan_is_bound_by_actors_then_by_the_learner():
    turns = {"engine": "inline", "actors": [1, 2], "wait": [8.192, 1.0], "learn": [0.9216, 1.0]}
    rows = [line.split(" | ") for line in distributed.plan_table(pd.DataFrame(turns)).splitlines()[2:6]]
    assert [row[1] for row in rows] == ["1,000", "8,000", "64,000", "512,000"]
    assert [row[2] for row in rows] == ["10,000"] * 4
    assert [row[-1] for row in rows] == ["1,000 |", "8,000 |", "10,000 |", "10,000 |"]


def test_the_bytes_of_a_step_are_those_of_a_segment():
    acting = Acting("PongNoFrameskip-v4", 2, 1, 3, seed=1)
    actor = PPOActor(acting, 0)
    segment = actor.get_trajectory_segment()
    assert sum(array.nbytes for array in segment.arrays.values()) == 6 * distributed.STEP_BYTES


def test_every_second_round_goes_backwards():
    assert list(lab.turns(2, ["a", "b"])) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_the_interval_of_a_mean_over_seeds():
    low, high = chapter08.interval(np.array([0.0, 0.0, 3.0]))
    # Of the 27 ways to draw three of these, 8 have the mean 0 and one has 3: each above 2.5 %.
    assert (low, high) == (0.0, 3.0)
    assert chapter08.interval(np.full(5, 2.0)) == (2.0, 2.0)


def test_every_extension_is_rainbow_without_the_others():
    source = (lab.PROJECT / "chapter08" / "08_dqn_rainbow.py").read_text()
    assert f"PARTS = {chapter08.PARTS}".replace("'", '"') in source
    assert chapter08.LEARNT["rainbow"] == chapter08.PARTS
    assert chapter08.LEARNT["basic"] == ()
    assert {part for parts in chapter08.LEARNT.values() for part in parts} == set(chapter08.PARTS)
    assert chapter08.BARE.count("--without") == 6
    assert [(lab.PROJECT / f"{script}.py").exists() for script in chapter08.SCRIPTS] == [True] * 8


@pytest.fixture
def curves_of(monkeypatch, tmp_path):
    """Puts an answer, by seed, in place of chapter 8's runs; gives the list of those that are asked for."""

    def put(answer):
        asked = []
        monkeypatch.setattr(lab, "RESULTS", tmp_path)
        monkeypatch.setattr(
            chapter08, "curve", lambda place, seed, variant: asked.append((seed, variant)) or answer(seed)
        )
        return asked

    return put


def test_seeds_are_measured_where_there_is_time_and_kept(monkeypatch, curves_of):
    asked = curves_of(lambda seed: ({250: seed / 4, 500: seed / 2}, float("nan")))
    monkeypatch.setattr(lab, "commit", lambda: "one")
    chapter08.learn("toy", ["basic", "rainbow"], seeds=1, jobs=1, go_on=False)
    monkeypatch.setattr(lab, "commit", lambda: "another")  # which a single file would refuse
    chapter08.learn("toy", ["basic", "rainbow"], seeds=2, jobs=1, go_on=True)
    assert asked == [(1, "basic"), (1, "rainbow"), (2, "basic"), (2, "rainbow")]
    frame, where = chapter08.kept("toy")
    assert frame.groupby("seed")["mean_return"].max().to_dict() == {1: 0.5, 2: 1.0}
    assert [re.search("at commit (one|another)", each)[1] for each in where] == ["one", "another"]
    chapter08.learn("toy", ["basic"], seeds=1, jobs=1, go_on=False)
    assert asked[4:] == [(1, "basic")]


def test_each_run_of_chapter_8_has_a_file_and_is_measured_once(monkeypatch, tmp_path, curves_of):
    variants = ["basic", "double, n_steps"]
    ran = curves_of(lambda seed: ({250: seed / 2, 500: 1.0}, 300.0 if seed == 1 else float("nan")))
    chapter08.learn("toy", variants, 2, 2, go_on=True)
    assert sorted(ran) == [(seed, variant) for seed in (1, 2) for variant in variants]
    (tmp_path / "chapter08-toy-double-n_steps-seed2.csv").unlink()
    ran.clear()
    chapter08.learn("toy", variants, 2, 2, go_on=True)
    assert ran == [(2, "double, n_steps")]
    frame, [where] = chapter08.kept("toy")
    assert where.startswith("Measured ")
    [*_, basic, both] = chapter08.learn_table("toy", frame).splitlines()
    assert basic == "| basic | 2 | 0.88 (0.75 to 1.00) | 1.00 | 2 of 2: 250 / 375 / 500 | 1 of 2: 300 / 300 / 300 |"
    assert both.startswith("| double, n_steps | 2 |")
    chapter08.learn("toy", variants, 1, 1, go_on=False)
    assert len(ran) == 3
    monkeypatch.setitem(chapter08.PLACES, "toy", chapter08.PLACES["toy"]._replace(steps=7000))
    chapter08.learn("toy", ["basic"], 1, 1, go_on=False)
    with pytest.raises(SystemExit, match="were measured with different settings"):
        chapter08.kept("toy")
