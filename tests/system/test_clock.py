import time

import psutil
import pytest

from lib.system import clock


def test_the_process_started_when_the_system_says_also_after_a_change_of_the_clock(monkeypatch):
    clock._process_start.cache_clear()
    age = time.time() - psutil.Process().create_time()
    assert clock.since_process_start() == pytest.approx(age, abs=1.0)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    assert clock.since_process_start() == pytest.approx(age, abs=1.0)
