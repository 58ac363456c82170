"""Finished episodes."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from lib.system.clock import since_process_start


class EpisodeTrace(NamedTuple):
    """Seed and actions from which a finished episode can be replayed in another environment of the same kind.

    Attributes:
        seed: seed of the environment's last seeded reset.
        actions: all actions since that reset.
        last_state: state in which the last action was taken, to check that the same episode was replayed.
        first: index of the episode's first action; earlier actions belong to earlier episodes.
        no_ops: emulator frames before the first action of a native Atari game, start-up included. The native
            environment draws the number of no-ops itself. None if the seed alone determines the first state.
    """

    seed: int
    actions: Sequence[int]
    last_state: Any
    first: int = 0
    no_ops: int | None = None


@dataclasses.dataclass(frozen=True)
class LazyTrace:
    """Callable that assembles the trace of an episode only when it is needed, because few episodes are ever replayed.

    Attributes:
        seeds_of: function that returns the seeds, (num_envs,), of the episode's last reset with new seeds.
        blocks: actions, each block (steps, num_envs).
        env: index of the episode's environment.
        start: steps in `blocks` before that reset.
        end: steps in `blocks` when the episode ended.
        length: agent steps of the episode.
        last_state: see EpisodeTrace.
        no_ops: see EpisodeTrace.
    """

    seeds_of: Callable[[], Sequence[int]]
    blocks: Sequence[np.ndarray]
    env: int
    start: int
    end: int
    length: int
    last_state: Any
    no_ops: int | None = None

    def __call__(self) -> EpisodeTrace:
        """Return the trace."""
        actions: list[int] = np.concatenate(self.blocks)[self.start : self.end, self.env].tolist()
        first = len(actions) - self.length
        if self.no_ops is not None:  # in nearly every Atari game, the number of no-ops alone determines the first state
            actions, first = actions[first:], 0
        return EpisodeTrace(int(self.seeds_of()[self.env]), actions, self.last_state, first, self.no_ops)


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        total: undiscounted return, before reward clipping.
        length: number of agent steps.
        step: agent steps of the source, over all environments, at the end of the episode.
        clock: seconds from the start of the process to the end of the episode.
        trace: seed and actions of the episode, or None if they are unknown.
    """

    total: float
    length: int
    step: int
    clock: float
    trace: LazyTrace | None = None


def pack_episodes(episodes: Sequence[Episode]) -> list[list[float]]:
    """Return episodes as plain values for a checkpoint, without `clock` and `trace`."""
    return [[episode.total, episode.length, episode.step] for episode in episodes]


def unpack_episodes(packed: list[list[float]]) -> list[Episode]:
    """Return the episodes of a checkpoint. `clock` is the current time, and `trace` is None."""
    return [Episode(total, int(length), int(step), since_process_start()) for total, length, step in packed]
