"""Transitions as tensors, every frame once, and back: for checkpoints, and for the way to another process."""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import LazyFrames


def pack(transitions: Iterable[ExperienceFirstLast], known: Sequence[np.ndarray] = ()) -> dict[str, Any]:
    """Transitions as tensors that torch.load(weights_only=True) gives back.

    Neighbouring states share their frames, so most are known by their place in memory; the rest are told apart by
    content, as a resumed run has copies where the uninterrupted one has the same frame.

    Args:
        transitions: what to pack.
        known: frames that whoever unpacks has already.

    Returns:
        frames (n, ...): each different frame that is not known, or the whole state where states are not LazyFrames;
        lazy: whether they are; states, last_states (transitions, frames of a state) int32: rows of `known` and, after
        these, `frames`, the first state standing in for a missing last one; dones bool; actions int64; rewards float64.
    """
    transitions = list(transitions)
    row_of_address: dict[int, int] = {}
    row_of_content = {_digest(frame): row for row, frame in enumerate(known)}
    frames: list[np.ndarray] = []

    def row(frame: np.ndarray) -> int:
        address = frame.__array_interface__["data"][0]
        there = row_of_address.get(address)
        if there is None:
            new = len(known) + len(frames)
            there = row_of_address[address] = row_of_content.setdefault(_digest(frame), new)
            if there == new:
                frames.append(frame)
        return there

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
    """What `pack` was given: the same content, and again each frame once.

    Args:
        packed: what `pack` returned; not changed, and not needed any more afterwards.
        frames: all that the rows speak of, in place of packed["frames"].
    """
    if frames is None and packed["frames"] is None:
        return []
    if frames is None:
        # Copies, not views: a view would keep the whole block alive until its last frame has left the ring.
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
