"""Finished episodes."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from lib.system.clock import since_process_start


class EpisodeTrace(NamedTuple):
    """Seed and actions from which a finished episode can be replayed in another environment of the same kind.

    Attributes:
        seed: seed of the environment's last seeded reset.
        actions: all actions since that reset, (n, ...).
        last_state: state in which the last action was taken, to check that the same episode was replayed.
        first: index of the episode's first action; earlier actions belong to earlier episodes.
        no_ops: emulator frames before the first action of a native Atari game, start-up included. The native
            environment draws the number of no-ops itself. None if the seed alone determines the first state.
    """

    seed: int
    actions: np.ndarray
    last_state: np.ndarray
    first: int = 0
    no_ops: int | None = None


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        total: undiscounted return, before reward clipping.
        length: number of agent steps.
        step: agent steps of the source, over all environments, at the end of the episode.
        clock: seconds from the start of the process to the end of the episode.
        env: index of the environment in its source or actor.
        trace: how to replay it; None unless the source's `traces` is true.
    """

    total: float
    length: int
    step: int
    clock: float
    env: int = 0
    trace: EpisodeTrace | None = None


def pack_episodes(episodes: Sequence[Episode]) -> list[list[float]]:
    """Return episodes as plain values for a checkpoint, without what a resumed run cannot use."""
    return [[episode.total, episode.length, episode.step] for episode in episodes]


def unpack_episodes(packed: list[list[float]]) -> list[Episode]:
    """Return the episodes of a checkpoint. `clock` is the current time, and `trace` is None."""
    return [Episode(total, int(length), int(step), since_process_start()) for total, length, step in packed]
