"""Memory that processes share, against its naive twins."""

import queue
from collections import deque

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from ptan.experience import ExperienceFirstLast

import fakes
from lib.actors.shared import BlockChannel
from lib.envs.frames import LazyFrames
from lib.system.processes import context
from lib.system.shared_memory import SharedWeights

FRAMES = spaces.Box(0, 255, (2, 3, 3), np.uint8)  # states of two frames


def lazy(a, b):
    """A state of two frames, each all of one colour."""
    return LazyFrames((np.full((3, 3), a, np.uint8), np.full((3, 3), b, np.uint8)))


def plain(transition):
    """A transition as something that can be compared."""
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


class ChannelAgainstList(RuleBasedStateMachine):
    """Random puts and gets, at either end of the channel what a list of lists would say."""

    SLOTS, LARGEST = 3, 4

    def __init__(self):
        super().__init__()
        self.channel = BlockChannel(self.SLOTS, self.LARGEST, FRAMES, lazy=True, envs=4)
        self.twin = deque()

    @precondition(lambda self: len(self.twin) < self.SLOTS)
    @rule(block=st.lists(TRANSITIONS, min_size=1, max_size=LARGEST))
    def put(self, block):
        self.channel.put(block)
        self.twin.append([plain(transition) for transition in block])

    @precondition(lambda self: self.twin)
    @rule()
    def get(self):
        assert [plain(transition) for transition in self.channel.get()] == self.twin.popleft()

    @precondition(lambda self: len(self.twin) == self.SLOTS)
    @rule()
    def a_full_one_refuses(self):
        with pytest.raises(queue.Full, match="all 3 slots"):
            self.channel.put([])

    @precondition(lambda self: not self.twin)
    @rule()
    def an_empty_one_refuses(self):
        with pytest.raises(queue.Empty):
            self.channel.get()

    @invariant()
    def they_have_the_same_length(self):
        assert len(self.channel) == len(self.twin)


TestChannelAgainstList = ChannelAgainstList.TestCase


def test_a_frame_is_sent_once_and_kept_once():
    frames = [np.full((3, 3), colour, np.uint8) for colour in range(9)]
    states = [LazyFrames((frames[i], frames[i + 1])) for i in range(8)]
    transitions = [ExperienceFirstLast(states[i], 0, 0.0, states[i + 1]) for i in range(7)]
    channel = BlockChannel(2, 4, FRAMES, lazy=True)
    channel.put(transitions[:4])
    channel.put(transitions[4:])
    counts = [channel._slot(slot)["count"][0] for slot in range(2)]
    assert counts == [6, 3]  # of the second block's five frames, two stood in the first
    received = channel.get() + channel.get()
    arrays = [np.asarray(state) for transition in received for state in (transition.state, transition.last_state)]
    assert [array[0, 0, 0] for array in arrays] == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]
    assert all(np.shares_memory(a[1], b[-2]) for a, b in zip(arrays[0::2], arrays[1::2], strict=True))


def test_a_block_that_does_not_fit_is_refused_and_names_the_room():
    channel = BlockChannel(1, 2, FRAMES, lazy=True)
    block = [ExperienceFirstLast(lazy(0, 1), 0, 0.0, None)] * 3
    with pytest.raises(ValueError, match="the block has 3 transitions and 2 frames; there is room for 2 and 6"):
        channel.put(block)
    with pytest.raises(ValueError, match="the block has 0 transitions"):
        channel.put([])
    assert len(channel) == 0


def test_states_that_are_no_lazy_frames_pass_as_they_are():
    channel = BlockChannel(1, 1, spaces.Box(0.0, 1.0, (3,), np.float32))
    state, last_state = np.eye(3, dtype=np.float32)[:2]
    channel.put([ExperienceFirstLast(state, 1, 0.5, last_state)])
    [received] = channel.get()
    assert plain(received) == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 1, 0.5]


def test_blocks_cross_to_another_process_and_back():
    there, back = (BlockChannel(3, 2, FRAMES, lazy=True) for _ in range(2))
    blocks = [
        [ExperienceFirstLast(lazy(i, 1), i, 0.5, None), ExperienceFirstLast(lazy(1, i), 0, i, lazy(i, i))]
        for i in range(3)
    ]
    process = context.Process(target=fakes.echo, args=(there, back))
    process.start()
    for block in blocks:
        there.put(block)
    process.join(60)
    assert process.exitcode == 0
    for block in blocks:
        assert [plain(transition) for transition in back.get()] == [plain(transition) for transition in block]


def test_weights_of_every_kept_version_are_there_and_no_other():
    tensors = [torch.zeros(2, 3), torch.zeros((), dtype=torch.int64), torch.zeros(0), torch.zeros(5, dtype=torch.bool)]
    weights = SharedWeights(tensors, size=2)
    assert weights.versions == []
    for version in (0, 1, 2):
        weights.publish(version, [torch.full_like(tensor, version) for tensor in tensors])
        for shared, tensor in zip(weights.read(version), tensors, strict=True):
            assert torch.equal(shared, torch.full_like(tensor, version))
            assert shared.dtype == tensor.dtype
    assert weights.versions == [1, 2]
    with pytest.raises(LookupError, match="version 4 of the weights is not there"):
        weights.read(4)


def test_versions_may_be_left_out():
    weights = SharedWeights([torch.zeros(1)], size=2)
    for version in (1, 2, 7, 9):
        weights.publish(version, [torch.full((1,), version)])
    assert weights.versions == [7, 9]
    assert [weights.read(version)[0].item() for version in (7, 9)] == [7.0, 9.0]


@pytest.mark.parametrize("version", [0, 3, 4])
def test_weights_go_forward(version):
    weights = SharedWeights([torch.zeros(1)], size=3)
    weights.publish(4, [torch.ones(1)])
    with pytest.raises(ValueError, match=f"version {version} is not newer than 4"):
        weights.publish(version, [torch.zeros(1)])
    assert torch.equal(weights.read(4)[0], torch.ones(1))
