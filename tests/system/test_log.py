"""Log lines on any console, and the progress of tasks in them."""

import logging

import pytest

from lib.system import log
from running import BASELINE, PROJECT, SMALL_DQN, folder, result_of, start_program

RUN = """
import os, runpy, sys
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1), os.dup2(writer, 2)
sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_a_run_whose_console_is_closed_ends_with_its_result(tmp_path):
    options = ("--env-id", "fakes:Chain-v0", *SMALL_DQN, "--stop-after", 250, "--runs-dir", tmp_path / "runs")
    start_program(RUN, tmp_path, PROJECT / BASELINE, *options).communicate()
    assert result_of(folder(tmp_path / "runs"))["stopped"] == "step limit"


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
