import time

import psutil
import pytest

from lib.system import clock


@pytest.fixture(autouse=True)
def _forget_the_start():
    clock._process_start.cache_clear()
    yield
    clock._process_start.cache_clear()


def test_the_process_started_when_the_system_says():
    assert clock.since_process_start() == pytest.approx(time.time() - psutil.Process().create_time(), abs=1.0)


def test_without_proc_the_import_counts_as_the_start(monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "STAT", tmp_path / "missing")
    assert 0.0 < clock.since_process_start() <= time.monotonic() - clock.IMPORTED
