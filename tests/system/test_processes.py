"""Child processes: how they are killed, and how their end is described."""

import psutil
import pytest

from fakes import start_two_and_wait
from lib.system import processes
from lib.system.processes import Child, describe_exit


def test_a_killed_child_takes_its_own_children_along_even_if_one_has_just_ended(monkeypatch):
    child = Child("parent")
    child.launch(start_two_and_wait)
    programs = [psutil.Process(pid) for pid in child.connection.recv()]
    kill = psutil.Process.kill

    def kill_and_miss(process):
        kill(process)
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "kill", kill_and_miss)
    child.kill()
    _, alive = psutil.wait_procs(programs, timeout=10)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.parametrize(
    ("code", "text"),
    [(3, "died with exit code 3"), (-9, "was killed by SIGKILL"), (-40, "was killed by signal 40")],
)
def test_an_exit_code_is_described(code, text):
    assert describe_exit(code) == text


@pytest.mark.parametrize("missing", ["folder for temporary files", "current folder"])
def test_a_child_that_cannot_start_names_the_folder_that_was_deleted(tmp_path, monkeypatch, missing):
    def fail(child):
        raise FileNotFoundError

    (tmp_path / "gone").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setattr(processes, "get_temp_dir", lambda: str(tmp_path / "temporary"))
    monkeypatch.setattr(processes.Child, "_start_by_server", fail)
    (tmp_path / ("gone" if missing == "current folder" else "temporary")).rmdir()
    with pytest.raises(processes.ChildLost, match=f"actor 1 could not .*because the {missing}.* was deleted"):
        processes.Child("actor 1").launch(print)
