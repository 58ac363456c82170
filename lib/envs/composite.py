"""Composite observations: Dict and Tuple spaces that hold pictures beside other parts.

The state is one vector, so that it goes wherever states go, such as replay buffers, other processes and checkpoints. A
network takes it apart again, and encodes every part as it would alone; see lib.nets.encoders.CompositeEncoder.
"""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import ResizeObservation

from lib.envs import observations
from lib.envs.atari import SCREEN
from lib.envs.checked_env import wrappers
from lib.envs.frames import FrameStrip
from lib.envs.observations import ObservationKind

STACK = 4  # newest images in a state


class CompositeBox(spaces.Box):
    """Space of states that are the parts' states, flattened, one after the other.

    Args:
        parts: spaces of the parts: images, boards and vectors.
    """

    def __init__(self, parts: list[spaces.Box]):
        self.parts = parts
        low, high = (np.concatenate([getattr(part, bound).ravel() for part in parts]) for bound in ("low", "high"))
        super().__init__(low, high, dtype=low.dtype.type)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, CompositeBox) and self.parts == other.parts


class Part(gym.Env):
    """Part of an observation, as an environment that only has its space, so that wrappers of observations fit it."""

    def __init__(self, space: spaces.Space[Any]):
        self.observation_space = space


class Converter:
    """Function from a part's observation to its state, an image (84, 84), a board or a vector.

    Args:
        space: space of the part.
        name: name of the part, for messages.

    Raises:
        UsageError: see observations.prepare.
    """

    def __init__(self, space: spaces.Space[Any], name: str):
        env, kind = observations.prepare(Part(space), name)
        self.is_image = kind is ObservationKind.IMAGE
        if self.is_image:
            note = f"resized to {SCREEN} x {SCREEN} by area, the last {STACK} frames"
            env = observations.noted(ResizeObservation(env, (SCREEN, SCREEN)), note)
        self._wrappers = [each for each in wrappers(env) if isinstance(each, gym.ObservationWrapper)][::-1]
        assert isinstance(env.observation_space, spaces.Box)
        self.space = env.observation_space
        self.conversions = observations.conversions(env)

    def __call__(self, observation: Any) -> np.ndarray:
        for wrapper in self._wrappers:
            observation = wrapper.observation(observation)
        return np.asarray(observation)


def is_composite(space: spaces.Space[Any]) -> bool:
    """Return whether a space is a Dict or Tuple that has an image or a board beside another part."""
    usable = [part for _, part in observations.leaves(space) if observations.can_flatten(part)]
    return len(usable) > 1 and any(map(_is_picture, usable))


def _is_picture(space: spaces.Space[Any]) -> bool:
    return len(space.shape or ()) in (2, 3)


class CompositeObservation(gym.Wrapper):
    """Convert composite observations to vectors: first the images and boards, then all other parts as one vector.

    Images are stacked, as those of other environments; after a reset, the first one fills the stack.

    Args:
        env: environment whose observation space `is_composite`.
        env_id: its id, for messages.
    """

    def __init__(self, env: gym.Env, env_id: str):
        super().__init__(env)
        parts = dict(observations.leaves(env.observation_space))
        usable = {place: part for place, part in parts.items() if observations.can_flatten(part)}
        observations.warn_about_unusable(env_id, [_name(place) for place in parts if place not in usable])
        self._others = [place for place, part in usable.items() if not _is_picture(part)]
        self._converters = {
            place: Converter(part, f"{env_id}, {_name(place)}") for place, part in usable.items() if _is_picture(part)
        }
        if self._others:
            others = spaces.Dict({_name(place): usable[place] for place in self._others})
            self._converters[()] = Converter(others, env_id)
        self._stacks = {place: FrameStrip(STACK) for place, each in self._converters.items() if each.is_image}
        image = spaces.Box(0, 255, (STACK, SCREEN, SCREEN), np.uint8)
        self.parts = {
            _name(place) or "others": image if each.is_image else each.space for place, each in self._converters.items()
        }
        self.observation_space = CompositeBox(list(self.parts.values()))
        described = [
            f"{name} {space.shape}: {'; '.join(converter.conversions) or 'unchanged'}"
            for (name, space), converter in zip(self.parts.items(), self._converters.values(), strict=True)
        ]
        observations.noted(self, f"one vector of the parts {', '.join(described)}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._state(observation, is_first=True), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._state(observation, is_first=False), reward, terminated, truncated, info

    def _state(self, observation: Any, is_first: bool) -> np.ndarray:
        states = []
        for place, converter in self._converters.items():
            if place:
                part = _part(observation, place)
            else:
                part = {_name(each): _part(observation, each) for each in self._others}
            state = converter(part)
            if stack := self._stacks.get(place):
                state = np.asarray(stack.start([state] * STACK) if is_first else stack.append(state))
            states.append(state.ravel())
        return np.concatenate(states, dtype=self.observation_space.dtype)


def _name(place: observations.Place) -> str:
    return "".join(f"[{each!r}]" for each in place)


def _part(observation: Any, place: observations.Place) -> Any:
    for each in place:
        observation = observation[each]
    return observation
