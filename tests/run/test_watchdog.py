"""Environments that do not return are named, and a time limit ends the run nevertheless."""

import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import pytest
from ignite.engine import Engine, Events

import fakes
from lib.envs.checked_env import Call, CheckedEnv
from lib.envs.single_env import make_env
from lib.errors import Fault
from lib.run import watchdog
from lib.run.watchdog import Watchdog
from running import BASELINE, first_line, run, start_program, wait_for


@pytest.fixture
def _fast(monkeypatch):
    monkeypatch.setattr(Watchdog, "_watcher", SimpleNamespace(send_heartbeat=lambda *_: None))
    monkeypatch.setattr(Watchdog, "INTERVAL", 0.05)
    monkeypatch.setattr(Watchdog, "GRACE", 0.3)
    monkeypatch.setattr(Watchdog, "PATIENCE", 0.2)
    yield
    # Otherwise it would interrupt slow calls of later tests.
    assert Watchdog._newest is not None
    Watchdog._newest._ended.set()


def hanging_engine(time_limit, how="hang"):
    env = CheckedEnv(fakes.Failing(how, at=3), "fakes:Hanging-v0")
    env.reset(seed=7)
    engine = Engine(lambda engine, batch: env.step(1))
    Watchdog(time_limit).attach(engine)
    return engine


@pytest.mark.usefixtures("_fast")
def test_an_engine_that_runs_again_is_watched_again(monkeypatch):
    beats = []
    monkeypatch.setattr(Watchdog, "_watcher", SimpleNamespace(send_heartbeat=lambda *_: beats.append(time.monotonic())))
    engine = Engine(lambda engine, batch: time.sleep(0.1))
    Watchdog(None).attach(engine)
    for _ in range(2):
        engine.run([0])
        Watchdog.note_signal(signal.SIGINT)
        beats.clear()
        time.sleep(0.3)
        assert beats


@pytest.mark.parametrize("suspended", [True, False])
def test_the_time_of_a_suspended_process_does_not_count_as_a_hanging_call(monkeypatch, caplog, suspended):
    now, ends = 1000.0, iter([False] * (2 if suspended else 71) + [True])

    def wait(seconds):
        nonlocal now
        now += 70.0 if suspended else 1.0
        return next(ends)

    dog = Watchdog(None)
    dog._ended = SimpleNamespace(wait=wait)  # type: ignore[assignment]
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(Watchdog, "_watcher", None)
    monkeypatch.setattr(CheckedEnv, "call", Call(lambda: "fakes:Hanging-v0", now))
    dog._watch()
    assert ("a call has not returned for 61 seconds" in caplog.text) != suspended
    assert ("has not returned" in caplog.text) != suspended


@pytest.mark.usefixtures("_fast")
def test_an_environment_that_hangs_is_reported_and_ended_after_the_time_limit(monkeypatch, caplog):
    monkeypatch.setattr(watchdog, "since_process_start", lambda: 100.0)
    with pytest.raises(
        Fault, match=r"fakes:Hanging-v0 \(episode 1 from seed 7, at step 3.*did not return before the time limit"
    ):
        hanging_engine(99.0).run([0] * 10)
    [record] = [each for each in caplog.records if each.name == "lib.run.watchdog"]
    assert "fakes:Hanging-v0 (episode 1 from seed 7, at step 3): a call has not returned for 0" in record.message
    assert CheckedEnv.call is None


@pytest.mark.usefixtures("_fast")
def test_a_call_that_hangs_is_interrupted_after_a_signal():
    engine = hanging_engine(None)
    engine.add_event_handler(Events.STARTED, lambda: Watchdog.note_signal(signal.SIGTERM))
    with pytest.raises(Fault, match=r"from seed 7, at step 3\): a call did not return after SIGTERM") as caught:
        engine.run([0] * 10)
    assert caught.value.exit_code == 128 + signal.SIGTERM


@pytest.mark.usefixtures("_fast")
def test_every_further_call_that_hangs_is_interrupted_too(monkeypatch):
    monkeypatch.setattr(watchdog, "since_process_start", lambda: 100.0)
    Watchdog(99.0).start()
    envs = [CheckedEnv(fakes.Failing("hang", at=1), "fakes:Hanging-v0") for _ in range(3)]
    for env in envs:
        env.reset(seed=7)
        with pytest.raises(Fault, match="did not return before the time limit"):
            env.step(1)


@pytest.mark.usefixtures("_fast")
def test_a_constructor_that_hangs_is_reported_and_ended_without_an_engine(monkeypatch, caplog):
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
import signal, sys, time
sys.path.append({folder!r})
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


@pytest.fixture
def program(tmp_path):
    """Function that starts a program with a hanging engine and returns its process as soon as the engine starts."""
    processes = []

    def start_engine(how, limit=None, patience=60.0, also=""):
        values = {"folder": str(Path(__file__).parent), "limit": limit, "patience": patience, "also": also}
        process = start_program(PROGRAM.format(how=how, **values), tmp_path)
        processes.append(process)
        assert first_line(process) == "starts"
        return process

    yield start_engine
    for process in processes:
        process.kill()


@pytest.mark.slow
def test_native_code_that_ignores_the_interruption_is_ended_with_the_process(program):
    process = program("hang", limit=0.0, also="signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])")
    message = process.communicate(timeout=60)[1]
    assert process.returncode == 1
    assert message.startswith("error: fakes:Hanging-v0 (episode 1 from seed 7, at step 3): a call did not")
    assert message.endswith("earlier checkpoints are kept\n")


HELD = (
    r"no Python code has run for \d+ seconds; native code probably holds the GIL \(Python's global lock\), "
    r"at line \d+ of .*/fakes.py \(step\)\. "
    r"The last environment call, up to a second earlier, was in fakes:Hanging-v0 "
    r"\(episode 1 from seed 7, at the reset\)"
)


@pytest.mark.slow
def test_native_code_that_holds_the_gil_is_ended_at_the_time_limit(program):
    process = program("hold the GIL", limit=0.0)
    message = process.communicate(timeout=60)[1]
    assert process.returncode == -signal.SIGKILL
    assert re.fullmatch(rf"\nerror: {HELD}\. The process is killed at its time limit\. Files that .*\n", message)


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.long) for number in (signal.SIGINT, signal.SIGHUP))],
)
def test_native_code_that_holds_the_gil_is_reported_and_ended_by_a_signal(program, number):
    handler = f"signal.signal({number:d}, signal.default_int_handler)"
    process = program("hold the GIL", patience=0.5, also=handler)
    wait_for(lambda: re.fullmatch(rf"\nwarning: {HELD}\n", process.read("stderr")), process)
    time.sleep(1.0)
    assert process.poll() is None
    process.send_signal(number)
    began = time.monotonic()
    if number == signal.SIGTERM:
        time.sleep(0.1)
        process.send_signal(number)  # launchers repeat theirs
    message = process.communicate(timeout=60)[1]
    assert time.monotonic() - began > 0.7  # three times the grace, counted from the signal
    assert process.returncode == -signal.SIGKILL
    ended = rf"\nerror: {HELD}\. The process is killed after a signal\. Files that .*\n"
    assert re.fullmatch(rf"\nwarning: {HELD}\n{ended}", message)


@pytest.mark.slow
def test_a_stopped_process_is_left_alone(program):
    process = program("hang", patience=0.5, also="engine = test_watchdog.Engine(lambda *_: time.sleep(0.3))")
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.0)
    process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=60) == ("starts\n", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_a_path_with_braces_does_not_look_like_a_heartbeat(program, tmp_path):
    (tmp_path / "m{1}").mkdir()
    holder = tmp_path / "m{1}" / "holder.py"
    holder.write_text("import itertools\ndef step(*_):\n    all(itertools.repeat(True))\n")
    imports = f"import sys; sys.path.append({str(holder.parent)!r}); import holder"
    process = program("raise", limit=0.0, also=f"{imports}; engine = test_watchdog.Engine(holder.step)")
    message = process.communicate(timeout=60)[1]
    assert f"holds the GIL (Python's global lock), at line 3 of {holder} (step)." in message
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_a_child_that_an_environment_forks_does_not_keep_the_run_from_ending(program):
    forks = "import os; os.fork() or (os.closerange(0, 3), time.sleep(20), os._exit(0))"
    process = program("raise", also=f"{forks}; engine = test_watchdog.Engine(lambda *_: None)")
    process.communicate(timeout=10)
    assert process.returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("also", "reason"), [("", "it was killed"), ("import sys; sys.modules['ray'] = sys; ", "Ray was stopped")]
)
def test_a_silent_exit_is_reported(program, also, reason):
    exits = also + "import os; engine = test_watchdog.Engine(lambda *_: os._exit(0))"
    process = program("raise", also=exits)
    end = time.monotonic() + 60
    while not (message := process.read("stderr")):  # the watcher prints it after the end of the process
        assert time.monotonic() < end
        time.sleep(0.05)
    assert re.fullmatch(rf"\nerror: the process ended early: {reason}.* in fakes:Hang.* are kept; .*\n", message)


@pytest.mark.slow
def test_a_run_goes_on_without_its_watcher(program):
    kills = "Watchdog._watcher._process.kill(); signal.signal(signal.SIGUSR1, lambda *_: None)"
    waits = "engine = test_watchdog.Engine(lambda *_: signal.raise_signal(signal.SIGUSR1))"
    process = program("raise", also=f"{kills}; {waits}")
    assert process.communicate(timeout=60) == ("starts\n", "")
    assert process.returncode == 0


@pytest.mark.slow
def test_a_module_that_hangs_at_its_import_is_reported_and_ended(tmp_path):
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(100)\n")
    options = ("--env-module", "slow_module", "--env-id", "A-v0", "--time-limit", 1)
    process = run(BASELINE, *options, cwd=tmp_path)
    assert process.returncode == 1
    assert process.stderr.startswith(
        "error: the module 'slow_module' (during its import): a call did not return before"
    )
