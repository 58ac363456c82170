"""Environments that do not return are named, and a time limit ends the run nevertheless."""

import subprocess
import sys

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
    monkeypatch.setattr(Watchdog, "INTERVAL", 0.05)
    monkeypatch.setattr(Watchdog, "GRACE", 0.3)
    monkeypatch.setattr(Watchdog, "PATIENCE", 0.2)


def hanging_engine(time_limit):
    env = CheckedEnv(fakes.Failing("hang", at=3), "fakes:Hanging-v0")
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


NATIVE = """
import signal
from lib.run import watchdog
from lib.run.watchdog import Watchdog
import test_watchdog
Watchdog.INTERVAL, Watchdog.GRACE = 0.05, 0.3
engine = test_watchdog.hanging_engine(0.0)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
engine.run([0] * 10)
"""


@pytest.mark.slow
def test_native_code_that_ignores_the_interruption_is_ended_with_the_process():
    env = ENVIRONMENT | {"PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{__file__.rpartition('/')[0]}"}
    process = subprocess.run([sys.executable, "-c", NATIVE], env=env, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1
    assert process.stderr.startswith("error: fakes:Hanging-v0 (episode 1 from seed 7, at step 3): a call did not")
    assert process.stderr.endswith("so nothing was saved\n")
