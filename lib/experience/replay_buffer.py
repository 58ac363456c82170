"""The replay buffer of chapter 9's first scripts: a list of PTAN's transitions, saved with each frame once."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import gymnasium as gym
import ptan
import torch
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import LazyFrames
from lib.envs.masks import stacks_frames
from lib.experience.interface import State
from lib.system import memory


class TransitionSource(Protocol):
    """Endless source of transitions, ExperienceSourceFirstLast or Players. `pool` holds its environments."""

    @property
    def pool(self) -> Sequence[gym.Env]: ...

    def __iter__(self) -> Iterator[ExperienceFirstLast]: ...


class ReplayBuffer(ptan.experience.ExperienceReplayBuffer):
    """ptan's uniform replay buffer with a memory forecast and a state_dict.

    Args:
        experience_source: source from which `populate` takes transitions.
        buffer_size: number of transitions that are kept.

    Raises:
        UsageError: if the full buffer does not fit into free memory.
    """

    TRANSITION_BYTES = 700  # memory of a transition without its frame: numbers and object headers, measured

    def __init__(self, experience_source: TransitionSource, buffer_size: int):
        super().__init__(experience_source, buffer_size)
        self._round = len(experience_source.pool)
        space = experience_source.pool[0].observation_space
        assert isinstance(space, gym.spaces.Box)
        frame_bytes: int = math.prod(space.shape[stacks_frames(space) :]) * space.dtype.itemsize
        memory.require(buffer_size, buffer_size * (frame_bytes + self.TRANSITION_BYTES))

    def populate(self, samples: int) -> None:
        """Add transitions from the source, rounded up to whole rounds of its environments."""
        super().populate(-(-samples // self._round) * self._round)

    def state_dict(self) -> State:
        return {"pos": self.pos, "transitions": pack(self.buffer)}

    def load_state_dict(self, state: State) -> None:
        self.buffer, self.pos = unpack(state["transitions"]), state["pos"]


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
