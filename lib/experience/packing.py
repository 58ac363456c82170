"""Convert transitions to arrays that hold each frame once, for checkpoints and for other processes."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import LazyFrames


def pack(transitions: Iterable[ExperienceFirstLast], known: Sequence[np.ndarray] = ()) -> dict[str, Any]:
    """Return transitions as tensors that torch.load(weights_only=True) accepts.

    Consecutive states share most of their frames. Frames are the same if they have the same address or the same
    content. Addresses alone are not enough, because a resumed run may have two copies of a frame.

    Args:
        transitions: the transitions to pack.
        known: frames that the receiver already has.

    Returns:
        A dict with these entries.

        - "frames": (n, ...) distinct frames that are not known, or None if there are none. A state that is not a
          LazyFrames counts as one frame.
        - "lazy": whether states are LazyFrames.
        - "states", "last_states": (transitions, frames per state) int32, indices into `known` followed by "frames". If
          a transition has no last state, its first state stands in.
        - "dones": (transitions,) bool, true if there is no last state.
        - "actions": (transitions,) int64.
        - "rewards": (transitions,) float64.
    """
    transitions = list(transitions)
    row_of_address: dict[int, int] = {}
    row_of_content = {_digest(frame): row for row, frame in enumerate(known)}
    frames: list[np.ndarray] = []

    def row(frame: np.ndarray) -> int:
        address = frame.__array_interface__["data"][0]
        index = row_of_address.get(address)
        if index is None:
            new = len(known) + len(frames)
            index = row_of_address[address] = row_of_content.setdefault(_digest(frame), new)
            if index == new:
                frames.append(frame)
        return index

    def rows(state: Any) -> list[int]:
        return [row(frame) for frame in (state.frames if isinstance(state, LazyFrames) else (state,))]

    states = [rows(t.state) for t in transitions]
    last_states = [
        first if t.last_state is None else rows(t.last_state) for t, first in zip(transitions, states, strict=True)
    ]
    return {
        "frames": torch.from_numpy(np.stack(frames)) if frames else None,
        "lazy": bool(transitions) and isinstance(transitions[0].state, LazyFrames),
        "states": torch.tensor(states, dtype=torch.int32),
        "last_states": torch.tensor(last_states, dtype=torch.int32),
        "dones": torch.tensor([t.last_state is None for t in transitions]),
        "actions": torch.tensor([t.action for t in transitions], dtype=torch.int64),
        "rewards": torch.tensor([t.reward for t in transitions], dtype=torch.float64),
    }


def unpack(packed: dict[str, Any], frames: Sequence[np.ndarray] | None = None) -> list[ExperienceFirstLast]:
    """Return the transitions that were passed to `pack`. States share their frames.

    Args:
        packed: return value of `pack`. It is not changed, and the transitions do not refer to it.
        frames: frames that the indices refer to; None for packed["frames"].
    """
    if frames is None and packed["frames"] is None:
        return []
    if frames is None:
        # Copies: a view would keep the whole block in memory until its last frame has left the replay buffer.
        frames = [frame.copy() for frame in packed["frames"].numpy()]

    def state(rows: list[int]) -> Any:
        return LazyFrames(tuple(frames[row] for row in rows)) if packed["lazy"] else frames[rows[0]]

    columns = (packed[name].tolist() for name in ("states", "actions", "rewards", "last_states", "dones"))
    return [
        ExperienceFirstLast(state(first), action, reward, None if done else state(last))
        for first, action, reward, last, done in zip(*columns, strict=True)
    ]


def _digest(frame: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(frame).data).digest()
