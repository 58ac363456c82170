"""Processes that have to end with this one."""

import signal
import subprocess
import sys

import psutil
import pytest

from lib.actors.ray_package import Reaper

REFUSED = """
import os

def refuse(number):
    raise OSError(38, "Function not implemented")

os.pidfd_open = refuse
"""


@pytest.mark.parametrize("before", ["", REFUSED], ids=["file descriptors", "numbers"])
def test_processes_are_killed_when_this_one_ends(monkeypatch, before):
    monkeypatch.setattr(Reaper, "CODE", before + Reaper.CODE)
    sleeping, ended = (subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({s})"]) for s in (600, 0))
    processes = [psutil.Process(each.pid) for each in (ended, sleeping)]
    ended.wait()
    reaper = Reaper(processes)
    assert reaper._process.stdin is not None
    reaper._process.stdin.close()  # as the end of this process does
    assert sleeping.wait(timeout=30) == -signal.SIGKILL
    assert reaper._process.wait() == 0
