"""Players: actors that play blocks of transitions for chapter 9's parallel scripts."""

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from lib.actors.contract import Weights
from lib.envs.frames import frame_layout, stacks_frames
from lib.experience import packing
from lib.experience.source import ExperienceSourceFirstLast
from lib.system.seeds import hashed_seed, seed_everything, undisturbed

MODEL, SELECTOR = "model.", "selector."  # prefixes of the names of weights


@dataclasses.dataclass
class Block:
    """Segment of a player: transitions, taken from its environments in turn.

    Attributes:
        arrays: packed transitions as arrays; see packing.pack.
        lazy: whether states are LazyFrames.
        continues: whether the indices also refer to the new frames of the previous block, which come before those of
            this block.
        ends: (return, length) of the episodes that ended, by the index of their last transition.
        seconds: time in which the block was played.
        restored: snapshots of the environments before the first block of a new player; None in later blocks.
    """

    arrays: dict[str, np.ndarray]
    lazy: bool
    continues: bool
    ends: dict[int, tuple[float, int]]
    seconds: float
    restored: list[dict[str, Any]] | None


class Player:
    """Actor that plays blocks in the environments of an experience source.

    Args:
        index: index of the player.
        state: the source, which must be unused; the number of the first block; and the snapshots to restore.
        rounds: steps of each environment in a block.
    """

    def __init__(self, index: int, state: tuple[ExperienceSourceFirstLast, int, list[dict[str, Any]]], rounds: int):
        self._index = index
        self._source, self._block, snapshots = state
        self._rounds = rounds
        self._source.restore(snapshots)
        self._restored: list[dict[str, Any]] | None = self._source.snapshots()
        self._transitions = iter(self._source)
        self._known: Sequence[np.ndarray] = ()

    def set_model(self, model: Weights) -> None:
        """Act with these weights, and with these values of the action selector."""
        agent = self._source.agent
        agent.model.load_state_dict(_without_prefix(model.tensors, MODEL))
        values = vars(agent.action_selector)
        for name, value in _without_prefix(model.tensors, SELECTOR).items():
            values[name] = type(values[name])(value.item())

    def get_trajectory_segment(self) -> Block:
        """Return the next block."""
        start, steps_before = time.perf_counter(), self._source.steps_done
        with undisturbed():
            seed_everything(block_seed(self._source.seed, self._index, self._block))
            count = self._rounds * len(self._source.pool)
            transitions = list(itertools.islice(self._transitions, count))
        packed = packing.pack(transitions, self._known)
        lazy = packed.pop("lazy")
        frames = packed["frames"]
        arrays = {name: tensor.numpy() for name, tensor in packed.items() if tensor is not None}
        continues, self._known = bool(self._known), () if frames is None else list(frames.numpy())
        restored, self._restored = self._restored, None
        ends = {
            episode.step - steps_before - 1: (episode.total, episode.length) for episode in self._source.pop_episodes()
        }
        self._block += 1
        return Block(arrays, lazy, continues, ends, time.perf_counter() - start, restored)

    def __str__(self) -> str:
        return f"in block {self._block}"


def block_seed(seed: int, player: int, block: int) -> int:
    """Return the 32-bit seed of the random numbers that a player draws in a block."""
    return hashed_seed(seed, player, block, 1)


def block_size(env: gym.Env, transitions: int, envs: int) -> int:
    """Return an upper bound on the bytes of a block's arrays.

    Args:
        env: one of the environments.
        transitions: number of transitions in a block.
        envs: number of environments that take turns.
    """
    stack, frame_shape, dtype = frame_layout(env.observation_space, stacks_frames(env))
    frames = 2 * transitions + stack * envs  # a step adds one frame, and a second one if it ends an episode
    per_transition = 2 * 4 * stack + 1 + 8 + 8  # two states, done, action, reward; see packing.pack
    alignment = 64 * 6
    return frames * math.prod(frame_shape) * dtype.itemsize + transitions * per_transition + alignment


def selector_values(selector: Any) -> dict[str, float]:
    """Return the numbers among an action selector's attributes, such as epsilon. A player needs no others."""
    return {name: value for name, value in vars(selector).items() if isinstance(value, int | float)}


def weights_of(agent: Any, version: int) -> Weights:
    """Return a copy of the model's weights and the selector's values."""
    tensors = {MODEL + name: tensor.detach().to("cpu", copy=True) for name, tensor in agent.model.state_dict().items()}
    for name, value in selector_values(agent.action_selector).items():
        tensors[SELECTOR + name] = torch.tensor(value, dtype=torch.float64)
    return Weights(version, tensors)


def _without_prefix(tensors: Mapping[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
