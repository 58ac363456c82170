"""Snapshots of environments: the last reset and all actions since.

In general, an environment cannot be copied. But the same reset seeds and the same actions lead to the same states.
Sources, streams, actors, checkpoints and videos all restore environments from a snapshot.
"""

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from lib.experience.episodes import LazyTrace


class Snapshot:
    """Reset number and actions of environments that are reset together.

    Args:
        seeds_of: function from a reset number to the reset seeds (num_envs,) of the environments.

    Attributes:
        reset: number of the last reset, or None before the first one. If an environment is reset for each episode, this
            is the episode index. If environments are reset together, it is the number of their agent steps before
            the reset.
        states: latest states of the environments, or None if unknown.
    """

    def __init__(self, seeds_of: Callable[[int], Sequence[int]]):
        self.reset: int | None = None
        self.states: Any = None
        self._seeds_of = seeds_of
        self._blocks: list[np.ndarray] = []  # a reset replaces this list, because traces refer to the old one
        self._length = 0

    def __len__(self) -> int:
        """Return the number of steps since the reset."""
        return self._length

    def seeds(self, reset: int) -> Sequence[int]:
        """Return the seeds, (num_envs,), of a reset."""
        return self._seeds_of(reset)

    @property
    def actions(self) -> np.ndarray:
        """Actions since the reset, (steps, num_envs) int32."""
        return np.concatenate(self._blocks) if self._blocks else np.zeros((0, 0), np.int32)

    def restart(self, reset: int) -> None:
        """Record a reset of all environments."""
        self.reset = reset
        self.states = None
        self._blocks = []
        self._length = 0

    def append(self, actions: np.ndarray | Sequence[int]) -> None:
        """Record one step, (num_envs,), or several, (steps, num_envs)."""
        block = np.atleast_2d(np.asarray(actions, np.int32))
        self._blocks.append(block)
        self._length += len(block)

    def copy(self) -> Self:
        """Return a copy that does not change with this snapshot."""
        other = copy.copy(self)
        other._blocks = list(self._blocks)
        return other

    def trace(self, env: int, end: int, length: int, last_state: Any, no_ops: int | None = None) -> LazyTrace:
        """Return the trace of an episode.

        Args:
            env: index of the environment in this snapshot.
            end: steps since the reset when the episode ended.
            length: agent steps of the episode.
            last_state: state in which its last action was taken.
            no_ops: see EpisodeTrace.
        """
        assert self.reset is not None
        seeds_of = partial(self._seeds_of, self.reset)
        return LazyTrace(seeds_of, self._blocks, env, end, length, last_state, no_ops)

    def state_dict(self) -> dict[str, Any]:
        """Return the reset number, the actions and the states as plain values and tensors."""
        return {
            "reset": self.reset,
            "actions": torch.from_numpy(self.actions),
            "states": None if self.states is None else torch.from_numpy(np.array(self.states)),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned."""
        self.reset = state["reset"]
        self.states = None if state["states"] is None else state["states"].numpy()
        actions = state["actions"].numpy()
        self._blocks = [actions] if len(actions) else []
        self._length = len(actions)
