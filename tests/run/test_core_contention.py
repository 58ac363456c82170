"""The warning that other programs keep torch's threads waiting for a core."""

import logging
import subprocess
import sys
import time

import pytest
from ignite.engine import Engine, Events

from lib.run import core_contention
from lib.run.core_contention import CoreContention, Reading
from lib.system.machine import torch_threads


def warnings_of(readings, monkeypatch, caplog, threads=2, cores=2):
    """Return the warnings of a run that looks once per reading, each (time, waiting, others)."""
    left = [Reading(*reading) for reading in readings]
    monkeypatch.setattr(core_contention, "read", lambda: left.pop(0))
    monkeypatch.setattr(core_contention, "cores", lambda: cores)
    engine = Engine(lambda engine, batch: None)
    CoreContention().attach(engine, Events.ITERATION_COMPLETED)
    with torch_threads(threads), caplog.at_level(logging.WARNING):
        engine.run([0], max_epochs=len(readings))
    return [record.getMessage() for record in caplog.records]


# Two readings, twenty seconds apart: seconds that threads waited for a core, and CPU seconds of other programs.
@pytest.mark.parametrize(
    ("waited", "others", "threads", "warned"),
    [
        (18.0, 20.0, 2, True),
        (18.0, 0.0, 2, False),  # they wait for actors or players of the run itself
        (0.2, 20.0, 2, False),  # the other programs have cores of their own
        (18.0, 20.0, 1, False),
    ],
)
def test_warns_if_threads_wait_because_of_other_programs(waited, others, threads, warned, monkeypatch, caplog):
    readings = [(-100.0, 5.0, 7.0), (-80.0, 5.0 + waited, 7.0 + others)]
    found = warnings_of(readings, monkeypatch, caplog, threads)
    assert [text.startswith("Other programs use 1.0 of 2 cores") for text in found] == [True] * warned


@pytest.mark.parametrize(
    ("cores", "threads", "others", "advised"), [(2, 2, 1.0, 1), (2, 2, 2.0, 1), (8, 8, 1.1, 7), (8, 4, 1.0, 3)]
)
def test_advises_as_many_threads_as_cores_are_left(cores, threads, others, advised, monkeypatch, caplog):
    readings = [(-100.0, 0.0, 0.0), (-90.0, 9.0, 10 * others)]
    [text] = warnings_of(readings, monkeypatch, caplog, threads, cores)
    assert f"OMP_NUM_THREADS={advised}," in text


def test_looks_every_ten_seconds_until_it_has_warned(monkeypatch, caplog):
    now = time.monotonic()
    readings = [(-100.0, 0.0, 0.0), (-80.0, 0.0, 20.0), (-60.0, 18.0, 40.0), (-40.0, 36.0, 60.0)]
    assert len(warnings_of(readings, monkeypatch, caplog)) == 1
    caplog.clear()
    # The second reading is newer than ten seconds, so the third one is never asked for.
    assert warnings_of([(-100.0, 0.0, 0.0), (now, 0.0, 0.0), (now, 18.0, 20.0)], monkeypatch, caplog) == []


def test_cpu_time_of_children_is_not_that_of_others():
    before = core_contention._own()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    own = core_contention._own()
    busy = core_contention._busy()
    reading = core_contention.read()
    assert own - before >= 0.4
    assert reading.others <= core_contention._busy() - own + 0.1  # the kernel counts in hundredths
    assert reading.others >= busy - core_contention._own() - 0.1
    assert reading.waiting <= core_contention._waiting()
