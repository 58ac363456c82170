"""CPU times of this process and of other programs."""

import subprocess
import sys

import pytest

from lib.system import core_times
from lib.system.core_times import TASKS

pytestmark = pytest.mark.skipif(not any(TASKS.glob("*/schedstat")), reason="the system reports no waiting times")


def test_a_reading_that_the_system_refuses_is_none(monkeypatch):
    def refuse():
        raise OSError("too many open files")

    monkeypatch.setattr(core_times, "_busy", refuse)
    assert core_times.read() is None


def test_waiting_times_of_all_threads_are_added(tmp_path):
    for thread, nanoseconds in (("1", 2_000_000_000), ("2", 500_000_000)):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(f"7 {nanoseconds} 9\n")
    (tmp_path / "3").mkdir()  # a thread that is about to end
    assert core_times.seconds_waited(tmp_path) == 2.5


def test_cpu_time_of_children_is_not_that_of_others():
    before = core_times._own()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    own, busy = core_times._own(), core_times._busy()
    reading = core_times.read()
    assert own - before >= 0.4
    assert reading is not None
    # The kernel counts in hundredths of a second.
    assert busy - core_times._own() - 0.1 <= reading.others <= core_times._busy() - own + 0.1
