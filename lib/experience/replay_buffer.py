"""ptan's replay buffer with a memory forecast and a state_dict."""

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import ptan
from ptan.experience import ExperienceFirstLast

from lib.envs.frames import FrameStack
from lib.errors import UsageError
from lib.experience import packing
from lib.experience.source import ExperienceSourceFirstLast
from lib.system import memory

log = logging.getLogger(__name__)


class ReplayBuffer(ptan.experience.ExperienceReplayBuffer):
    """ptan's uniform ring of the last `buffer_size` transitions, with a memory forecast and a state_dict.

    Args:
        experience_source: where `populate` takes transitions from.
        buffer_size: how many are kept.
        saved: whether checkpoints will hold the ring, which takes a copy of its frames for a moment.

    Raises:
        UsageError: the full ring would not fit into the memory that is free.
    """

    # Measured: a transition's numbers and the headers of its objects, beside its frame.
    OVERHEAD = 700

    def __init__(self, experience_source: ExperienceSourceFirstLast, buffer_size: int, saved: bool = True):
        super().__init__(experience_source, buffer_size)
        self._added = 0  # by a call of populate that has not come to its end
        needed = self.forecast(experience_source.pool[0], buffer_size, saved)
        wanted = f"a replay of {buffer_size:,} transitions needs"
        memory.require(wanted, buffer_size, needed, lambda most: f"try --set replay_size={most}")
        log.info("Memory: %s up to %.1f GB; %.1f GB are free.", wanted, needed / 1e9, memory.free() / 1e9)

    @classmethod
    def forecast(cls, env: gym.Env, buffer_size: int, saved: bool) -> int:
        """Bytes that the full ring takes, a new frame a transition, with the copy of the frames made while saving."""
        space = env.observation_space
        assert space.shape is not None
        assert space.dtype is not None
        shape = space.shape[1:] if isinstance(env, FrameStack) else space.shape
        frame = int(np.prod(shape)) * space.dtype.itemsize
        return buffer_size * (frame * (2 if saved else 1) + cls.OVERHEAD)

    def populate(self, samples: int) -> None:
        """Add so many transitions; of a call that failed half-way, the next adds only what it has left."""
        for _ in range(samples - self._added):
            self._add(next(self.experience_source_iter))
            self._added += 1
        if samples > 0:
            self._added = 0

    def sample(self, batch_size: int) -> list[ExperienceFirstLast]:
        """Transitions drawn at random, with repetition.

        Raises:
            UsageError: the ring has fewer transitions than the batch.
        """
        self.require(batch_size)
        return super().sample(batch_size)

    def require(self, batch_size: int, more: int = 0) -> None:
        """Refuse a batch that cannot be drawn, or could not after so many more transitions.

        Raises:
            UsageError: there would be fewer transitions than the batch has.
        """
        kept = min(len(self.buffer) + more, self.capacity)
        if kept < batch_size:
            raise UsageError(
                f"a batch of {batch_size} cannot be drawn from {kept} transitions; "
                f"give --set replay_initial={batch_size} at least, and no smaller replay_size"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"pos": self.pos, "added": self._added, "transitions": packing.pack(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer = packing.unpack(state["transitions"])
        self.pos = state["pos"]
        self._added = state["added"]
