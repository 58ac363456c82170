import time
from typing import NamedTuple

import numpy as np
import pytest
import torch
from ignite.engine import Engine

from lib.run import speed as speed_module
from lib.run.events import register_events
from lib.run.speed import Speed
from sources import CountingSource


def engine_with_speed(source, process=lambda engine, batch: None):
    engine = Engine(process)
    register_events(engine)
    speed = Speed(source)
    speed.attach(engine)
    return engine, speed


class Prioritised(NamedTuple):
    transitions: list[str]
    weights: torch.Tensor


@pytest.mark.parametrize(
    "batch",
    [
        ["s"] * 32,
        [("s", 0, 1.0, False, "s")] * 32,
        Prioritised(["s"] * 32, torch.ones(32)),
        (["s"] * 32, [1, 2], [0.5, 0.5]),
        (torch.zeros(32, 4), torch.zeros(32)),
        {"states": np.zeros((32, 4)), "actions": np.zeros(32)},
    ],
    ids=["plain", "tuples", "named", "prioritised", "arrays", "dictionary"],
)
def test_the_transitions_of_the_book_s_batches_are_counted(batch):
    assert speed_module._count_transitions(batch) == 32


@pytest.mark.parametrize(
    "batch", [torch.tensor(1.0), (torch.tensor(1.0),), {"loss": np.array(1.0)}, [np.array(1.0)], None]
)
def test_a_batch_of_a_single_number_is_one_transition(batch):
    assert speed_module._count_transitions(batch) == 1


@pytest.mark.parametrize("batch", [[], np.zeros((0, 4)), (np.zeros((0, 4)), np.zeros(0)), [np.zeros(0)]])
def test_an_empty_batch_has_no_transition(batch):
    assert speed_module._count_transitions(batch) == 0


def test_the_speed_of_training_leaves_out_the_warm_up(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(speed_module, "since_process_start", lambda: now[0])
    source = CountingSource()
    engine, speed = engine_with_speed(source, lambda engine, batch: now.__setitem__(0, now[0] + 0.5))

    def batches():
        source.steps_done, now[0] = 1000, 1.0  # a warm-up of a thousand steps per second
        while True:
            source.steps_done += 1
            yield None

    engine.run(batches(), max_iters=200, epoch_length=200)
    assert speed.warm_up == (1001, 1.0)
    assert speed.warm_up_speed == pytest.approx(1001)
    assert speed.recent == pytest.approx(199 / 100, rel=0.01)
    assert speed.overall == speed.recent
    assert speed.updates_per_second == pytest.approx(2.0)


def test_the_recent_speed_is_that_of_the_last_thousand_steps(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(speed_module, "since_process_start", lambda: now[0])
    source = CountingSource()

    def process(engine, batch):
        now[0] += 1.0 if engine.state.iteration <= 500 else 0.1

    engine, speed = engine_with_speed(source, process)
    engine.run(source.batches(), max_iters=2000, epoch_length=2000)
    assert speed.recent == pytest.approx(10.0)
    assert speed.overall == pytest.approx(1999 / (500 + 150))


def test_paused_time_is_left_out_of_all_speeds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(speed_module, "since_process_start", lambda: now[0])
    source = CountingSource()

    def process(engine, batch):
        now[0] += 1.0
        with speed.paused():
            now[0] += 100.0

    engine, speed = engine_with_speed(source, process)
    engine.run(source.batches(), max_iters=20, epoch_length=20)
    assert speed.training_seconds == pytest.approx(20.0)
    assert speed.updates_per_second == pytest.approx(1.0)


def test_the_parts_add_up_to_the_seconds_of_training():
    source = CountingSource()
    engine, speed = engine_with_speed(source, lambda engine, batch: time.sleep(0.004))

    def batches():
        time.sleep(0.2)  # the warm-up, which belongs to no part
        while True:
            source.steps_done += 1
            with source.clock("act"):
                time.sleep(0.001)
            with source.clock("environment"):
                time.sleep(0.008)
            time.sleep(0.001)
            yield None

    engine.run(batches(), max_iters=30, epoch_length=30)
    parts = speed.parts
    # The first batch belongs to the warm-up.
    assert parts["act"] >= 29 * 0.001
    assert parts["environment"] >= 29 * 0.008
    assert parts["sample"] >= 29 * 0.001
    assert parts["learn"] >= 30 * 0.004
    assert sum(parts.values()) <= speed.training_seconds
    assert speed.training_seconds <= sum(parts.values()) + 0.2
    assert "environment" in speed.table()


def test_before_learning_starts_the_parts_of_training_are_zero():
    source = CountingSource()
    _, speed = engine_with_speed(source)
    source.clock.seconds["act"] = 5.0
    assert speed.parts == {"act": 0.0, "environment": 0.0, "sample": 0.0, "learn": 0.0}
    assert speed.updates == 0
    assert speed.training_steps == 0
