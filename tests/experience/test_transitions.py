"""Transitions, their source and their replay buffer: slow twins, seeds, state_dicts, and ptan's errors corrected.

test_stream.py tests how the source is resumed.
"""

import itertools
from collections import deque

import numpy as np
import ptan
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from hypothesis import given, settings
from hypothesis import strategies as st
from ptan.experience import ExperienceFirstLast

from fakes import Catch, Counting
from lib.envs.frames import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.experience.stream import Step
from lib.experience.transitions import ExperienceSourceFirstLast, ReplayBuffer, Transitions, pack, unpack
from lib.system import memory
from sources import Alternating, last


def source_of(*envs, seed=0):
    return ExperienceSourceFirstLast(list(envs), Alternating(), gamma=0.9, seed=seed)


def take(source, count):
    transitions = iter(source)
    return [next(transitions) for _ in range(count)]


def test_a_truncated_episode_keeps_its_last_state_which_ptan_drops():
    theirs = ptan.experience.ExperienceSourceFirstLast(Counting(truncates=True), Alternating(), gamma=0.9)
    assert last(take(theirs, 4)[-1]) is None
    assert last(take(source_of(Counting(truncates=True)), 4)[-1]) == 4
    assert last(take(source_of(Counting(truncates=False)), 4)[-1]) is None


def test_a_transition_comes_with_its_step_and_ptans_comes_one_step_late():
    theirs, ours = Counting(length=9), Counting(length=9)
    take(ptan.experience.ExperienceSourceFirstLast(theirs, Alternating(), gamma=0.9), 3)
    take(source_of(ours), 3)
    assert (theirs.t, ours.t) == (4, 3)


def test_every_episode_has_its_own_seed_and_ptan_repeats_one():
    theirs = [Counting(length=1), Counting(length=1)]
    take(ptan.experience.ExperienceSourceFirstLast(theirs, Alternating(), gamma=0.9, env_seed=5), 6)
    assert {seed for env in theirs for seed in env.seeds} == {5}
    ours = [Counting(length=1), Counting(length=1)]
    take(source_of(*ours, seed=5), 6)
    seeds = [seed for env in ours for seed in env.seeds]
    assert len(set(seeds)) == len(seeds) >= 6


def test_environments_take_turns_and_share_one_call_of_the_agent():
    source = source_of(Counting(length=2), Counting(length=3))
    seen = [(int(t.state[0]), t.action, t.reward, last(t)) for t in take(source, 6)]
    assert seen[::2] == [(0, 1, 1.0, 1), (1, 0, 2.0, None), (0, 1, 1.0, 1)]
    assert seen[1::2] == [(0, 1, 1.0, 1), (1, 0, 2.0, 2), (2, 1, 3.0, None)]
    assert source.agent.calls == 3


def test_an_episode_that_a_wrapper_ends_has_its_return():
    source = source_of(TimeLimit(RecordEpisodeStatistics(Counting(length=9)), 3))
    take(source, 7)
    assert [each[:3] for each in source.pop_episodes()] == [(6.0, 3, 3), (6.0, 3, 6)]
    assert source.pop_episodes() == []


class Twin:
    """One environment, whose states are lists of its last frames."""

    def __init__(self, state):
        self.state, self.ended = state, False

    def add(self, frame, action, reward, terminated, truncated, final):
        if self.ended:
            self.state = [frame] * len(self.state)
        before, self.state = self.state, [*self.state[1:], final]
        self.ended = terminated or truncated
        return before, action, reward, None if terminated else self.state


def colours(state, stacked):
    """Return the colour of each frame; None for no state."""
    if state is None:
        return None
    return [int(frame[0]) for frame in (state if stacked else [state])]


def plain(transitions, stacked):
    return [(colours(t.state, stacked), t.action, t.reward, colours(t.last_state, stacked)) for t in transitions]


STEP = st.tuples(*(st.integers(0, 200), st.integers(0, 2**40), st.floats(-1e9, 1e9), st.sampled_from((0, 0, 1, 2))))


@settings(max_examples=60, deadline=None)
@given(
    num_envs=st.integers(1, 3),
    size=st.integers(0, 3),
    steps=st.lists(st.lists(STEP, min_size=3, max_size=3)),
    data=st.data(),
)
def test_transitions_equal_the_twins_and_come_back_from_a_checkpoint(num_envs, size, steps, data):
    stacked = size > 0
    first = np.arange(201, 201 + max(1, size) * num_envs, dtype=np.uint8).reshape(num_envs, -1)
    ours = Transitions(first[..., None] if stacked else first, stacked)
    twins = [Twin(state.tolist()) for state in first]
    newest = first[:, -1].tolist()
    transitions, expected = [], []
    for step in steps:
        rows = []
        for env in range(num_envs):
            colour, action, reward, end = step[env]
            rows.append((newest[env], action, reward, end == 1, end == 2, colour))
            newest[env] = data.draw(st.integers(0, 200)) if end else colour
        expected += [twin.add(*row) for twin, row in zip(twins, rows, strict=True)]
        frames, actions, rewards, terminated, truncated, finals = map(np.array, zip(*rows, strict=True))
        frames, finals = frames.astype(np.uint8)[:, None], finals.astype(np.uint8)[:, None]
        transitions += ours.add(Step(frames, actions, rewards, terminated, truncated, finals))
    assert plain(transitions, stacked) == expected
    packed = pack(transitions)
    restored = unpack(packed)
    assert plain(restored, stacked) == expected
    assert len(packed["strips"]) == (num_envs if steps else 0)  # each frame is there once
    assert all(each.state.strip.base is None for each in restored)  # so that frames are freed strip by strip


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
