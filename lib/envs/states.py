"""States: observations as the networks take them, with the action mask."""

import logging
import textwrap
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import CheckedEnv, Info, Reset, Stepped
from lib.envs.frames import STACK, FrameStrip, stack_of
from lib.envs.masks import MaskedBox, Masks, append_mask
from lib.envs.observations import log_once, observation_kind, prepare


class CompositeBox(spaces.Box):
    """Space of states that are the parts' states, flattened, one after the other.

    Args:
        parts: spaces of the parts: images, boards and vectors.
    """

    def __init__(self, parts: list[spaces.Box]):
        self.parts = parts
        low, high = (np.concatenate([getattr(part, bound).ravel() for part in parts]) for bound in ("low", "high"))
        super().__init__(low, high, dtype=low.dtype.type)


class States(gym.Wrapper):
    """Convert observations to states. The infos are empty, because gymnasium cannot combine every other info.

    The state of a Dict or Tuple with an image or a board beside other parts is one vector, so that it goes wherever
    states go, such as replay buffers, other processes and checkpoints. A network takes it apart again, and encodes
    every part as it would alone; see lib.nets.encoders.CompositeEncoder. Grey images are stacked in it.

    Args:
        env: environment with any observation space.
        channel_axis: see observations.prepare.
        masked: whether the environment reports action masks; None to find out, which may reset it.

    Attributes:
        conversions: how observations become states, for people.
    """

    def __init__(self, env: CheckedEnv, channel_axis: object = None, masked: bool | None = None):
        super().__init__(env)
        self._masks = Masks(env, masked)
        self._parts = prepare(self._masks.observation_space, env.env_id, channel_axis)
        self._strips: dict[int, FrameStrip] = {}
        parts = [part.space for part in self._parts]
        if len(parts) == 1:
            space, only = parts[0], self._parts[0]
            self.conversions = [f"from {only.name}", *only.notes] if only.name else only.notes
        else:
            self._strips = {index: FrameStrip(STACK) for index, part in enumerate(parts) if len(part.shape) == 2}
            parts = [stack_of(part, STACK) if index in self._strips else part for index, part in enumerate(parts)]
            space = CompositeBox(parts)
            self.conversions = ["one vector of these parts"] + [
                f"{part.name}, {observation_kind(state)} {state.shape}: {'; '.join(part.notes) or 'unchanged'}"
                for part, state in zip(self._parts, parts, strict=True)
            ]
        if self._masks.reported:
            space = MaskedBox(space, self._masks.size)
            self.conversions.append("the action mask appended; see lib/envs/masks.py")
        self.observation_space = space
        if self.conversions:
            notes = textwrap.shorten("; ".join(self.conversions), 400)
            log_once(logging.INFO, f"{env.env_id}: how observations become states: {notes}.")

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._state(observation, info, is_first=True, ended=False), {}

    def step(self, action: object) -> Stepped:
        observation, reward, terminated, truncated, info = self.env.step(action)
        state = self._state(observation, info, is_first=False, ended=terminated or truncated)
        return state, reward, terminated, truncated, {}

    def _state(self, observation: Any, info: Info, is_first: bool, ended: bool) -> np.ndarray:
        observation, mask = self._masks.take(observation, info, ended)
        states: list[Any] = [part(observation) for part in self._parts]
        for index, strip in self._strips.items():
            frame = states[index]
            states[index] = strip.start([frame] * STACK) if is_first else strip.append(frame)
        if len(states) > 1:
            states = [np.concatenate([np.ravel(state) for state in states])]
        [state] = states
        return state if mask is None else append_mask(state, mask)
