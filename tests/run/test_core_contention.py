"""The warning that other programs keep torch's threads waiting for a core."""

import time

import pytest
from ignite.engine import Engine

from lib.run import core_contention
from lib.run.core_contention import CoreContention
from lib.system.core_times import TASKS, Reading
from lib.system.machine import torch_threads

pytestmark = pytest.mark.skipif(not any(TASKS.glob("*/schedstat")), reason="the system reports no waiting times")


def warnings_of(readings, monkeypatch, caplog, threads=2, cores=2):
    """Return the numbers in the warnings of a run that takes these readings.

    Args:
        readings: (time, waiting, others) or None, the first one at the start and one for each iteration.
        threads: number of torch threads.
        cores: number of cores.
    """
    left = [reading and Reading(*reading) for reading in readings]
    monkeypatch.setattr(core_contention, "read", lambda: left.pop(0))
    monkeypatch.setattr(core_contention, "cores", lambda: cores)
    engine = Engine(lambda engine, batch: None)
    CoreContention().attach(engine)
    with torch_threads(threads):
        engine.run([0], max_epochs=len(readings) - 1)
    return [record.args for record in caplog.records if record.name == core_contention.__name__]


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
    assert warnings_of(readings, monkeypatch, caplog, threads) == [(1.0, 2, 2, 1)] * warned


@pytest.mark.parametrize(
    ("cores", "threads", "others", "advised"), [(2, 2, 1.0, 1), (2, 2, 2.0, 1), (8, 8, 1.1, 7), (8, 4, 1.0, 3)]
)
def test_advises_fewer_threads_and_at_most_the_free_cores(cores, threads, others, advised, monkeypatch, caplog):
    readings = [(-100.0, 0.0, 0.0), (-90.0, 9.0, 10 * others)]
    assert warnings_of(readings, monkeypatch, caplog, threads, cores) == [(others, cores, threads, advised)]


def test_warns_once(monkeypatch, caplog):
    readings = [(-100.0, 0.0, 0.0), (-80.0, 0.0, 20.0), (-60.0, 18.0, 40.0), (-40.0, 36.0, 60.0)]
    assert len(warnings_of(readings, monkeypatch, caplog)) == 1


def test_takes_no_reading_within_ten_seconds(monkeypatch, caplog):
    now = time.monotonic()
    assert warnings_of([(now, 0.0, 0.0), (now, 18.0, 20.0)], monkeypatch, caplog) == []


def test_a_reading_that_the_system_refuses_is_left_out(monkeypatch, caplog):
    readings = [(-100.0, 0.0, 0.0), None, (-60.0, 36.0, 40.0), (-40.0, 54.0, 60.0)]
    assert len(warnings_of(readings, monkeypatch, caplog)) == 1
