"""Packed transitions hold each frame once and are unpacked unchanged, also across consecutive blocks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import LazyFrames
from lib.experience import packing


def lazy(a, b):
    """Return a state of two frames, each of one colour."""
    return LazyFrames((np.full((3, 3), a, np.uint8), np.full((3, 3), b, np.uint8)))


def plain(transition):
    states = (transition.state, transition.last_state)
    return [None if state is None else np.asarray(state).tolist() for state in states] + [
        transition.action,
        transition.reward,
    ]


COLOURS = st.integers(0, 5)
TRANSITIONS = st.builds(
    lambda a, b, c, action, reward, done: ExperienceFirstLast(lazy(a, b), action, reward, None if done else lazy(b, c)),
    *(COLOURS, COLOURS, COLOURS, st.integers(0, 2**40), st.floats(-1e9, 1e9), st.booleans()),
)


@settings(max_examples=60, deadline=None)
@given(blocks=st.lists(st.lists(TRANSITIONS, min_size=1, max_size=4), min_size=1, max_size=4))
def test_consecutive_blocks_come_back_the_same_without_the_frames_of_the_block_before(blocks):
    sent, received = [], []
    for block in blocks:
        packed = packing.pack(block, sent)
        new = [] if packed["frames"] is None else list(packed["frames"].numpy())
        assert len(np.unique([frame[0, 0] for frame in [*sent, *new]])) == len(sent) + len(new)
        assert [plain(t) for t in packing.unpack(packed, [*received, *new])] == [plain(t) for t in block]
        sent, received = new, new


def test_states_that_are_not_lazy_frames_come_back_as_arrays():
    state, last_state = np.eye(3, dtype=np.float32)[:2]
    [transition] = packing.unpack(packing.pack([ExperienceFirstLast(state, 1, 0.5, last_state)]))
    assert plain(transition) == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 1, 0.5]


def test_an_empty_list_of_transitions_can_be_packed():
    assert packing.unpack(packing.pack(())) == []
