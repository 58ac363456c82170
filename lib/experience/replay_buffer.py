"""ptan's replay buffer with a memory forecast and a state_dict."""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import ptan
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import frame_layout, stacks_frames
from lib.errors import UsageError
from lib.experience.transitions import pack, unpack
from lib.system import memory

log = logging.getLogger(__name__)


class TransitionSource(Protocol):
    """Source of transitions for a replay buffer: ExperienceSourceFirstLast, or Players."""

    @property
    def pool(self) -> Sequence[gym.Env]:
        """Environments that the source plays."""
        ...

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        """Yield transitions without end."""
        ...


class ReplayBuffer(ptan.experience.ExperienceReplayBuffer):
    """ptan's uniform replay buffer with a memory forecast and a state_dict.

    Args:
        experience_source: source from which `populate` takes transitions.
        buffer_size: number of transitions that are kept.
        saved: whether checkpoints include the buffer. They need memory for a copy of its frames.

    Raises:
        UsageError: if the full buffer does not fit into free memory.
    """

    TRANSITION_BYTES = 700  # memory of a transition without its frame: numbers and object headers, measured

    def __init__(self, experience_source: TransitionSource, buffer_size: int, saved: bool = True):
        super().__init__(None, buffer_size)
        self.experience_source_iter: Iterator[ExperienceFirstLast] = iter(experience_source)
        self._round = len(experience_source.pool)
        needed = self.forecast(experience_source.pool[0], buffer_size, saved)
        memory.require(buffer_size, needed)
        log.info("Memory: the replay needs up to %.1f GB; %.1f GB are free.", needed / 1e9, memory.free() / 1e9)

    @classmethod
    def forecast(cls, env: gym.Env, buffer_size: int, saved: bool) -> int:
        """Return the memory of a full buffer in bytes, with one new frame per transition.

        Args:
            env: environment whose states are stored.
            buffer_size: number of transitions.
            saved: whether to include the copy of the frames that a checkpoint needs.
        """
        _, shape, dtype = frame_layout(env.observation_space, stacks_frames(env))
        frame_bytes = math.prod(shape) * dtype.itemsize
        return buffer_size * (frame_bytes * (2 if saved else 1) + cls.TRANSITION_BYTES)

    def populate(self, samples: int) -> None:
        """Add transitions from the source, rounded up to whole rounds of its environments."""
        super().populate(-(-samples // self._round) * self._round)

    def sample(self, batch_size: int) -> list[ExperienceFirstLast]:
        """Sample transitions uniformly, with replacement.

        Raises:
            UsageError: if the buffer has fewer transitions than the batch.
        """
        self.require(batch_size)
        # ptan's own method returns the buffer's own list if the batch is as large as the buffer.
        indices = np.random.choice(len(self.buffer), batch_size, replace=True)
        return [self.buffer[index] for index in indices]

    def require(self, batch_size: int, new_steps: int = 0) -> None:
        """Check that a batch can be sampled.

        Args:
            batch_size: number of transitions in the batch.
            new_steps: number of transitions that will be added before the batch is sampled.

        Raises:
            UsageError: if the buffer would have fewer transitions than the batch.
        """
        available = min(len(self.buffer) + new_steps, self.capacity)
        if available < batch_size:
            raise UsageError(
                f"a batch of {batch_size} cannot be drawn from {available} transitions; "
                f"use --set replay_initial={batch_size} or more, and a replay_size at least as large"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"pos": self.pos, "transitions": pack(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        buffer, pos = unpack(state["transitions"]), state["pos"]
        full = len(buffer) == self.capacity
        if len(buffer) > self.capacity or pos >= self.capacity or not (full or pos == len(buffer)):
            raise ValueError(f"position {pos} of {len(buffer)} transitions in a buffer of {self.capacity}")
        self.buffer, self.pos = buffer, pos
