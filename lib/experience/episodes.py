"""Finished episodes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lib.system.clock import since_process_start


class EpisodeTrace(NamedTuple):
    """Seed and actions from which a finished episode can be repeated in another environment of its kind.

    Attributes:
        seed: seed of the environment's last seeded reset.
        actions: all actions since that reset.
        last_state: state in which the last action was taken, to check that the same episode was repeated.
        begins: number of leading actions that belong to earlier episodes.
        no_ops: emulator frames before the first action of a native Atari game, start-up included. The native
            environment draws this number itself. None if the seed alone decides it.
    """

    seed: int
    actions: Sequence[int]
    last_state: Any
    begins: int = 0
    no_ops: int | None = None


@dataclasses.dataclass(frozen=True)
class LazyTrace:
    """An episode's trace that is assembled when it is called; few episodes are ever repeated.

    Attributes:
        seeds_of: function that returns the reset seeds (num_envs,) of environments that are reset together.
        blocks: actions since the reset, each block (steps, num_envs).
        env: index of the episode's environment.
        end: steps since the reset when the episode ended.
        length: agent steps of the episode.
        last_state: see EpisodeTrace.
        no_ops: see EpisodeTrace.
    """

    seeds_of: Callable[[], Sequence[int]]
    blocks: Sequence[np.ndarray]
    env: int
    end: int
    length: int
    last_state: Any
    no_ops: int | None = None

    def __call__(self) -> EpisodeTrace:
        """Return the trace."""
        actions: list[int] = np.concatenate(self.blocks)[: self.end, self.env].tolist()
        begins = self.end - self.length
        if self.no_ops is not None:  # a reset of nearly every Atari game depends on the number of no-ops only
            actions, begins = actions[begins:], 0
        return EpisodeTrace(int(self.seeds_of()[self.env]), actions, self.last_state, begins, self.no_ops)


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        total: undiscounted return, before reward clipping.
        length: number of agent steps.
        step: agent steps of the source, over all environments, when the episode ended.
        clock: seconds since the process started, when the episode ended.
        trace: seed and actions of the episode, or None if they are unknown.
    """

    total: float
    length: int
    step: int
    clock: float
    trace: LazyTrace | None = None


def pack_episodes(episodes: Sequence[Episode]) -> list[list[float]]:
    """Return episodes as plain values, for a checkpoint. Clocks and traces are dropped."""
    return [[episode.total, episode.length, episode.step] for episode in episodes]


def unpack_episodes(packed: list[list[float]]) -> list[Episode]:
    """Return the episodes of a checkpoint, as if they had ended now."""
    return [Episode(total, int(length), int(step), since_process_start()) for total, length, step in packed]
