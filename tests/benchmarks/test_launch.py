"""Scripts that the benchmarks start, one after another or several at once."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

import lab
import launch
from lib.run.stopping import NOT_FINITE


@pytest.mark.parametrize(
    ("options", "device"),
    [
        (["--envs", "3"], "cpu"),
        (["--cuda"], "cuda"),
        (["--device", "cuda:1", "--set", "epochs=2"], "cuda:1"),
        (["--device=cuda"], "cuda"),
    ],
)
def test_the_device_is_read_from_a_scripts_options(options, device):
    assert launch.device_of(options) == device


@pytest.mark.parametrize(
    ("rung", "path"),
    [("01_baseline --envs 3", "chapter09/01_baseline.py"), ("distributed/01_ppo", "distributed/01_ppo.py")],
)
def test_a_rung_is_started_from_chapter_9_or_from_its_own_folder(rung, path):
    python, script, *options = launch.command(rung, "--quiet")
    assert python == sys.executable
    assert script == str(lab.PROJECT / path)
    assert options == [*rung.split()[1:], "--quiet"]


SLOW = """
import os, sys, time
try:
    with open(sys.argv[1], "w") as file:
        file.write(str(os.getpid()) + ".")
    time.sleep(20)
except KeyboardInterrupt:
    time.sleep(1)
    sys.exit(9)
"""


def test_ctrl_c_is_left_to_the_running_script(tmp_path):
    started = tmp_path / "pid"

    def press_ctrl_c():
        while not (started.exists() and started.read_text().endswith(".")):
            time.sleep(0.02)
        for pid in (os.getpid(), int(started.read_text()[:-1])):
            os.kill(pid, signal.SIGINT)

    threading.Thread(target=press_ctrl_c, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        launch.start([sys.executable, "-c", SLOW, str(started)])
    assert ended.value.code == 9


def test_after_a_failed_call_no_other_begins():
    begun = []

    def call(number):
        begun.append(number)
        time.sleep(0.01)
        if number == 1:
            raise ValueError("it broke")
        return 10 * number

    with pytest.raises(ValueError, match="it broke"):
        assert list(launch.in_parallel(1, call, range(500)))
    assert begun == [0, 1]
    assert sorted(launch.in_parallel(2, call, [2, 3])) == [(2, 20), (3, 30)]


def test_a_diverged_run_is_a_result_and_a_failed_run_is_not(tmp_path):
    script = tmp_path / "script.py"
    text = """import json, pathlib, sys
folder = pathlib.Path(sys.argv[sys.argv.index("--runs-dir") + 1], "run")
folder.mkdir()
(folder / "result.json").write_text(json.dumps({"stopped": %r}))
sys.exit(1)
"""
    script.write_text(text % NOT_FINITE)
    with launch.finished_run(str(script.with_suffix(""))) as run:
        assert run.name == "run"
    script.write_text(text % "SIGTERM")
    with pytest.raises(subprocess.CalledProcessError), launch.finished_run(str(script.with_suffix(""))):
        pass
