"""Finished episodes, and what restores or replays them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from lib.system.clock import since_process_start


class Again(NamedTuple):
    """What a finished episode is played again from, in another environment of its kind.

    Attributes:
        seed: of the environment's last reset that had one.
        actions: since that reset.
        last_state: in which the last of them was taken; it tells whether the same was played.
        begins: how many of the actions are of episodes before this one.
        no_ops: frames with which a native Atari game began, which draws their number itself, those of its start-up
            included; None where the seed decides it.
    """

    seed: int
    actions: Sequence[int]
    last_state: Any
    begins: int = 0
    no_ops: int | None = None


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        total: the undiscounted return, as the game counts it.
        length: agent steps in the episode.
        step: the source's agent steps, over all environments, when it ended.
        clock: seconds since this process started, when it ended.
        again: tells how it is played again; None where nobody knows any more.
    """

    total: float
    length: int
    step: int
    clock: float
    again: Callable[[], Again] | None = None


def pack_episodes(episodes: Sequence[Episode]) -> list[list[float]]:
    """Episodes that nobody has asked for yet, for a checkpoint."""
    return [[episode.total, episode.length, episode.step] for episode in episodes]


def unpack_episodes(packed: list[list[float]]) -> list[Episode]:
    """The same in a resumed run, as if they had ended now."""
    return [Episode(total, int(length), int(step), since_process_start()) for total, length, step in packed]


def pack_place(episode: int, actions: Sequence[int], state: Any) -> dict[str, Any]:
    """Where an environment stands, for a checkpoint: its episode, the actions since the reset, what it shows now."""
    return {
        "episode": episode,
        "actions": torch.tensor(actions, dtype=torch.int64),
        "state": None if state is None else torch.from_numpy(np.array(state)),
    }
