import os
import signal

import pytest
from ignite.engine import Engine, Events

from lib import stopping, telemetry, timing


def run(step_limit=50, time_limit=None, losses=None, at=None, handler=None):
    """An engine of one agent step an iteration; `handler(engine)` is called at iteration `at`."""
    losses = losses or {}
    engine = Engine(lambda engine, batch: {"loss": losses.get(engine.state.iteration, 0.0)})
    telemetry.register_events(engine)
    timing.Speed(None, lambda: engine.state.iteration).attach(engine)
    stopper = stopping.Stopper(lambda: engine.state.iteration, step_limit, time_limit)
    stopper.attach(engine)
    if handler is not None:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=at), handler)
    engine.run(iter(range(10_000)))
    return engine.state.iteration, stopper.reason


def test_stops_at_the_step_limit():
    assert run(step_limit=7) == (7, stopping.STEPS)


def test_stops_when_solved():
    event = telemetry.EpisodeEvents.BOUND_REWARD_REACHED
    assert run(at=5, handler=lambda engine: engine.fire_event(event)) == (5, stopping.SOLVED)


def test_stops_at_the_time_limit(monkeypatch):
    monkeypatch.setattr(stopping, "since_process_start", lambda: 1000.0)
    assert run(time_limit=999) == (1, stopping.TIME)
    assert run(time_limit=2000, step_limit=3) == (3, stopping.STEPS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_stops_on_a_loss_that_is_no_number(bad, caplog):
    assert run(losses={4: bad}) == (4, stopping.NOT_FINITE)


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_signal_ends_the_run_after_its_iteration_and_a_second_one_is_the_old_one(number):
    before = [signal.getsignal(known) for known in stopping.SIGNALS]
    iteration, reason = run(at=3, handler=lambda engine: os.kill(os.getpid(), number))
    assert iteration in (3, 4)
    assert reason == number.name
    assert stopping.EXIT_CODES[reason] == 128 + number
    assert [signal.getsignal(known) for known in stopping.SIGNALS] == before


def test_a_signal_during_the_warm_up_ends_at_once():
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    telemetry.register_events(engine)
    stopper = stopping.Stopper(lambda: 0, 10, None)
    stopper.attach(engine)

    def warming_up():
        os.kill(os.getpid(), signal.SIGTERM)
        yield None

    with pytest.raises(stopping.Interrupted) as interrupted:
        engine.run(warming_up())
    assert interrupted.value.exit_code == 143


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(step_limit=9, at=3, handler=lambda engine: os.kill(os.getpid(), signal.SIGHUP)) == (
            9,
            stopping.STEPS,
        )
    finally:
        signal.signal(signal.SIGHUP, old)
