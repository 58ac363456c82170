import sys

import pytest

from finished_runs import make_run
from lib.run.next_steps import command, continue_command, next_steps
from lib.run.options import RunOptions
from running import PROJECT


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Function of next_steps' options that returns the commands of a run of 01_baseline."""
    monkeypatch.setattr(sys, "argv", [str(PROJECT / "chapter09/01_baseline.py")])
    make_run(tmp_path / "run", knobs={"engine": "process", "patience": 60.0})
    usual = {"saved": True, "solved": False, "cannot_improve": False, "steps": 300, "reached_max_steps": False}
    usual |= {"has_episode": True, "lacks_evaluation": False}

    def commands(knobs=None, owns_process=True, stop_after=None, **changed):
        options = RunOptions(knobs=knobs or {}, owns_process=owns_process, stop_after=stop_after)
        return next_steps(tmp_path / "run", "fakes:Catch-v0", options, **usual | changed)

    return commands


def test_a_run_that_can_learn_more_goes_on_with_what_it_does_not_record(commands):
    assert commands()["continue the run"].endswith("--env-module fakes")
    assert commands(steps=500, reached_max_steps=True)["continue the run"].endswith("--stop-after 1000")
    assert commands(stop_after=301)["continue the run"].endswith("--env-module fakes --stop-after 301")
    assert commands(stop_after=300)["continue the run"].endswith("--env-module fakes")
    for stop_after, limit in ((800, 800), (500, 1000)):
        command = commands(stop_after=stop_after, steps=500, reached_max_steps=True)["continue the run"]
        assert command.endswith(f"--stop-after {limit}")
    recorded = {"engine": "process", "patience": 60.0}
    assert commands(knobs=recorded)["continue the run"].endswith("--env-module fakes")
    changed = {"engine": "ray", "address": "10.0.0.1:6379", "patience": 90.0}
    words = commands(knobs=changed)["continue the run"].split("--env-module fakes ")[1]
    assert words == "--address 10.0.0.1:6379 --engine ray --patience 90.0"


@pytest.mark.parametrize("recorded", [True, False])
def test_a_run_goes_on_with_the_processes_that_it_had_last(tmp_path, recorded):
    make_run(tmp_path / "run", knobs={"async_envs": recorded})
    words = {"--async-envs", "--no-async-envs"}
    for now, expected in ((recorded, set()), (not recorded, {"--no-async-envs" if recorded else "--async-envs"})):
        options = RunOptions(knobs={"async_envs": now}, owns_process=True)
        assert words & set(continue_command(tmp_path / "run", "fakes:Catch-v0", options).split()) == expected


@pytest.mark.parametrize("end", ["saved", "solved", "cannot_improve"])
def test_no_other_run_goes_on(commands, end):
    assert "continue the run" not in commands(**{end: end != "saved"})
    assert "create a report" in commands(**{end: end != "saved"})


def test_a_missing_final_evaluation_is_played_by_a_plain_resume(commands):
    command = commands(lacks_evaluation=True, steps=500, reached_max_steps=True)["play the final evaluation"]
    assert "--resume" in command
    assert command.endswith("/run --env-module fakes")
    assert "play the final evaluation" not in commands()
    assert "play the final evaluation" not in commands(lacks_evaluation=True, has_episode=False)
    assert "play the final evaluation" not in commands(lacks_evaluation=True, owns_process=False)


def test_a_script_that_cannot_be_executed_is_given_to_python(tmp_path, monkeypatch):
    monkeypatch.setattr("lib.run.next_steps.shutil.which", lambda name: sys.executable)
    (tmp_path / "own.py").touch(mode=0o644)
    (tmp_path / "executable.py").touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    assert command(tmp_path / "own.py", "--resume", "x").split()[1:] == ["./own.py", "--resume", "x"]
    assert command(tmp_path / "executable.py", "--resume", "x") == "./executable.py --resume x"


def test_a_script_without_our_command_line_is_not_told_to_go_on_by_its_options(commands):
    assert list(commands(owns_process=False)) == ["watch it play", "create a report"]
