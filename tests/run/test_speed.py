import re

import pytest
import torch
from ignite.engine import Engine

from lib.run import speed as speed_module
from lib.run.episodes import register_events
from lib.run.speed import Speed
from sources import CountingSource


class Clocked:
    """An engine with a Speed, and a clock that only the test moves."""

    def __init__(self, monkeypatch, process, first_batch=lambda clock: None, batch=None):
        self.now = 0.0
        monkeypatch.setattr(speed_module, "since_process_start", lambda: self.now)
        self.source = CountingSource()
        self.engine = Engine(lambda engine, batch: process(self))
        register_events(self.engine)
        self.speed = Speed(self.source)
        self.speed.attach(self.engine)
        self.first_batch, self.batch = first_batch, batch

    def run(self, iterations):
        def batches():
            self.first_batch(self)
            for _ in self.source.batches():
                yield self.batch

        self.engine.run(batches(), max_iters=iterations, epoch_length=iterations)
        return self.speed

    def advance(self, seconds):
        self.now += seconds


def test_the_speed_of_training_leaves_out_the_warm_up_and_pauses(monkeypatch):
    def warm_up(clocked):
        clocked.source.steps_done, clocked.now = 1000, 1.0

    def process(clocked):
        clocked.advance(0.5)
        with clocked.speed.paused():
            clocked.advance(100.0)

    speed = Clocked(monkeypatch, process, warm_up).run(200)
    assert speed.warm_up == (1001, 1.0)
    assert speed.recent == speed.training.rate == pytest.approx(199 / 100)
    assert speed.training == pytest.approx((199, 100.0))
    assert speed.updates == 200


def test_the_recent_speed_is_that_of_the_last_thousand_steps(monkeypatch):
    clocked = Clocked(monkeypatch, lambda clocked: clocked.advance(1.0 if clocked.source.steps_done <= 500 else 0.1))
    speed = clocked.run(2000)
    assert speed.recent == pytest.approx(10.0)
    assert speed.training.rate == pytest.approx(1999 / (500 + 150))


def test_the_parts_are_those_of_training_and_add_up(monkeypatch):
    def warm_up(clocked):
        clocked.source.clock.seconds["act"] = 5.0

    def process(clocked):
        clocked.source.clock.seconds["act"] += 0.25
        clocked.advance(1.0)

    clocked = Clocked(monkeypatch, process, warm_up)
    assert clocked.speed.parts == {"act": 0.0, "environment": 0.0, "sample": 0.0, "learn": 0.0}
    speed = clocked.run(20)
    assert speed.parts["act"] == pytest.approx(5.0)
    assert re.search(r"^act +5\.0 +25\.0% +263,158$", speed.table(), re.M)
    assert re.search(r"^rest ", speed.table(), re.M)


def test_the_replay_ratio_counts_the_transitions_of_each_kind_of_batch(monkeypatch):
    arrays, prioritised = (torch.zeros(32, 4), torch.zeros(32)), (["s"] * 32, [1, 2], [0.5, 0.5])
    for batch in (["s"] * 32, prioritised, arrays):
        clocked = Clocked(monkeypatch, lambda clocked: clocked.advance(1.0), batch=batch)
        clocked.run(100)
        assert clocked.engine.state.metrics["replay_ratio"] == pytest.approx(32.0)
