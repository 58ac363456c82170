"""PTAN's transitions of a stream's steps, and their form in a checkpoint. Both hold each frame once."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import FrameStrip, LazyFrames
from lib.experience.stream import FrameStep


class Transitions:
    """Makes one-step transitions (state, action, reward, last_state) of the steps of several environments.

    Args:
        states: (num_envs, ...) states in which the first actions are taken.
        stacked: whether states are stacks of frames. They become LazyFrames then.
    """

    def __init__(self, states: np.ndarray, stacked: bool):
        self._size = states.shape[1] if stacked else 0
        self._strips = [FrameStrip(self._size) for _ in states]
        self._states: list[Any] = list(states)  # None after the end of an episode
        if stacked:
            self._states = [strip.start(state) for strip, state in zip(self._strips, states, strict=True)]

    def add(self, step: FrameStep) -> list[ExperienceFirstLast]:
        """Return the transitions of one step, in the order of the environments.

        The last state is None if the episode terminated. If it was truncated, the learner bootstraps from it.
        """
        frames, actions, rewards, terminated, truncated, final_frames = step
        transitions = []
        for env, strip in enumerate(self._strips):
            state, frame, final = self._states[env], frames[env], final_frames[env]
            if state is None:
                state = strip.start([frame] * self._size) if self._size else frame
            last_state = None if terminated[env] else strip.append(final) if self._size else final
            transitions.append(ExperienceFirstLast(state, int(actions[env]), float(rewards[env]), last_state))
            self._states[env] = None if truncated[env] else last_state
        return transitions


def pack(transitions: Iterable[ExperienceFirstLast]) -> dict[str, Any]:
    """Return transitions as tensors that torch.load(weights_only=True) accepts.

    Returns:
        A dict with these entries.

        - "frames": (n, ...) distinct frames, strip after strip. A state that is not a LazyFrames is a strip of one
          frame.
        - "strips": (strips,) int64, frames of each strip.
        - "size": frames in a state; 0 if states are not LazyFrames.
        - "places": (transitions, 4) int32, the strip of the state, its end in the strip, and the same of the last
          state. If there is no last state, its strip is -1.
        - "actions": (transitions,) int64.
        - "rewards": (transitions,) float64.
    """
    transitions = list(transitions)
    strips: dict[int, tuple[int, np.ndarray]] = {}  # number and frames, by the identity of the memory
    used: list[list[int]] = []  # first and last row in use of each strip

    def place(state: Any) -> tuple[int, int]:
        if state is None:
            return -1, 0
        lazy = isinstance(state, LazyFrames)
        memory, start, end = (state.strip, state.start, state.end) if lazy else (state, 0, 1)
        number, _ = strips.setdefault(id(memory), (len(strips), memory if lazy else memory[None]))
        if number == len(used):
            used.append([start, end])
        used[number] = [min(start, used[number][0]), max(end, used[number][1])]
        return number, end

    places = [(*place(t.state), *place(t.last_state)) for t in transitions]
    frames = [strip[first:last] for (_, strip), (first, last) in zip(strips.values(), used, strict=True)]
    firsts = np.array([first for first, _ in used] + [0])  # the last one is for -1
    table = np.array(places, np.int64).reshape(-1, 4)
    table[:, 1::2] -= firsts[table[:, ::2]]
    lazy = bool(transitions) and isinstance(transitions[0].state, LazyFrames)
    return {
        "frames": torch.from_numpy(np.concatenate(frames)) if frames else None,
        "strips": torch.tensor([len(strip) for strip in frames], dtype=torch.int64),
        "size": len(transitions[0].state) if lazy else 0,
        "places": torch.from_numpy(table.astype(np.int32)),
        "actions": torch.tensor([t.action for t in transitions], dtype=torch.int64),
        "rewards": torch.tensor([t.reward for t in transitions], dtype=torch.float64),
    }


def unpack(packed: dict[str, Any]) -> list[ExperienceFirstLast]:
    """Return the transitions that were passed to `pack`. `packed` is not changed, and they do not refer to it."""
    if packed["frames"] is None:
        return []
    size = packed["size"]
    # Copies: a view would keep all frames in memory until the last of them has left the replay buffer.
    strips = [strip.copy() for strip in np.split(packed["frames"].numpy(), packed["strips"].cumsum(0)[:-1].numpy())]
    states = [strip[0] for strip in strips]

    def state(strip: int, end: int) -> Any:
        return LazyFrames(strips[strip], end, size) if size else states[strip]

    columns = (packed[name].tolist() for name in ("places", "actions", "rewards"))
    return [
        ExperienceFirstLast(state(strip, end), action, reward, None if last < 0 else state(last, last_end))
        for (strip, end, last, last_end), action, reward in zip(*columns, strict=True)
    ]
