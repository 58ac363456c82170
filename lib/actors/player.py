"""Players: actors that play blocks of transitions for chapter 9's parallel scripts."""

import dataclasses
import itertools
import math
import time
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from lib.actors.contract import Weights
from lib.envs.frames import frame_layout, stacks_frames
from lib.experience.episodes import Episode
from lib.experience.source import ExperienceSourceFirstLast
from lib.experience.stream import FrameStep
from lib.system.seeds import hashed_seed, seed_everything, undisturbed

MODEL, SELECTOR = "model.", "selector."  # prefixes of the names of weights


@dataclasses.dataclass
class Block:
    """Segment of a player: steps of its environments.

    Attributes:
        arrays: the arrays of FrameStep, each (rounds, num_envs, ...), and "states", the states after the block.
        episodes: episodes that ended, without traces, by the index of their last transition.
        seconds: time in which the block was played.
        restored: snapshot before the first block of a new player; None in later blocks.
    """

    arrays: dict[str, np.ndarray]
    episodes: dict[int, Episode]
    seconds: float
    restored: dict[str, Any] | None


class Player:
    """Actor that plays blocks in the environments of an experience source.

    Args:
        index: index of the player.
        state: the source, which must be unused; the number of the first block; and the snapshot to restore, in which
            states are None if its environments have not been reset yet.
        rounds: steps of each environment in a block.
    """

    def __init__(self, index: int, state: tuple[ExperienceSourceFirstLast, int, dict[str, Any]], rounds: int):
        self._index = index
        self._source, self._block, snapshot = state
        self._rounds = rounds
        if snapshot["states"] is not None:
            self._source.restore(snapshot)
        self._source.begin()
        self._restored: dict[str, Any] | None = self._source.snapshot()
        self._steps = self._source.steps()

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
            columns = zip(*itertools.islice(self._steps, self._rounds), strict=True)
            arrays = {name: np.stack(column) for name, column in zip(FrameStep._fields, columns, strict=True)}
        restored, self._restored = self._restored, None
        episodes = {}
        for episode in self._source.pop_episodes():
            rounds = (episode.step - steps_before) // len(self._source.pool) - 1
            episodes[rounds * len(self._source.pool) + episode.env] = episode._replace(trace=None)
        self._block += 1
        return Block(arrays | {"states": self._source.states}, episodes, time.perf_counter() - start, restored)

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
    frame = math.prod(frame_shape) * dtype.itemsize
    alignment = 64 * (len(FrameStep._fields) + 1)
    return (2 * transitions + stack * envs) * frame + transitions * (8 + 8 + 1 + 1) + alignment


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
