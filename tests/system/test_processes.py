"""Child processes: how they are killed, and how their end is described."""

import psutil

from fakes import start_two_and_wait
from lib.system.processes import context, describe_exit, kill_child


def test_a_killed_child_takes_its_own_children_along_even_if_one_has_just_ended(monkeypatch):
    ours, theirs = context.Pipe()
    child = context.Process(target=start_two_and_wait, args=(theirs,))
    child.start()
    programs = [psutil.Process(pid) for pid in ours.recv()]
    kill = psutil.Process.kill

    def kill_and_miss(process):
        kill(process)
        raise psutil.NoSuchProcess(process.pid)

    monkeypatch.setattr(psutil.Process, "kill", kill_and_miss)
    kill_child(child)
    _, alive = psutil.wait_procs(programs, timeout=10)
    assert [each for each in alive if each.status() != psutil.STATUS_ZOMBIE] == []


def test_an_exit_code_is_described():
    assert describe_exit(3) == "died with exit code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"
