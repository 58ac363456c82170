import errno
import fcntl
import json
import os
import re
import signal
import stat
import sys
import threading

import psutil
import pytest

from finished_runs import in_use
from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS
from lib.run import provenance, run_folder
from lib.run.options import RunOptions
from running import first_line, full_disk, start_program

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
    assert session["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(\+[0-9a-f]{8})?", session["commit"])


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
    with pytest.raises(UsageError, match=r"is a published model, which cannot be resumed.*--init"):
        run_folder.Run("01_baseline", PONG, RunOptions(resume=model))
    assert [path.name for path in model.iterdir()] == ["checkpoints"]


def test_a_run_that_ends_in_another_thread_unlocks_its_folder(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    thread = threading.Thread(target=run.close)
    thread.start()
    thread.join()
    assert not run_folder.in_use(run.path)
    run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path)).close()


def test_a_run_on_another_machine_is_seen_by_its_lock_file(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.close()
    with (run.path / "lock").open() as file:  # locks of folders are not seen by other machines
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run_folder.in_use(run.path)
        with pytest.raises(UsageError, match="is in use by another process"):
            run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path))
    assert not run_folder.in_use(run.path)


def test_a_tool_that_looks_whether_a_run_is_in_use_does_not_refuse_its_resume(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.close()
    with (run.path / "lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.05, lambda: fcntl.flock(file, fcntl.LOCK_UN)).start()
        run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path)).close()


def test_a_run_that_a_notebook_resumes_twice_is_refused_twice_with_advice(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    for _ in range(2):
        with pytest.raises(UsageError, match=r"is in use by this process; .*call close\(\)"):
            run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path))
    run.close()


@pytest.mark.parametrize("same", [True, False])
def test_a_run_that_another_container_holds_is_not_called_this_processs_own(tmp_path, same):
    number = os.getpid() if same else 2**22 + 7
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.close()
    (run.path / "pid").write_text(str(number))
    with (
        in_use(run.path),
        pytest.raises(UsageError, match=f"process {number} of another machine or container"),
    ):
        run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path))


def test_unfinished_files_of_an_earlier_container_with_the_same_id_are_removed(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.close()
    leftover = run.path / f".files.json.{os.getpid()}.tmp"
    leftover.touch()
    run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path)).close()
    assert not leftover.exists()


def test_a_run_with_only_a_playable_checkpoint_can_begin_again_unlike_a_model(tmp_path):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.close()
    (run.checkpoints / "best-000000100.pt").touch()
    with pytest.raises(UsageError, match=r"is a published model, which cannot be resumed.* --init"):
        run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path))
    (run.path / "episodes.csv").touch()
    run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path)).close()


def test_a_resume_that_is_interrupted_while_it_begins_leaves_the_run_unlocked(tmp_path, monkeypatch):
    run = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    run.close()

    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_folder, "remove_leftovers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_folder.Run("01_baseline", PONG, RunOptions(resume=run.path))
    assert not run_folder.in_use(run.path)


def test_a_file_system_without_locks_is_named_and_a_killed_run_can_be_resumed_there(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, kind):
        if stat.S_ISREG(os.fstat(descriptor).st_mode):  # folders are locked on this machine only
            raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", refuse)
    killed = run_folder.Run("01_baseline", PONG, RunOptions(runs_dir=tmp_path))
    assert f"The file system of {killed.path} has no locks for files." in caplog.text
    assert not run_folder.in_use(killed.path)
    run_folder.Run("01_baseline", PONG, RunOptions(resume=killed.path)).close()
    killed.close()


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
