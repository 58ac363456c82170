"""The replay buffer against a plain list, its memory forecast, and its state_dict."""

import itertools
from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptan.experience import ExperienceFirstLast

from fakes import Catch, Counting
from lib.envs.frames import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.system import memory
from sources import Alternating


def source_of(*envs):
    return ExperienceSourceFirstLast(list(envs), Alternating(), gamma=0.9, seed=0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 20), st.just("save and load"))))
def test_a_buffer_holds_the_last_transitions_also_after_a_restart(operations):
    numbers, held = itertools.count(), deque(maxlen=7)
    strip = np.arange(256, dtype=np.uint8)[:, None]

    def transitions():
        for number in numbers:
            held.append(number)
            yield ExperienceFirstLast(LazyFrames(strip, number % 99 + 1, 0), 3, float(number), None)

    def fresh():
        buffer = ReplayBuffer(source_of(Counting()), 7)
        buffer.experience_source_iter = transitions()
        return buffer

    buffer = fresh()
    for operation in operations:
        if operation == "save and load":
            state, buffer = buffer.state_dict(), fresh()
            buffer.load_state_dict(state)
        else:
            buffer.populate(operation)
        oldest = buffer.pos if len(buffer) == 7 else 0
        assert [each.reward for each in buffer.buffer[oldest:] + buffer.buffer[:oldest]] == list(held)
        assert all(int(each.state[0]) == each.reward % 99 for each in buffer.buffer)
        if held:
            assert {each.reward for each in buffer.sample(9)} <= set(held)


def test_a_buffer_that_does_not_fit_into_memory_is_refused_with_a_size_that_does(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: 10_000_000)
    source, fitting = source_of(FrameStack(Catch(9))), int(0.8 * 10_000_000 / (81 + 700))
    with pytest.raises(UsageError, match=rf"1,000,000 steps needs 0\.8 GB .* --set replay_size={fitting} would fit"):
        ReplayBuffer(source, 1_000_000)
    assert ReplayBuffer(source, fitting).capacity == fitting
