"""Spaces of states: stacks of frames, several parts in one vector, and states with an action mask.

The mask says which actions are allowed. It goes wherever states go, such as replay buffers, other processes and
checkpoints, without the code in between knowing about it. A network splits it off and gives invalid actions the value
`lib.nets.masking.INVALID`, so that they are never the best action and are never sampled.
"""

import math

import numpy as np
from gymnasium import spaces

NUMERIC = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)  # others than Dict and Tuple


def choices(space: spaces.Space[object]) -> list[int]:
    """Return the number of options of each choice in a Discrete or MultiDiscrete action; none for other spaces."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return space.nvec.ravel().tolist() if isinstance(space, spaces.MultiDiscrete) else []


class StackedBox(spaces.Box):
    """Space of stacks of `size` frames. Each state has the frames of the one before, and a newer one."""

    def __init__(self, frame: spaces.Box, size: int):
        super().__init__(np.stack([frame.low] * size), np.stack([frame.high] * size), dtype=frame.dtype.type)


class CompositeBox(spaces.Box):
    """Space of states that are the states of several parts (images, boards and vectors), flattened and joined."""

    def __init__(self, parts: list[spaces.Box]):
        self.parts = parts
        low, high = (np.concatenate([getattr(part, bound).ravel() for part in parts]) for bound in ("low", "high"))
        super().__init__(low, high, dtype=low.dtype.type)


class MaskedBox(spaces.Box):
    """Space of states with the action mask appended.

    A vector (n,) becomes (n + actions,). A board (channels, height, width) gets as many channels, and a frame
    (height, width) as many rows, as the mask needs. In a stack of frames, each frame has its own mask.

    Args:
        plain: space of the states without the mask.
        actions: number of actions; for MultiDiscrete, the options of all its choices.
    """

    def __init__(self, plain: spaces.Box, actions: int):
        self.plain = plain
        self.actions = actions
        stacked = isinstance(plain, StackedBox)
        low, high = (
            np.stack([append_mask(frame, mask) for frame in bound]) if stacked else append_mask(bound, mask)
            for bound, mask in ((plain.low, np.zeros(actions)), (plain.high, np.ones(actions)))
        )
        super().__init__(low, high, dtype=low.dtype.type)


def stacks_frames(space: spaces.Space[object]) -> bool:
    """Return whether the states of a space are stacks of frames, with or without an action mask."""
    return isinstance(space.plain if isinstance(space, MaskedBox) else space, StackedBox)


def append_mask(state: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the state with its mask, (actions,), appended along the first axis and padded with zeros."""
    rest = state.shape[1:]
    appended = np.zeros((math.ceil(len(mask) / math.prod(rest)), *rest), state.dtype)
    appended.flat[: len(mask)] = mask
    return np.concatenate([state, appended])
