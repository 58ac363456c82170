"""Log lines on any console, and the progress of tasks in them."""

import logging
import sys
from unittest.mock import Mock

from lib.system import log


def test_a_line_that_cannot_be_written_is_lost(monkeypatch):
    """A run goes on when its console is closed."""
    stdout = Mock(write=Mock(side_effect=BrokenPipeError))
    monkeypatch.setattr(sys, "stdout", stdout)
    log.Console().emit(logging.makeLogRecord({"msg": "Learning."}))
    assert stdout.write.called


def test_without_a_terminal_progress_is_logged_every_half_minute(monkeypatch, caplog):
    now = 0.0
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    monkeypatch.setattr(log, "bar_stream", lambda: None)
    caplog.set_level(logging.INFO)
    with log.TaskProgress("Warm-up", 5000, shown=True) as task:
        for _ in range(700):
            now += 0.1
            task.update()
    assert caplog.messages == ["Warm-up: 300 of 5,000 steps, 07:50 left.", "Warm-up: 600 of 5,000 steps, 07:20 left."]
    with log.TaskProgress("Evaluation", shown=False) as hidden:
        now += 100.0
        hidden.update()
    assert len(caplog.messages) == 2
