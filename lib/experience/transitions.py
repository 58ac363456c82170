"""Converts a stream's steps to PTAN's transitions, and packs these for a checkpoint. Both hold each frame once."""

from collections.abc import Iterable

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import FrameStrip, LazyFrames
from lib.experience.interface import State
from lib.experience.stream import Step


class Transitions:
    """Makes one-step transitions of the steps of several environments. Their states are LazyFrames.

    Args:
        states: (num_envs, ...) states in which the first actions are taken.
        stacked: whether states are stacks of frames; otherwise a state is one frame.
    """

    def __init__(self, states: np.ndarray, stacked: bool):
        self._strips = [FrameStrip(states.shape[1] if stacked else 0) for _ in states]
        first = states if stacked else states[:, None]
        self._states: list[LazyFrames | None] = [  # None after the end of an episode
            strip.start(frames) for strip, frames in zip(self._strips, first, strict=True)
        ]

    def add(self, step: Step) -> list[ExperienceFirstLast]:
        """Return the transitions of one step, in the order of the environments.

        The last state is None if the episode terminated. If it was truncated, the learner bootstraps from it.
        """
        frames, actions, rewards, terminated, truncated, final_frames = step
        transitions = []
        for env, strip in enumerate(self._strips):
            state = self._states[env]
            if state is None:
                state = strip.start([frames[env]] * strip.frames)
            last_state = None if terminated[env] else strip.append(final_frames[env])
            transitions.append(ExperienceFirstLast(state, int(actions[env]), float(rewards[env]), last_state))
            self._states[env] = None if truncated[env] else last_state
        return transitions


def pack(transitions: Iterable[ExperienceFirstLast]) -> State:
    """Return transitions as tensors that torch.load(weights_only=True) accepts. The tensors share their frames.

    "strips" are the arrays of frames to which the states refer, and "size" is the `size` of each state. "places",
    (transitions, 4), holds the strip of the state, its end in the strip, and the same of the last state. If there is no
    last state, its strip is -1.
    """
    transitions = list(transitions)
    strips: dict[int, tuple[int, torch.Tensor]] = {}  # number and frames, by the identity of the memory

    def place(state: LazyFrames | None) -> tuple[int, int]:
        if state is None:
            return -1, 0
        number, _ = strips.setdefault(id(state.strip), (len(strips), torch.from_numpy(state.strip)))
        return number, state.end

    places = [(*place(t.state), *place(t.last_state)) for t in transitions]
    return {
        "strips": tuple(frames for _, frames in strips.values()),
        "size": transitions[0].state.size if transitions else 0,
        "places": torch.tensor(places, dtype=torch.int32),
        "actions": torch.tensor([t.action for t in transitions], dtype=torch.int64),
        "rewards": torch.tensor([t.reward for t in transitions], dtype=torch.float64),
    }


def unpack(packed: State) -> list[ExperienceFirstLast]:
    """Return the transitions that were passed to `pack`. They do not refer to its tensors."""
    strips = [strip.numpy().copy() for strip in packed["strips"]]

    def state(strip: int, end: int) -> LazyFrames | None:
        return None if strip < 0 else LazyFrames(strips[strip], end, packed["size"])

    columns = (packed[name].tolist() for name in ("places", "actions", "rewards"))
    return [
        ExperienceFirstLast(state(strip, end), action, reward, state(last, last_end))
        for (strip, end, last, last_end), action, reward in zip(*columns, strict=True)
    ]
