import itertools
import os
import re
import signal
import time

import pytest
from ignite.engine import Engine, Events

from fakes import Counting
from lib.envs import checked_env
from lib.errors import CallInterrupted, Interrupted
from lib.run import stopping
from lib.run.episodes import EpisodeEvents, register_events
from lib.run.speed import Speed
from lib.run.stopping import EXIT_CODES, NOT_FINITE, SIGNALS, SOLVED, STEPS, TIME, Stopper
from lib.system.clock import since_process_start
from sources import CountingSource


def run(step_limit=50, time_limit=None, losses=None, at=None, handler=None, in_batch=None):
    """Run an engine with one agent step per iteration. Return the last iteration and the reason for the end.

    Args:
        losses: losses by iteration; 0 for all others.
        at: iteration after which `handler`, a function of the engine, is called.
        in_batch: function that is called while the batch of iteration 3 is made.
    """
    source = CountingSource()

    def batches():
        for step in source.batches():
            if in_batch is not None and step == 3:
                in_batch()
            yield step

    engine = Engine(lambda engine, batch: {"loss": (losses or {}).get(engine.state.iteration, 0.0)})
    register_events(engine)
    Speed(source).attach(engine)
    stopper = Stopper(lambda: source.steps_done, step_limit, time_limit)
    stopper.watch_loss(engine)
    if handler is not None:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=at), handler)
    stopper.watch_ends(engine)
    try:
        engine.run(batches())
    finally:
        stopper.release_signals()
    assert source.steps_done == engine.state.iteration, "a step was made but not learnt from"
    return engine.state.iteration, stopper.reason


def solve(engine):
    engine.fire_event(EpisodeEvents.BOUND_REWARD_REACHED)


def test_stops_at_the_step_limit_or_when_solved():
    assert run(step_limit=7) == (7, STEPS)
    assert run(at=5, handler=solve) == run(step_limit=5, at=5, handler=solve) == (5, SOLVED)


def test_stops_at_the_time_limit_unless_the_run_is_solved_in_the_same_iteration(monkeypatch):
    monkeypatch.setattr(stopping, "since_process_start", lambda: 1000.0)
    assert run(time_limit=999) == (1, TIME)
    stopper = Stopper(lambda: 1, 50, 999)
    assert stopper.should_stop()
    stopper.solved(Engine(lambda engine, batch: None))
    assert stopper.reason == SOLVED
    assert run(time_limit=2000, step_limit=3) == (3, STEPS)


def test_stops_on_a_loss_that_is_not_finite_even_after_a_signal():
    assert run(losses={4: -float("inf")}) == (4, NOT_FINITE)
    send = {"in_batch": lambda: os.kill(os.getpid(), signal.SIGTERM)}
    assert run(losses={3: float("nan")}, **send) == (3, NOT_FINITE)


@pytest.mark.parametrize(("number", "where"), list(zip(SIGNALS, itertools.cycle(["handler", "in_batch"]))))
def test_a_signal_ends_the_run_after_the_current_iteration(number, where):
    before = [signal.getsignal(known) for known in SIGNALS]
    assert run(at=3, **{where: lambda engine=None: os.kill(os.getpid(), number)}) == (3, number.name)
    assert EXIT_CODES[number.name] == 128 + number
    assert [signal.getsignal(known) for known in SIGNALS] == before


def test_a_second_ctrl_c_ends_the_process_and_other_signals_that_launchers_repeat_are_ignored():
    def send(*numbers):
        return lambda engine: [os.kill(os.getpid(), number) for number in numbers]

    assert run(at=3, handler=send(signal.SIGHUP, signal.SIGHUP)) == (3, "SIGHUP")
    assert run(at=3, handler=send(signal.SIGTERM, signal.SIGTERM)) == (3, "SIGTERM")
    with pytest.raises(KeyboardInterrupt):
        run(at=3, handler=send(signal.SIGTERM, signal.SIGINT))


def step_for(seconds):
    """A step of an environment that takes so long."""
    env = checked_env.CheckedEnv(Counting(200, seconds=seconds), "Slow-v0")
    env.reset()
    env.step(0)


def test_a_call_of_an_environment_that_does_not_return_is_interrupted_after_a_signal(monkeypatch):
    monkeypatch.setattr(Stopper, "GRACE", 0.1)

    def hang():
        os.kill(os.getpid(), signal.SIGTERM)
        step_for(20)

    with pytest.raises(CallInterrupted, match=r"did not return after SIGTERM.*fakes.py \(step\)") as error:
        run(in_batch=hang)
    assert error.value.exit_code == 143
    assert error.value.__notes__ == ["Raised by Slow-v0 (episode 1 without a seed, at step 1)"]


def test_a_call_of_an_environment_that_does_not_return_is_interrupted_after_the_time_limit(monkeypatch):
    monkeypatch.setattr(Stopper, "GRACE", 0.1)
    with pytest.raises(CallInterrupted, match="did not return before the time limit"):
        run(time_limit=since_process_start() + 0.5, in_batch=lambda: step_for(20))


@pytest.mark.parametrize("work", [lambda: time.sleep(0.5), lambda: [step_for(0.05) for _ in range(10)]])
def test_an_iteration_whose_calls_return_is_finished_however_long_it_takes(monkeypatch, work):
    monkeypatch.setattr(Stopper, "GRACE", 0.1)
    assert run(in_batch=lambda: [os.kill(os.getpid(), signal.SIGTERM), work()]) == (3, "SIGTERM")


def test_a_long_iteration_prints_where_the_process_is(monkeypatch, capfd):
    monkeypatch.setattr(Stopper, "PATIENCE", 0.1)
    assert run(step_limit=5, in_batch=lambda: step_for(0.5)) == (5, STEPS)
    assert re.search(r"Timeout.*File \".*test_stopping.py\", line \d+ in <lambda>", capfd.readouterr().err, re.DOTALL)


def test_a_signal_during_the_warm_up_ends_the_run_at_once():
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    register_events(engine)
    Stopper(lambda: 0, 10, None).watch_ends(engine)

    def warming_up():
        with checked_env.guard(lambda: "Game-v0"):  # the signal arrives in a step of an environment
            yield os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted) as interrupted:
        engine.run(warming_up())
    assert interrupted.value.code == 143  # and Python prints no traceback


def test_a_hang_up_that_is_ignored_at_the_start_stays_ignored():
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(step_limit=9, at=3, handler=lambda engine: os.kill(os.getpid(), signal.SIGHUP)) == (9, STEPS)
    finally:
        signal.signal(signal.SIGHUP, old)


def test_steps_of_an_evaluation_postpone_the_report_of_a_long_iteration(monkeypatch):
    postponed = []
    monkeypatch.setattr(stopping.faulthandler, "dump_traceback_later", lambda *args, **options: postponed.append(args))
    stopper = Stopper(lambda: 0, 10, None)
    stopper.interrupted()
    assert not postponed  # before the run
    stopper._report_due = 0.0
    stopper.interrupted()
    stopper.interrupted()
    assert len(postponed) == 1
