"""The replay buffer against a plain list, its memory forecast, and its state_dict."""

from collections import Counter

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from ptan.experience import ExperienceFirstLast

from fakes import Catch, Counting
from lib.envs.frames import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.system import memory
from oracles.replay import ListReplay
from sources import Alternating, last


def source_of(*envs):
    return ExperienceSourceFirstLast(list(envs), Alternating(), gamma=0.9, seed=0)


def numbered(n):
    strip = np.array([[n % 256], [(n + 1) % 256]], np.uint8)
    return ExperienceFirstLast(LazyFrames(strip, 1, 0), n % 5, float(n), LazyFrames(strip, 2, 0) if n % 3 else None)


class RingTwin(RuleBasedStateMachine):
    """Random operations on the buffer and on a plain list; after each, both hold the same transitions."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.capacity = 7
        self.ring = self.fresh()
        self.twin = ListReplay(self.capacity)

    def fresh(self):
        ring = ReplayBuffer(source_of(Counting()), self.capacity)
        ring.experience_source_iter = iter(self.endless())
        return ring

    def endless(self):
        while True:
            self.count += 1
            item = numbered(self.count)
            self.twin.add(item)
            yield item

    @rule(samples=st.integers(0, 20))
    def populate(self, samples):
        self.ring.populate(samples)

    @rule()
    def save_and_load(self):
        state = self.ring.state_dict()
        self.ring = self.fresh()
        self.ring.load_state_dict(state)

    @rule(batch_size=st.integers(1, 9))
    def sample(self, batch_size):
        if self.twin.items:
            held = {item.reward for item in self.twin.items}
            assert {item.reward for item in self.ring.sample(batch_size)} <= held

    @invariant()
    def same_transitions(self):
        oldest = self.ring.pos if len(self.ring) == self.capacity else 0
        held = [self.ring.buffer[(oldest + i) % self.capacity] for i in range(len(self.ring))]
        assert [(t.action, t.reward, last(t)) for t in held] == [(t.action, t.reward, last(t)) for t in self.twin.items]


TestRingTwin = RingTwin.TestCase
TestRingTwin.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_sampling_is_uniform():
    np.random.seed(0)
    ring = ReplayBuffer(source_of(Counting(length=1000)), 10)
    ring.populate(25)
    counts = Counter(t.reward for _ in range(1000) for t in ring.sample(9))
    assert len(counts) == 10
    chi_square = sum((count - 900) ** 2 / 900 for count in counts.values())
    assert chi_square < 27.9  # 99.9 % of a chi-square with 9 degrees of freedom
    assert len({t.reward for t in ring.sample(10)}) < 10  # with replacement


def stacked_ring(capacity, steps):
    ring = ReplayBuffer(source_of(FrameStack(Counting(length=50))), capacity)
    ring.populate(steps)
    return ring


def test_a_saved_buffer_holds_each_frame_once_and_comes_back_the_same():
    ring = stacked_ring(30, 40)
    state = ring.state_dict()
    assert len(state["transitions"]["strips"]) == 1
    back = stacked_ring(30, 0)
    back.load_state_dict(state)
    for ours, theirs in zip(ring.buffer, back.buffer, strict=True):
        assert isinstance(theirs.state, LazyFrames)
        assert np.array_equal(ours.state, theirs.state)
        assert np.array_equal(ours.last_state, theirs.last_state)
        assert theirs.state.strip.base is None  # so that frames are freed strip by strip


def test_a_buffer_that_does_not_fit_into_memory_is_refused_with_a_size_that_does(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: 10_000_000)
    source = source_of(FrameStack(Counting()))
    with pytest.raises(UsageError, match=r"replay buffer of 1,000,000 steps needs 0\.7 GB .* 0\.0 GB are"):
        ReplayBuffer(source, 1_000_000)
    fitting = int(0.8 * 10_000_000 / 701)
    assert ReplayBuffer(source, fitting).capacity == fitting
    around = gym.wrappers.RecordEpisodeStatistics(FrameStack(Catch(9)))
    assert ReplayBuffer.forecast(around, 1000) == ReplayBuffer.forecast(FrameStack(Catch(9)), 1000) == 1000 * (81 + 700)
