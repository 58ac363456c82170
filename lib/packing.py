"""Transitions as tensors, every frame once, and back: how a checkpoint holds them."""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.atari_wrappers import LazyFrames


def pack(transitions: Iterable[ExperienceFirstLast]) -> dict[str, Any]:
    """Transitions as tensors that torch.load(weights_only=True) gives back.

    Neighbouring states share their frames, so most are known by identity; the rest are told apart by content,
    as a resumed run has copies where the uninterrupted one has the same object.

    Returns:
        frames (n, ...): each different frame, or the whole state where states are not LazyFrames; lazy: whether they
        are; states, last_states (transitions, frames of a state) int32: rows of `frames`, the first state standing
        in for a missing last one; dones bool; actions int64; rewards float64.
    """
    transitions = list(transitions)
    row_of_object: dict[int, int] = {}
    row_of_content: dict[bytes, int] = {}
    frames: list[np.ndarray] = []

    def row(frame: np.ndarray) -> int:
        known = row_of_object.get(id(frame))
        if known is None:
            known = row_of_content.setdefault(hashlib.sha256(np.ascontiguousarray(frame).data).digest(), len(frames))
            row_of_object[id(frame)] = known
            if known == len(frames):
                frames.append(frame)
        return known

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


def unpack(packed: dict[str, Any]) -> list[ExperienceFirstLast]:
    """What `pack` was given: the same content, and again each frame once."""
    if packed["frames"] is None:
        return []
    # Copies, not views: a view would keep the whole block alive until its last frame has left the ring.
    frames = [frame.copy() for frame in packed["frames"].numpy()]

    def state(rows: list[int]) -> Any:
        return LazyFrames(tuple(frames[row] for row in rows)) if packed["lazy"] else frames[rows[0]]

    columns = (packed[name].tolist() for name in ("states", "actions", "rewards", "last_states", "dones"))
    return [
        ExperienceFirstLast(state(first), action, reward, None if done else state(last))
        for first, action, reward, last, done in zip(*columns, strict=True)
    ]
