"""Log lines on any console, and the progress of tasks in them."""

import logging
import subprocess
import sys

import pytest

from lib.system import log
from running import BASELINE, ENVIRONMENT, PROJECT, SMALL_DQN, folder, result_of

RUN = (sys.executable, PROJECT / BASELINE, "--env-id", "fakes:Chain-v0", *SMALL_DQN, "--stop-after", "250")


@pytest.mark.slow
@pytest.mark.parametrize("console", ["2>&1 | head -1", pytest.param(">/dev/full 2>/dev/full", marks=pytest.mark.long)])
def test_a_run_ends_with_its_result_whatever_becomes_of_the_console(tmp_path, console):
    command = f"{' '.join(map(str, (*RUN, '--runs-dir', tmp_path)))} {console}"
    subprocess.run(["bash", "-c", command], env=ENVIRONMENT, timeout=120, check=False, capture_output=True)
    assert result_of(folder(tmp_path))["stopped"] == "step limit"


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
