"""Estimates of the time that a task still takes."""

import logging
import time

from lib.system import progress


def test_the_time_left_is_estimated_from_the_first_unit_on(monkeypatch, caplog):
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(progress, "bar_stream", lambda: None)
    caplog.set_level(logging.INFO)
    with progress.TaskProgress("Warm-up", 5000, shown=True) as task:
        now = 6.0  # a player takes this long to start
        task.advance()
        for _ in range(300):
            now += 0.1
            task.advance()
    assert caplog.messages == ["Warm-up: 1 of 5,000 steps.", "Warm-up: 301 of 5,000 steps, 8 min left."]
