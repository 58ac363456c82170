"""Snapshots of environments: the last seeded reset of each, and all actions since.

In general, an environment cannot be copied. But the same reset seeds and the same actions lead to the same states.
Sources, streams, actors, checkpoints and videos all restore environments from a snapshot.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from lib.experience.episodes import EpisodeTrace

BLOCKS_TO_MERGE = 4096


class Snapshot:
    """Resets and actions of environments that are stepped together.

    Args:
        seeds_of: function from a reset number to the reset seeds, (num_envs,), that all environments would get.
        num_envs: number of environments.

    Attributes:
        resets: (num_envs,) int64, number of each environment's last seeded reset; None before the first one. If an
            environment is reset for each episode, this is the episode index. In a stream, it is the number of agent
            steps before the reset.
        starts: (num_envs,) int64, number of kept steps before that reset.
        states: latest states of the environments, or None if unknown.
    """

    def __init__(self, seeds_of: Callable[[int], Sequence[int]], num_envs: int = 1):
        self.resets: np.ndarray | None = None
        self.starts = np.zeros(num_envs, np.int64)
        self.states: Any = None
        self._seeds_of = seeds_of
        self._blocks: list[np.ndarray] = []  # replaced when steps are dropped, because traces refer to the old list
        self._merged = 0  # number of leading blocks that were merged
        self._length = 0
        self._unneeded = 0  # number of kept steps before the earliest of the resets

    def __len__(self) -> int:
        """Return the number of kept steps."""
        return self._length

    @property
    def steps_since_reset(self) -> np.ndarray:
        """(num_envs,) numbers of steps since each environment's last reset."""
        return self._length - self.starts

    def seeds(self, which: np.ndarray) -> list[int]:
        """Return the seeds of the last resets of selected environments, and 0 for the others.

        Args:
            which: (num_envs,) bool.
        """
        assert self.resets is not None
        seeds = {reset: self._seeds_of(reset) for reset in np.unique(self.resets[which]).tolist()}
        resets = zip(self.resets.tolist(), which, strict=True)
        return [int(seeds[reset][env]) if selected else 0 for env, (reset, selected) in enumerate(resets)]

    @property
    def actions(self) -> np.ndarray:
        """Kept actions, (steps, num_envs) int32."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros((0, len(self.starts)), np.int32)

    def restart(self, number: int | np.ndarray, which: np.ndarray | slice = slice(None)) -> None:
        """Record a seeded reset.

        Args:
            number: number of the reset, the argument of `seeds_of`; or one for each environment that was reset.
            which: (num_envs,) bool, or indices, of the environments that were reset.
        """
        if self.resets is None:
            self.resets = np.full(len(self.starts), number, np.int64)
        self.resets[which] = number
        self.starts[which] = self._length
        self.states = None
        self._unneeded = int(self.starts.min())

    def append(self, actions: np.ndarray | Sequence[int]) -> None:
        """Record one step, (num_envs,), or several, (steps, num_envs)."""
        if self._unneeded and 2 * self._unneeded >= self._length:
            self._drop()
        block = np.array(actions, np.int32, ndmin=2)  # a copy, because an agent may overwrite its array
        self._blocks.append(block)
        self._length += len(block)
        if len(self._blocks) - self._merged >= BLOCKS_TO_MERGE:
            self._blocks[self._merged :] = [np.concatenate(self._blocks[self._merged :])]
            self._merged += 1

    def _drop(self) -> None:
        """Drop the blocks that end before the earliest reset."""
        ends = np.cumsum([len(block) for block in self._blocks])
        blocks = int(np.searchsorted(ends, self._unneeded, side="right"))
        dropped = int(ends[blocks - 1]) if blocks else 0
        self._blocks = self._blocks[blocks:]
        self._merged = max(0, self._merged - blocks)
        self._length -= dropped
        self._unneeded -= dropped
        self.starts -= dropped

    def trace(self, env: int, length: int, last_state: Any, no_ops: int | None = None) -> Callable[[], EpisodeTrace]:
        """Return a function that assembles the trace of an episode.

        Args:
            env: index of the environment in this snapshot.
            length: agent steps of the episode.
            last_state: state in which its last action was taken.
            no_ops: see EpisodeTrace.
        """
        assert self.resets is not None
        reset, start, end, blocks = int(self.resets[env]), int(self.starts[env]), self._length, self._blocks

        def assemble() -> EpisodeTrace:
            actions: list[int] = np.concatenate(blocks)[start:end, env].tolist()
            first = len(actions) - length
            if no_ops is not None:  # in nearly every Atari game, the number of no-ops alone determines the first state
                actions, first = actions[first:], 0
            return EpisodeTrace(int(self._seeds_of(reset)[env]), actions, last_state, first, no_ops)

        return assemble

    def state_dict(self) -> dict[str, Any]:
        """Return the resets, the actions since the earliest one, and the states as plain values and tensors."""
        first = self._unneeded
        return {
            "resets": None if self.resets is None else torch.from_numpy(self.resets.copy()),
            "starts": torch.from_numpy(self.starts - first),
            "actions": torch.from_numpy(self.actions[first:]),
            "states": None if self.states is None else torch.from_numpy(np.array(self.states)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.resets = None if state["resets"] is None else state["resets"].numpy().copy()
        self.starts = state["starts"].numpy().copy()
        self.states = None if state["states"] is None else state["states"].numpy()
        actions = state["actions"].numpy()
        self._blocks = [actions] if len(actions) else []
        self._merged = len(self._blocks)
        self._length = len(actions)
        self._unneeded = 0
