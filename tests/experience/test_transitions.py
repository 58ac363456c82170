"""Transitions of random steps against a slow twin, and back from a checkpoint with each frame once."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.experience.replay_buffer import pack, unpack
from lib.experience.source import Transitions
from lib.experience.stream import Step


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
