"""Snapshots, from which environments are restored: the last seeded reset of each, and all actions since."""

from collections.abc import Callable

import numpy as np
import torch
from gymnasium import spaces

from lib.experience.interface import EpisodeTrace, State


def without_actions(state: object) -> object:
    """Return a source's state without the actions of its snapshots, so that new episodes start."""
    if isinstance(state, list):
        return [without_actions(each) for each in state]
    if not isinstance(state, dict):
        return state
    is_snapshot = state.keys() >= {"resets", "actions"}
    return {name: without_actions(each) for name, each in state.items() if not (is_snapshot and name == "actions")}


class Snapshot:
    """Resets and actions of environments that are stepped together.

    Args:
        seed_of: function from the index of an environment and the number of a reset to the seed of that reset.
        action_space: that of one environment.

    Attributes:
        resets: (num_envs,) int64, number of each environment's last seeded reset; -1 before the first one. If an
            environment is reset for each episode, this is the episode index. In a stream, it is the number of agent
            steps before the reset.
        starts: (num_envs,) int64, number of kept steps before that reset.
        length: number of kept steps.
    """

    ROOM = 1024  # steps for which memory is added at least

    def __init__(self, seed_of: Callable[[int, int], int], num_envs: int, action_space: spaces.Space[object]):
        self.resets = np.full(num_envs, -1, np.int64)
        self.starts = np.zeros(num_envs, np.int64)
        self._seed_of = seed_of
        dtype = action_space.dtype if isinstance(action_space, spaces.Box) else np.int32
        self._memory = np.zeros((0, num_envs, *(action_space.shape or ())), dtype)  # the first rows hold actions
        self.length = 0

    @property
    def actions(self) -> np.ndarray:
        """Kept actions, (steps, num_envs, ...): int32, or of the type of a Box."""
        return self._memory[: self.length]

    def seeds(self) -> list[int]:
        """Return the seed of each environment's last reset."""
        return [self._seed_of(env, reset) for env, reset in enumerate(self.resets.tolist())]

    def restart(self, number: int | np.ndarray, which: np.ndarray | slice = slice(None)) -> None:
        """Record a seeded reset.

        Args:
            number: number of the reset, the argument of `seed_of`; or one for each environment that was reset.
            which: (num_envs,) bool, or indices, of the environments that were reset.
        """
        self.resets[which] = number
        self.starts[which] = self.length

    def append(self, actions: np.ndarray) -> None:
        """Record one step, (num_envs, ...). Steps before all resets may be dropped."""
        if self.length == len(self._memory):
            unneeded = int(self.starts.min())
            kept = self.actions[unneeded:]
            room = np.zeros((max(len(kept), self.ROOM), *kept.shape[1:]), kept.dtype)
            self._memory = np.concatenate([kept, room])  # a new array, because traces are views of the old one
            self.length -= unneeded
            self.starts -= unneeded
        self._memory[self.length] = actions
        self.length += 1

    def trace(self, env: int, length: int, last_state: np.ndarray, no_ops: int | None = None) -> EpisodeTrace:
        """Return the trace of an episode of `length` steps that has just ended; for the others see EpisodeTrace."""
        actions = self.actions[int(self.starts[env]) :, env]
        first = len(actions) - length
        if no_ops is not None:  # in nearly every Atari game, it alone determines the first state
            actions, first = actions[first:], 0
        return EpisodeTrace(self._seed_of(env, int(self.resets[env])), actions, last_state, first, no_ops)

    def state_dict(self) -> State:
        """Return the resets, and the actions since the earliest one."""
        first = int(self.starts.min())
        return {
            "resets": torch.from_numpy(self.resets.copy()),
            "starts": torch.from_numpy(self.starts - first),
            "actions": torch.from_numpy(self.actions[first:].copy()),
        }

    def load_state_dict(self, state: State) -> None:
        self.resets = state["resets"].numpy().copy()
        self.starts = state["starts"].numpy().copy()
        if "actions" in state:
            self._memory = state["actions"].numpy()  # without room, so that it is never changed
        self.length = len(self._memory)
