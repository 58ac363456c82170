"""Run folders: names, JSON files, files that grow, how runs are found, and the commit."""

import os
import re
import shutil
import subprocess

import pytest
import torch

from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import folder
from lib.run.arguments import RunOptions, describe
from lib.run.folder import RunFolder, find, new_folder, read_params, trusted_id
from lib.system import files
from running import PROJECT

PONG = HYPERPARAMS["pong"]


def new_run(tmp_path, **options):
    """Make a run folder, and close it."""
    run = RunFolder(new_folder(tmp_path, "pong-01_baseline"))
    folder.write_json(run.path / "params.json", describe("01_baseline", PONG, RunOptions(**options)))
    run.close()
    return run


def test_folder_names_are_numbered_if_they_repeat(tmp_path):
    first, second = (new_run(tmp_path / "new" / "runs").path.name for _ in range(2))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}-pong-01_baseline", first)
    assert second == f"{first}-2" or second[15] != first[15]  # the minute may have changed in between


def test_a_resumed_run_adds_its_session_and_logs_a_changed_commit(tmp_path, monkeypatch, caplog):
    run = new_run(tmp_path)
    for name in (".result.json.123.tmp", "checkpoints/.step-000000009.pt.123.tmp"):
        (run.path / name).touch()  # left behind by a process that was killed
    for commit in (folder.current_commit(), "another"):
        assert not caplog.records
        monkeypatch.setattr(folder, "current_commit", lambda commit=commit: commit)
        again = RunFolder(run.path)
        again.add_session(torch.device("cpu"), {"patience": 9})
        again.close()
    assert "its commit was" in caplog.text
    recorded = read_params(run.path)
    assert recorded["knobs"] == {"patience": 9}  # the next resume takes it
    assert len(recorded["sessions"]) == 3
    assert recorded["sessions"][0]["versions"]["ptan"] == "0.8.1"
    assert not list(run.path.rglob(".*.tmp"))


def test_a_run_of_another_format_is_refused(tmp_path):
    run = new_run(tmp_path)
    folder.write_json(run.path / "params.json", read_params(run.path) | {"format": folder.FORMAT + 1})
    with pytest.raises(UsageError, match=f"its format is {folder.FORMAT + 1}, and this version reads"):
        read_params(run.path)


def test_files_are_truncated_to_their_saved_sizes_and_new_ones_removed(tmp_path):
    (tmp_path / "episodes.csv").write_bytes(b"episode,step\n1,100\n")
    (tmp_path / "events.out.tfevents.1").write_bytes(b"12345")
    run = RunFolder(tmp_path)
    saved = run.state_dict()
    with (tmp_path / "episodes.csv").open("ab") as file:
        file.write(b"2,200\n")
    (tmp_path / "events.out.tfevents.2").touch()
    run.load_state_dict(saved)
    assert (tmp_path / "episodes.csv").read_bytes() == b"episode,step\n1,100\n"
    assert not (tmp_path / "events.out.tfevents.2").exists()


def test_a_run_is_found_by_its_name_or_path_and_a_model_from_any_folder(tmp_path, monkeypatch):
    runs_dir = tmp_path / "runs"
    (runs_dir / "a").mkdir(parents=True)
    (runs_dir / "a/params.json").write_text("{}")
    (tmp_path / "a").touch()  # a file does not hide the run
    monkeypatch.chdir(tmp_path)
    assert find("a", runs_dir) == find("runs/a", runs_dir) == runs_dir / "a"
    assert find("models/pong", runs_dir) == PROJECT / "models/pong"
    for name, reason in (("runs", "is not a run: it has no params.json"), ("b", "there is no run folder 'b'")):
        with pytest.raises(UsageError, match=reason):
            find(name, runs_dir)
    (runs_dir / "0").mkdir()
    (runs_dir / "0/params.json").write_text("{}")
    os.utime(runs_dir / "a/params.json", (1, 1))
    assert find("last", runs_dir) == runs_dir / "0"


def test_a_run_keeps_the_arguments_of_its_environment(tmp_path):
    recorded = "maze:Maze-v0(size=9)"
    assert trusted_id(tmp_path, recorded, "maze:Maze-v0") == trusted_id(tmp_path, recorded, recorded) == recorded
    with pytest.raises(UsageError, match=r"plays maze:Maze-v0\(size=9\), not maze:Maze-v0\(size=8\)"):
        trusted_id(tmp_path, recorded, "maze:Maze-v0(size=8)")


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_the_commit_is_marked_if_the_code_differs_from_it_but_not_if_documents_do(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(files, "PROJECT", tmp_path)
    git("init")
    for name in ("lib/code.py", "README.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("old")
    git("add", ".")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert folder.current_commit() == head
    (tmp_path / "README.md").write_text("new")
    assert folder.current_commit() == head
    (tmp_path / "lib/code.py").write_text("new")
    assert re.fullmatch(rf"{head}\+[0-9a-f]{{8}}", folder.current_commit())
