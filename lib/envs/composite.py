"""Composite observations: Dict and Tuple spaces that hold pictures beside other parts.

The state is one vector, so that it goes wherever states go, such as replay buffers, other processes and checkpoints. A
network takes it apart again, and encodes every part as it would alone; see lib.nets.encoders.CompositeEncoder.
"""

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import Info, Reset, Stepped
from lib.envs.frames import stack_images
from lib.envs.observations import (
    USABLE,
    Place,
    conversions,
    is_picture,
    leaves,
    name_of,
    noted,
    observation_kind,
    part_of,
    prepare,
    usable_parts,
)


class CompositeBox(spaces.Box):
    """Space of states that are the parts' states, flattened, one after the other.

    Args:
        parts: spaces of the parts: images, boards and vectors.
    """

    def __init__(self, parts: list[spaces.Box]):
        self.parts = parts
        low, high = (np.concatenate([getattr(part, bound).ravel() for part in parts]) for bound in ("low", "high"))
        super().__init__(low, high, dtype=low.dtype.type)


class Part(gym.Env):
    """Part of another environment's observations, as an environment of its own, so that wrappers fit it.

    Attributes:
        observation: what `reset` and `step` return.
    """

    def __init__(self, space: spaces.Space[object]):
        self.observation_space = space
        self.observation: object = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        return self.observation, {}

    def step(self, action: object) -> Stepped:
        return self.observation, 0.0, False, False, {}


def is_composite(space: spaces.Space[object]) -> bool:
    """Return whether a space is a Dict or Tuple that has an image or a board beside another part."""
    usable = [part for _, part in leaves(space) if isinstance(part, USABLE)]
    return len(usable) > 1 and any(map(is_picture, usable))


class CompositeObservation(gym.Wrapper):
    """Convert composite observations to vectors: first the images and boards, then all other parts as one vector.

    Every part becomes a state as if it were alone; see make_env.

    Args:
        env: environment whose observation space `is_composite`.
        env_id, channel_axis: see observations.prepare.
    """

    def __init__(self, env: gym.Env, env_id: str, channel_axis: object = None):
        super().__init__(env)
        usable = usable_parts(env.observation_space, env_id)
        self._others = [place for place, part in usable.items() if not is_picture(part)]
        given = {place: part for place, part in usable.items() if is_picture(part)}
        if self._others:
            given[()] = spaces.Tuple([usable[place] for place in self._others])
        self._envs = {
            place: stack_images(prepare(Part(part), f"{env_id}, {name_of(place)}", channel_axis))
            for place, part in given.items()
        }
        states: dict[Place, Any] = {place: part.observation_space for place, part in self._envs.items()}
        self.observation_space = CompositeBox(list(states.values()))
        others = " and ".join(map(name_of, self._others))
        notes = [
            f"{name_of(place) or others}, {observation_kind(states[place])} {states[place].shape}: "
            f"{'; '.join(conversions(part)) or 'unchanged'}"
            for place, part in self._envs.items()
        ]
        noted(self, "one vector of these parts", *notes)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._state(observation, is_first=True), info

    def step(self, action: object) -> Stepped:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._state(observation, is_first=False), reward, terminated, truncated, info

    def _state(self, observation: object, is_first: bool) -> np.ndarray:
        states = []
        for place, env in self._envs.items():
            part: Any = env.unwrapped
            others = tuple(part_of(observation, each) for each in self._others)
            part.observation = part_of(observation, place) if place else others
            state, *_ = env.reset() if is_first else env.step(None)
            states.append(np.ravel(state))
        return np.concatenate(states, dtype=self.observation_space.dtype)
