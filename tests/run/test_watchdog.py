"""Environments that do not return are named, and a time limit ends the run nevertheless."""

import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
from ignite.engine import Engine

import fakes
from lib.envs.checked_env import CheckedEnv
from lib.envs.single_env import make_env
from lib.errors import Fault
from lib.run import watchdog
from lib.run.watchdog import Watchdog
from running import ENVIRONMENT


@pytest.fixture
def _fast(monkeypatch):
    monkeypatch.setattr(Watchdog, "_watcher", SimpleNamespace(tell=lambda *_: None))
    monkeypatch.setattr(Watchdog, "INTERVAL", 0.05)
    monkeypatch.setattr(Watchdog, "GRACE", 0.3)
    monkeypatch.setattr(Watchdog, "PATIENCE", 0.2)


def hanging_engine(time_limit, how="hang"):
    env = CheckedEnv(fakes.Failing(how, at=3), "fakes:Hanging-v0")
    env.reset(seed=7)
    engine = Engine(lambda engine, batch: env.step(1))
    Watchdog(time_limit).attach(engine)
    return engine


@pytest.mark.usefixtures("_fast")
def test_an_environment_that_hangs_is_named_and_ended_after_the_time_limit(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "since_process_start", lambda: 100.0)
    with pytest.raises(
        Fault, match=r"fakes:Hanging-v0 \(episode 1 from seed 7, at step 3.*did not return before the time limit"
    ):
        hanging_engine(99.0).run([0] * 10)
    [record] = [each for each in caplog.records if each.name == "lib.run.watchdog"]
    assert "fakes:Hanging-v0 (episode 1 from seed 7, at step 3): a call has not returned for 0" in record.message
    assert CheckedEnv.call is None


@pytest.mark.usefixtures("_fast")
def test_a_constructor_that_hangs_is_named_and_ended_without_an_engine(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "since_process_start", lambda: 100.0)
    monkeypatch.setattr(gymnasium, "make", lambda *_, **__: watchdog.threading.Event().wait(20))
    Watchdog(99.0).start()
    with pytest.raises(Fault, match=r"CartPole-v1 \(in its constructor\): a call did not return before the time limit"):
        make_env("CartPole-v1")
    [record] = [each for each in caplog.records if each.name == "lib.run.watchdog"]
    assert "CartPole-v1 (in its constructor): a call has not returned for 0" in record.message


@pytest.mark.usefixtures("_fast")
def test_a_run_whose_environments_return_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "since_process_start", lambda: 100.0)
    env = CheckedEnv(fakes.Counting(length=100), "fakes:Counting-v0")
    env.reset(seed=7)
    engine = Engine(lambda engine, batch: (env.step(1), watchdog.threading.Event().wait(0.3)))
    Watchdog(99.0).attach(engine)
    assert engine.run([0] * 3).iteration == 3
    assert caplog.records == []


PROGRAM = """
import signal, time
from lib.run import watchdog
from lib.run.watchdog import Watchdog
import test_watchdog
Watchdog.PATIENCE, Watchdog.INTERVAL, Watchdog.GRACE = {patience}, 0.05, 0.3
engine = test_watchdog.hanging_engine({limit}, {how!r})
Watchdog({limit}).start()
{also}
time.sleep(0.5)
print("starts", flush=True)
engine.run([0] * 10)
"""


@contextmanager
def program(how, limit=None, patience=60.0, also=""):
    env = ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{Path(__file__).parent}"}
    command = [sys.executable, "-c", PROGRAM.format(how=how, limit=limit, patience=patience, also=also)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, env=env, text=True, **pipes) as process:
        try:
            assert process.stdout.readline() == "starts\n"
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_native_code_that_ignores_the_interruption_is_ended_with_the_process():
    with program("hang", limit=0.0, also="signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])") as process:
        message = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert message.startswith("error: fakes:Hanging-v0 (episode 1 from seed 7, at step 3): a call did not")
    assert message.endswith("so nothing was saved\n")


HELD = (
    r"Python code has not run for \d+ seconds, because native code holds its lock, at line \d+ of .*/fakes.py \(step\)"
    r"\. The environment called last is fakes:Hanging-v0 \(episode 1 from seed 7, at the reset\)"
)


@pytest.mark.slow
def test_native_code_that_holds_python_s_lock_is_ended_at_the_time_limit():
    with program("hold the lock", limit=0.0) as process:
        message = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGKILL
    assert re.fullmatch(rf"\nerror: {HELD}\. The process is ended at its time limit; nothing since .*\n", message)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_native_code_that_holds_python_s_lock_is_named_and_ended_by_a_signal(number):
    handler = f"signal.signal({number:d}, signal.default_int_handler)"
    with program("hold the lock", patience=0.5, also=handler) as process:
        assert process.stderr.readline() == "\n"
        assert re.fullmatch(rf"warning: {HELD}\n", process.stderr.readline())
        assert process.poll() is None
        process.send_signal(number)
        message = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGKILL
    assert re.fullmatch(rf"\nerror: {HELD}\. The process is ended after a signal; nothing since .*\n", message)


@pytest.mark.slow
def test_a_stopped_process_is_left_alone():
    with program("hang", patience=0.5, also="engine = test_watchdog.Engine(lambda *_: time.sleep(0.3))") as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.0)
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
