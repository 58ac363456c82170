"""Runs are found, and unsafe folders are refused."""

import os

import pytest

from lib.errors import UsageError
from lib.run import run_checks
from running import PROJECT


@pytest.mark.parametrize("kind", ["symbolic link", "pipe"])
def test_a_run_with_a_link_or_a_pipe_is_not_read(tmp_path, kind):
    run = tmp_path / "run"
    (run / "videos").mkdir(parents=True)
    (run / "params.json").write_text("{}")
    assert run_checks.find(str(run), tmp_path) == run
    odd = run / "videos" / "episode-1-return-9.webm"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="symbolic link" if kind == "symbolic link" else "neither a file nor a folder"):
        run_checks.find(str(run), tmp_path)


def test_names_that_act_on_a_terminal_are_refused(tmp_path):
    for name in ("red\x1b[31m", "two\nlines", "two\u2028lines", "reversed\u202egnp.exe"):
        (tmp_path / name).mkdir()
        with pytest.raises(UsageError, match=r"'.*(\\x1b|\\n|\\u2028|\\u202e).*' contains control characters"):
            run_checks.find(name, tmp_path)


@pytest.mark.parametrize(
    "name",
    ["result.json", "episodes.csv", "lock", "checkpoints/best-000000007.pt.sha256", "videos/a.webm", "events.out.x.0"],
)
def test_a_folder_in_place_of_a_file_is_reported(tmp_path, name):
    (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "params.json").write_text("{}")
    with pytest.raises(UsageError, match=f"{name} is a folder, where a file is expected; remove it"):
        run_checks.find("run", tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "videos"])
def test_a_file_in_place_of_a_folder_is_reported(tmp_path, name):
    (tmp_path / "run").mkdir()
    for each in ("params.json", name):
        (tmp_path / "run" / each).write_text("{}")
    with pytest.raises(UsageError, match=f"{name} is a file, where a folder is expected; remove it"):
        run_checks.find("run", tmp_path)


def test_a_model_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_checks.find("models/pong", tmp_path) == PROJECT / "models/pong"


def test_a_printed_module_is_quoted_because_a_stranger_may_have_chosen_it(tmp_path):
    with pytest.raises(UsageError, match=r"add --env-module 'x; touch y'$"):
        run_checks.require_trust(tmp_path, "x; touch y:Game-v0", None)


def test_a_file_with_the_name_of_a_run_does_not_hide_the_run(tmp_path, monkeypatch):
    runs_dir = tmp_path / "runs"
    (runs_dir / "a").mkdir(parents=True)
    (runs_dir / "a/params.json").write_text("{}")
    for name in ("a", "b"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    assert run_checks.find("a", runs_dir) == runs_dir / "a"
    with pytest.raises(UsageError, match=r"params.json is a file, so give the folder of its run, .*/a$"):
        run_checks.find("runs/a/params.json", runs_dir)
    with pytest.raises(UsageError, match="b is a file, not a run folder"):
        run_checks.find("b", runs_dir)
