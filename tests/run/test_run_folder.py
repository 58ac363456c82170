import hashlib
import json
import os
import re
import signal
import sys

import psutil
import pytest

from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import provenance, run_folder
from lib.run.options import RunOptions
from running import PROJECT, first_line, full_disk, start_program

PONG = HYPERPARAMS["pong"]


def test_folder_names_have_no_colon_and_are_numbered_if_they_repeat(tmp_path):
    runs = [run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path / "new" / "runs")) for _ in range(3)]
    first, second, third = (run.path.name for run in runs)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d{4}-pong-01_baseline", first)
    if second.startswith(first):  # the minute may have changed in between
        assert second == f"{first}-2"
    assert len({first, second, third}) == 3


def test_the_name_of_a_folder_is_cut_before_it_is_too_long(tmp_path):
    options = RunOptions(runs_dir=tmp_path, changes="-learning_rate=0.0001" * 12)
    runs = [run_folder.Run("01_baseline", PONG, options) for _ in range(2)]
    assert all(len(run.path.name) <= 240 for run in runs)
    assert "-pong-01_baseline-learning_rate=0.0001" in runs[0].path.name


def test_params_json_has_the_settings_and_the_session(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path, seed=9, knobs={"envs": 3}))
    content = json.loads((run.path / "params.json").read_text())
    assert content["hyperparameters"]["replay_size"] == 100_000
    assert (content["script"], content["seed"], content["knobs"]) == ("01_baseline", 9, {"envs": 3})
    [session] = content["sessions"]
    assert session["versions"]["ptan"] == "0.8.1"
    assert session["machine"]["cores"] >= 1
    assert session["argv"] == sys.argv
    assert session["commit"] is None or re.fullmatch(r"[0-9a-f]{40}\+?", session["commit"])


def test_a_resumed_run_adds_its_session_and_logs_what_changed(tmp_path, monkeypatch, caplog):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.close()
    options = RunOptions(resume=first.path)
    before = (first.path / "params.json").read_bytes()
    for versions in (provenance.versions(), {"torch": "9.9"}):
        assert "Changed since the last session" not in caplog.text
        monkeypatch.setattr(provenance, "versions", lambda versions=versions: versions)
        run = run_folder.Run("01_baseline", PONG, options)
        assert (first.path / "params.json").read_bytes() == before  # the resume may still be refused
        run.add_session()
        before = (first.path / "params.json").read_bytes()
        run.close()
    assert "Changed since the last session: versions." in caplog.text
    sessions = json.loads((first.path / "params.json").read_text())["sessions"]
    assert [session["versions"]["torch"] == "9.9" for session in sessions] == [False, False, True]


def test_the_result_of_the_last_session_is_kept_until_the_run_learns(tmp_path):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    result = {"stopped": "solved", "evaluation": {"mean": 20.5}}
    first.write_json("result.json", result)
    first.close()
    for _ in range(2):
        run = run_folder.Run("01_baseline", PONG, RunOptions(resume=first.path))
        run.add_session()
        assert run.read_result() == result
        run.close()  # like a process that was killed before it learnt anything
    run.discard_result()
    assert run.read_result() == {}
    first_session, *others = json.loads((first.path / "params.json").read_text())["sessions"]
    assert first_session["result"] == result
    assert ["result" in session for session in others] == [False, False]


HOLDER = """
import sys, time
from pathlib import Path
from lib.hyperparameters import HYPERPARAMS
from lib.run.options import RunOptions
from lib.run.run_folder import Run
run = Run("01_baseline", HYPERPARAMS["pong"], RunOptions(resume=Path(sys.argv[1])))
print("held", flush=True)
time.sleep(60)
"""


def test_a_run_cannot_be_opened_until_its_process_has_ended(tmp_path):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.close()
    options = RunOptions(resume=first.path)
    holder = start_program(HOLDER, tmp_path, first.path)
    assert first_line(holder) == "held"
    for _ in range(2):
        with pytest.raises(UsageError, match=f"in use by process {holder.pid}"):
            run_folder.Run("01_baseline", PONG, options)
        (first.path / "lock").unlink(missing_ok=True)  # which must not let a second process in
    (first.path / "pid").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="in use by another process, whose id is unknown"):
        run_folder.Run("01_baseline", PONG, options)
    holder.kill()
    holder.communicate()
    run_folder.Run("01_baseline", PONG, options).close()


def test_a_published_model_cannot_be_resumed_and_stays_as_it_is(tmp_path):
    model = tmp_path / "model"
    (model / "checkpoints").mkdir(parents=True)
    (model / "checkpoints" / "best-000000007.pt").touch()
    with pytest.raises(UsageError, match=r"published model, or has lost its step-\* checkpoints.*--init"):
        run_folder.Run("01_baseline", PONG, RunOptions(resume=model))
    assert [path.name for path in model.iterdir()] == ["checkpoints"]


FORKER = """
import os, sys, time
from pathlib import Path
from lib.hyperparameters import HYPERPARAMS
from lib.run import run_folder
from lib.run.options import RunOptions
run = run_folder.Run("01_baseline", HYPERPARAMS["pong"], RunOptions(resume=Path(sys.argv[1])))
if child := os.fork():
    print(child, flush=True)
time.sleep(60)
"""


def test_a_child_that_an_environment_forked_does_not_hold_the_lock_of_a_killed_run(tmp_path):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.close()
    holder = start_program(FORKER, tmp_path, first.path)
    child = int(first_line(holder))
    with pytest.raises(UsageError, match=f"in use by process {holder.pid}"):
        run_folder.Run("01_baseline", PONG, RunOptions(resume=first.path))
    holder.kill()
    holder.communicate()
    assert psutil.pid_exists(child)
    run_folder.Run("01_baseline", PONG, RunOptions(resume=first.path)).close()
    os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("kind", ["symbolic link", "pipe"])
def test_a_run_with_a_link_or_a_pipe_is_not_read(tmp_path, kind):
    run = tmp_path / "run"
    (run / "videos").mkdir(parents=True)
    (run / "params.json").write_text("{}")
    assert run_folder.find(str(run), tmp_path) == run
    odd = run / "videos" / "episode-1-return-9.webm"
    if kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.symlink_to("/etc/hostname")
    with pytest.raises(UsageError, match="symbolic link" if kind == "symbolic link" else "neither a file nor a folder"):
        run_folder.find(str(run), tmp_path)


def test_names_that_act_on_a_terminal_are_refused(tmp_path):
    for name in ("red\x1b[31m", "two\nlines"):
        (tmp_path / name).mkdir()
        with pytest.raises(UsageError, match=r"'.*(\\x1b|\\n).*' contains control characters"):
            run_folder.find(name, tmp_path)


def test_control_characters_are_written_as_escapes(tmp_path):
    run_folder.write_json(tmp_path / "result.json", {"a": ["\x1b[31m", r"\u001b"]})
    assert run_folder.read_json(tmp_path / "result.json", {}) == {"a": [r"\x1b[31m", r"\u001b"]}


@pytest.mark.parametrize(
    ("content", "problem"),
    [('{"a": "\\u001b[31m"}', "control characters"), ('{"a": 1}' + 2000 * " ", "it is larger than")],
)
def test_a_json_file_that_is_too_large_or_acts_on_a_terminal_is_refused(tmp_path, monkeypatch, content, problem):
    monkeypatch.setattr(run_folder, "LARGEST_JSON", 1000)
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(UsageError, match=problem):
        run_folder.read_json(tmp_path / "result.json", {})


@pytest.mark.parametrize(
    "name",
    ["result.json", "episodes.csv", "lock", "checkpoints/best-000000007.pt.sha256", "videos/a.webm", "events.out.x.0"],
)
def test_a_folder_in_place_of_a_file_is_reported(tmp_path, name):
    (tmp_path / "run" / name).mkdir(parents=True)
    (tmp_path / "run" / "params.json").write_text("{}")
    with pytest.raises(UsageError, match=f"{name} is a folder, where a file is expected; remove it"):
        run_folder.find("run", tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "videos"])
def test_a_file_in_place_of_a_folder_is_reported(tmp_path, name):
    (tmp_path / "run").mkdir()
    for each in ("params.json", name):
        (tmp_path / "run" / each).write_text("{}")
    with pytest.raises(UsageError, match=f"{name} is a file, where a folder is expected; remove it"):
        run_folder.find("run", tmp_path)


def test_unfinished_files_of_dead_processes_are_removed(tmp_path):
    first = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    first.close()
    (first.path / "videos").mkdir()
    dead = [first.path / ".result.json.99999999.tmp", first.path / "videos" / "play-1-episode-1.99999999.part.webm"]
    alive = [first.path / "videos" / f"play-1-episode-2.{os.getpid()}.part.webm", first.path / "episodes.csv"]
    for path in (*dead, *alive):
        path.touch()
    run_folder.Run("01_baseline", PONG, RunOptions(resume=first.path)).close()
    assert [path.exists() for path in (*dead, *alive)] == [False, False, True, True]


def test_a_damaged_pid_file_does_no_harm_at_the_end_of_a_process(tmp_path):
    (tmp_path / "pid").write_bytes(b"\xff\xfe\x00")
    run_folder._remove_own_pid(tmp_path / "pid")
    assert (tmp_path / "pid").exists()


def test_a_new_run_that_cannot_be_written_leaves_no_folder(tmp_path):
    with full_disk(10), pytest.raises(OSError, match="File too large") as caught:
        run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    assert caught.value.filename.endswith("params.json")
    assert list(tmp_path.iterdir()) == []


def test_a_model_is_found_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_folder.find("models/pong", tmp_path) == PROJECT / "models/pong"


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.write_json("result.json", {"a": 1})
    with pytest.raises(TypeError):
        run.write_json("result.json", {("no", "key"): 1})  # type: ignore[dict-item]
    assert run_folder.read_json(run.path / "result.json", {}) == {"a": 1}
    assert not [path for path in os.listdir(run.path) if path.endswith(".tmp")]


def test_a_printed_module_is_quoted_because_a_stranger_may_have_chosen_it(tmp_path):
    with pytest.raises(UsageError, match=r"add --env-module 'x; touch y'$"):
        run_folder.require_trust(tmp_path, "x; touch y:Game-v0", None)


@pytest.mark.parametrize(
    ("content", "reason"),
    [({"a": 10**400}, "10000000000000000000... is too large"), ({"a": ["\ud800"]}, "surrogates not allowed")],
)
def test_numbers_and_texts_that_nothing_can_use_are_refused(tmp_path, content, reason):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(content | {"sha256": hashlib.sha256(json.dumps(content).encode()).hexdigest()}))
    with pytest.raises(UsageError, match=re.escape(f"{file} cannot be read: ") + f".*{re.escape(reason)}"):
        run_folder.read_json(file, {})


def test_bytes_that_are_not_utf_8_are_written_as_a_question_mark(tmp_path):
    run_folder.write_json(tmp_path / "params.json", {"argv": [os.fsdecode(b"--init=\xff")]})
    assert run_folder.read_json(tmp_path / "params.json", {}) == {"argv": ["--init=?"]}
