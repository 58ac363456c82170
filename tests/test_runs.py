import json
import os
import re
import subprocess
import sys

import pytest

from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import provenance, run_folder
from lib.run.options import RunOptions

PONG = HYPERPARAMS["pong"]


def test_the_folders_name_has_no_colon_and_a_second_one_gets_a_number(tmp_path):
    made = [run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path / "new" / "runs")) for _ in range(3)]
    first, second, third = (run.path.name for run in made)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}-pong-01_baseline", first)
    if second.startswith(first):  # the minute may have changed in between
        assert second == f"{first}-2"
    assert len({first, second, third}) == 3


def test_params_json_says_what_a_run_was_made_with(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path, seed=9, knobs={"envs": 3}))
    content = json.loads((run.path / "params.json").read_text())
    assert content["hyperparameters"]["replay_size"] == 100_000
    assert (content["script"], content["seed"], content["knobs"]) == ("01_baseline", 9, {"envs": 3})
    [session] = content["sessions"]
    assert session["versions"]["ptan"] == "0.8.1"
    assert session["machine"]["cores"] >= 1
    assert session["argv"] == sys.argv
    assert session["commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", session["commit"])


def test_the_commit_is_marked_where_the_code_differs_from_it_and_not_where_results_do(tmp_path, monkeypatch):
    def git(*arguments):
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    monkeypatch.setattr(run_folder, "PROJECT", tmp_path)
    git("init")
    for name in ("code.py", "README.md", "docs/page.md", "benchmarks/results/figures.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old")
    git("add", "."), git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert provenance.commit() == head
    (tmp_path / "docs" / "page.md").write_text("new")
    (tmp_path / "README.md").write_text("new")  # which has a table of figures
    (tmp_path / "benchmarks" / "results" / "figures.csv").unlink()
    assert provenance.commit() == head
    (tmp_path / "code.py").write_text("new")
    assert provenance.commit() == f"{head}+"


def test_a_resumed_run_notes_its_session_and_says_what_is_different(tmp_path, monkeypatch, caplog):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.close()
    options = RunOptions(resume=first.path)
    before = (first.path / "params.json").read_bytes()
    for versions in (provenance.versions(), {"torch": "9.9"}):
        assert "Other than before" not in caplog.text
        monkeypatch.setattr(provenance, "versions", lambda versions=versions: versions)
        run = run_folder.Run("01_baseline", PONG, options)
        assert (first.path / "params.json").read_bytes() == before  # it may be refused yet
        run.go_on()
        before = (first.path / "params.json").read_bytes()
        run.close()
    assert "Other than before: versions." in caplog.text
    sessions = json.loads((first.path / "params.json").read_text())["sessions"]
    assert [session["versions"]["torch"] == "9.9" for session in sessions] == [False, False, True]


def test_the_result_of_the_process_before_is_no_longer_the_runs_and_not_lost(tmp_path):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.write_json("result.json", {"stopped": "solved", "evaluation": {"mean": 20.5}})
    first.close()
    for _ in range(2):
        run = run_folder.Run("01_baseline", PONG, RunOptions(resume=first.path))
        run.go_on()
        run.close()  # as one that is killed
        assert not (first.path / "result.json").exists()
    one, *others = json.loads((first.path / "params.json").read_text())["sessions"]
    assert one["result"] == {"stopped": "solved", "evaluation": {"mean": 20.5}}
    assert ["result" in session for session in others] == [False, False]


HOLDER = """
import sys
from pathlib import Path
from lib import common, runs
run = runs.Run("01_baseline", common.HYPERPARAMS["pong"], runs.RunOptions(resume=Path(sys.argv[1])))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_run_in_use_is_refused_until_its_process_is_gone(tmp_path):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.close()
    options = RunOptions(resume=first.path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(first.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(UsageError, match=f"in use by process {holder.pid}"):
        run_folder.Run("01_baseline", PONG, options)
    holder.kill()  # even so the lock ends
    holder.wait()
    run_folder.Run("01_baseline", PONG, options).close()


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.write_json("result.json", {"a": 1})
    with pytest.raises(TypeError):
        run.write_json("result.json", {("no", "key"): 1})
    assert json.loads((run.path / "result.json").read_text()) == {"a": 1}
    assert not [path for path in os.listdir(run.path) if path.endswith(".tmp")]
