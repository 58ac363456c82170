"""Tables of single benchmarks: the ladder, own games and planned speeds."""

import math
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

import distributed
import lab
import ladder
import markup
import own_environment
import own_games


def test_some_own_games_are_measured_without_a_change_of_the_page_s_results(results, monkeypatch, capsys):
    row = dict.fromkeys(own_games.COLUMNS[3:], 100.0)
    monkeypatch.setattr(own_games, "measure", lambda turn: row)
    monkeypatch.setattr(markup, "write", list)
    only_02 = ["--script", "distributed/02_ppo_fast"]
    selections = (["--game", "Snake-v0"], ["--game", "CartPole-v1", "--seeds", "4"])  # the second replaces the first
    for options in (only_02, ["--go-on"], *selections):
        monkeypatch.setattr(sys, "argv", ["own_games.py", "--jobs", "1", *options])
        own_games.main()
    for script in ("01_ppo", "02_ppo_fast"):
        assert len(lab.read(f"own_games/{script}")[0]) == 3 * len(own_games.STEPS)
    assert len(lab.read("own_games_selected/02_ppo_fast")[0]) == 1
    assert "| `CartPole-v1` | 475 | `02_ppo_fast` | 1 of 1 |" in capsys.readouterr().out


def test_an_own_game_is_solved_when_its_run_says_so_or_by_the_mean_of_a_hundred_if_it_registers_no_goal():
    episodes = pd.DataFrame({"step": range(5, 1005, 5), "seconds": range(200), "return": [0.0] * 100 + [1.0] * 100})
    result = {"reached": {"475.0": {"step": 700, "seconds": 9.5}}}
    assert own_games.goal_reached("CartPole-v1", result, episodes, 100) == (700, 9.5)
    assert own_games.goal_reached("CartPole-v1", {"reached": {}}, episodes, 100) == (math.inf, math.inf)
    room = "minigrid:MiniGrid-Empty-8x8-v0"
    assert own_games.goal_reached(room, {"reached": {}}, episodes, 5) == (5 * 190, 189.0)
    assert own_games.goal_reached(room, {"reached": {}}, episodes, 100) == (1000, 199.0)
    assert own_games.goal_reached(room, {"reached": {}}, episodes[:150], 5) == (math.inf, math.inf)


def test_the_ladder_reads_the_scripts_headers():
    rows = {name: (parent, int(lines or 0), keeps) for name, parent, lines, keeps, *_ in ladder.rows()}
    assert rows["chapter08/01_dqn_basic.py"][0] == "none"
    parent, lines, keeps = rows["chapter09/02_n_envs.py"]
    assert (parent, keeps) == ("chapter09/01_baseline.py", "statistics")
    assert 0 < lines < 50


@pytest.mark.slow
def test_the_lines_of_lib_are_those_of_the_modules_that_python_loads():
    script = lab.PROJECT / "distributed/01_ppo.py"
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(*map(str, sys.modules.values()))"
    process = subprocess.run([sys.executable, "-c", code, script], capture_output=True, text=True, check=True)
    loaded = set(map(Path, re.findall(rf"{lab.PROJECT}/lib/[\w/]+\.py", process.stdout)))
    assert ladder.imported_files(script) == loaded


def test_the_lines_to_read_are_those_of_the_script_and_of_what_its_header_names(tmp_path, monkeypatch):
    monkeypatch.setattr(lab, "PROJECT", tmp_path)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/one.py").write_text("x = 1\n\n\nclass One:\n    y = 2\n\n    z = 3\n")
    (tmp_path / "lib/two.py").write_text("import lib.one\n\n\ndef two():\n    from lib import three\n")
    (tmp_path / "lib/three.py").write_text("x = 1\n")
    script = tmp_path / "script.py"
    script.write_text('"""Idea.\n\nRead    One in lib/one.py, then\n        lib/two.py\n"""\nfrom lib import two\n')
    assert ladder.lines_of(script) == (12, 6 + 4 + 5)


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
    turns = {"engine": "inline", "actors": [1, 2], "wait": [4.096, 1.0], "learn": [0.9216, 1.0]}
    rows = [line.strip("| ").split(" | ") for line in distributed.plan_table(pd.DataFrame(turns)).splitlines()[2:]]
    assert [row[2] for row in rows] == ["14,000", "256,000", "1,000,000"]
    assert [row[3] for row in rows] == ["10,000", "4,582", "4,582"]
    assert [row[4] for row in rows] == ["168,628"] * 3
    assert [row[5] for row in rows] == ["10", "5", "5"]
