"""Blocks of transitions in memory that processes share, and that is gone when the last of them is."""

import dataclasses
import itertools
import queue
from collections.abc import Sequence

import gymnasium as gym
import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import ContiguousFrames
from lib.experience import packing
from lib.system.processes import context

COLUMNS = ("states", "last_states", "dones", "actions", "rewards")  # what packing.pack tells of each transition


class BlockChannel:
    """A bounded first-in-first-out channel of blocks of transitions, from one process to one other.

    A block lies in shared memory as arrays, every frame once; what stood in the block before is not sent again. At the
    other end the frames of LazyFrames come to lie side by side, so that looking at a state is no copy.
    It does not wait: whoever has to is told by other means when it is worth looking.

    Args:
        slots: how many blocks fit.
        transitions: how many transitions a block has at most.
        space: of the observations.
        lazy: whether states are LazyFrames, with frames along their first axis.
        envs: how many environments take turns in a block, one transition each.
    """

    def __init__(self, slots: int, transitions: int, space: gym.Space, lazy: bool = False, envs: int = 1):
        assert space.shape is not None
        stacked, frame_shape = (space.shape[0], space.shape[1:]) if lazy else (1, space.shape)
        frames = 2 * transitions + stacked * envs  # a step makes a frame, and another where it ends an episode
        self.slots = slots
        self.layout = np.dtype(
            [
                ("count", np.int64, (2,)),  # frames and transitions
                ("frames", space.dtype, (frames, *frame_shape)),
                ("states", np.int32, (transitions, stacked)),
                ("last_states", np.int32, (transitions, stacked)),
                ("dones", np.bool_, (transitions,)),
                ("actions", np.int64, (transitions,)),
                ("rewards", np.float64, (transitions,)),
            ],
            align=True,
        )
        self.lazy = lazy
        self._memory = context.RawArray("b", slots * self.layout.itemsize)
        self._put, self._got = context.RawValue("q", 0), context.RawValue("q", 0)
        self._sent: Sequence[np.ndarray] = ()  # the new frames of the block before, at its one end
        self._received: Sequence[np.ndarray] = ()  # and at the other
        self._adjacent = [ContiguousFrames() for _ in range(envs)]

    def __len__(self) -> int:
        return self._put.value - self._got.value

    def put(self, transitions: Sequence[ExperienceFirstLast]) -> None:
        """Add a block.

        Raises:
            queue.Full: all slots are taken.
            ValueError: the block is empty, or larger than a slot.
        """
        if len(self) == self.slots:
            raise queue.Full(f"all {self.slots} slots are taken")
        packed = packing.pack(transitions, self._sent)
        new = [] if packed["frames"] is None else list(packed["frames"].numpy())
        slot = self._slot(self._put.value)
        room = len(slot["actions"]), len(slot["frames"])
        if not 0 < len(transitions) <= room[0] or len(new) > room[1]:
            given = f"{len(transitions)} transitions and {len(new)} frames"
            raise ValueError(f"the block has {given}; there is room for {room[0]} and {room[1]}")
        slot["count"][:] = len(new), len(transitions)
        for row, frame in enumerate(new):
            slot["frames"][row] = frame
        for name in COLUMNS:
            slot[name][: len(transitions)] = packed[name]
        self._sent = new
        self._put.value += 1

    def get(self) -> list[ExperienceFirstLast]:
        """Take the oldest block.

        Raises:
            queue.Empty: there is none.
        """
        if not len(self):
            raise queue.Empty("there is no block")
        slot = self._slot(self._got.value)
        n_frames, n_transitions = slot["count"]
        packed = {name: torch.from_numpy(slot[name][:n_transitions]) for name in COLUMNS}
        new = list(slot["frames"][:n_frames].copy())
        block = packing.unpack(packed | {"lazy": self.lazy}, [*self._received, *new])
        self._received = new
        self._got.value += 1
        if self.lazy:
            turns = zip(block, itertools.cycle(self._adjacent), strict=False)
            block = [self._side_by_side(transition, adjacent) for transition, adjacent in turns]
        return block

    @staticmethod
    def _side_by_side(transition: ExperienceFirstLast, adjacent: ContiguousFrames) -> ExperienceFirstLast:
        state, last_state = transition.state, transition.last_state
        state = adjacent(state)
        last_state = None if last_state is None else adjacent(last_state)
        return dataclasses.replace(transition, state=state, last_state=last_state)

    def _slot(self, number: int) -> np.ndarray:
        return np.frombuffer(self._memory, self.layout)[number % self.slots]
