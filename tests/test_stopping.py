import os
import signal

import pytest
from ignite.engine import Engine, Events

from lib.run import stopping
from lib.run.events import EpisodeEvents, register_events
from lib.run.speed import Speed
from lib.run.stopping import EXIT_CODES, NOT_FINITE, SIGNALS, SOLVED, STEPS, TIME, Interrupted, Stopper, as_ctrl_c


def run(step_limit=50, time_limit=None, losses=None, at=None, handler=None, in_batch=None):
    """An engine of one agent step an iteration.

    Args:
        losses: by iteration.
        at: the iteration when `handler` is called, once it is completed.
        in_batch: called while the batch of iteration 3 is made.
    """
    losses = losses or {}
    made = []

    def batches():
        while True:
            made.append(len(made) + 1)
            if in_batch is not None and len(made) == 3:
                in_batch()
            yield made[-1]

    engine = Engine(lambda engine, batch: {"loss": losses.get(engine.state.iteration, 0.0)})
    register_events(engine)
    Speed(None, lambda: len(made)).attach(engine)
    stopper = Stopper(lambda: len(made), step_limit, time_limit)
    stopper.watch_loss(engine)
    if handler is not None:
        engine.add_event_handler(Events.ITERATION_COMPLETED(once=at), handler)
    stopper.watch_ends(engine)
    try:
        engine.run(batches())
    finally:
        stopper.release_signals()
    assert len(made) == engine.state.iteration, "a step was made and never learnt from"
    return engine.state.iteration, stopper.reason


def test_stops_at_the_step_limit():
    assert run(step_limit=7) == (7, STEPS)


def test_stops_when_solved():
    event = EpisodeEvents.BOUND_REWARD_REACHED
    assert run(at=5, handler=lambda engine: engine.fire_event(event)) == (5, SOLVED)


def test_stops_at_the_time_limit(monkeypatch):
    monkeypatch.setattr(stopping, "since_process_start", lambda: 1000.0)
    assert run(time_limit=999) == (1, TIME)
    assert run(time_limit=2000, step_limit=3) == (3, STEPS)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_stops_on_a_loss_that_is_no_number(bad):
    assert run(losses={4: bad}) == (4, NOT_FINITE)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_as_ctrl_c_while_it_is_to_be(number):
    before = signal.getsignal(number)
    with as_ctrl_c(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_a_bad_loss_is_told_even_where_a_signal_came_first():
    send = {"in_batch": lambda: os.kill(os.getpid(), signal.SIGTERM)}
    assert run(losses={3: float("nan")}, **send) == (3, NOT_FINITE)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("where", ["handler", "in_batch"])
def test_a_signal_ends_the_run_after_its_iteration_wherever_it_comes(number, where):
    before = [signal.getsignal(known) for known in SIGNALS]

    def send(engine=None):
        os.kill(os.getpid(), number)

    iteration, reason = run(at=3, **{where: send})
    assert iteration == 3
    assert reason == number.name
    assert EXIT_CODES[reason] == 128 + number
    assert [signal.getsignal(known) for known in SIGNALS] == before


def test_a_second_interrupt_is_the_old_one_and_a_second_hang_up_is_nothing():
    def hang_up_twice(engine):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)

    assert run(at=3, handler=hang_up_twice) == (3, "SIGHUP")

    def interrupt_twice(engine):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(at=3, handler=interrupt_twice)


def test_solved_in_the_last_step_that_was_allowed_is_solved():
    event = EpisodeEvents.BOUND_REWARD_REACHED
    assert run(step_limit=5, at=5, handler=lambda engine: engine.fire_event(event)) == (5, SOLVED)


def test_a_signal_during_the_warm_up_ends_at_once():
    engine = Engine(lambda engine, batch: {"loss": 0.0})
    register_events(engine)
    stopper = Stopper(lambda: 0, 10, None)
    stopper.watch_ends(engine)

    def warming_up():
        os.kill(os.getpid(), signal.SIGTERM)
        yield None

    with pytest.raises(Interrupted) as interrupted:
        engine.run(warming_up())
    assert interrupted.value.exit_code == 143


def test_a_hang_up_that_nohup_ignores_stays_ignored():
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run(step_limit=9, at=3, handler=lambda engine: os.kill(os.getpid(), signal.SIGHUP)) == (
            9,
            STEPS,
        )
    finally:
        signal.signal(signal.SIGHUP, old)
