"""The replay buffer of chapter 9's first scripts: a list of PTAN's transitions."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import gymnasium as gym
import ptan
from ptan.experience import ExperienceFirstLast

from lib.envs.masks import stacks_frames
from lib.experience.interface import State
from lib.experience.transitions import pack, unpack
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
        super().__init__(None, buffer_size)
        self.experience_source_iter: Iterator[ExperienceFirstLast] = iter(experience_source)
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
