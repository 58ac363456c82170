"""Action masks: which actions are allowed in a state.

The mask is a part of the state. It goes wherever states go, such as replay buffers, other processes and checkpoints.
The code in between does not need to know about it. A network splits it off and gives invalid actions the value
`lib.nets.masking.INVALID`, so that they are never the best action and are never sampled.
"""

import math
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import describe, guarded
from lib.errors import Fault

INFO_KEY = "action_mask"  # name of the mask in the infos
METHOD_NAME = "action_masks"  # name of the method that returns the mask


class MaskedBox(spaces.Box):
    """Space of states with the action mask appended.

    A vector (n,) becomes (n + actions,). A board (channels, height, width) gets as many channels, and a frame
    (height, width) as many rows, as the mask needs. In a stack of frames, each frame has its own mask.

    Args:
        plain: space of the states without the mask.
        actions: number of actions.
        stacked: whether a state is a stack of frames.
    """

    def __init__(self, plain: spaces.Box, actions: int, stacked: bool = False):
        self.plain = plain
        self.actions = actions
        self.stacked = stacked
        low, high = (
            np.stack([append_mask(frame, mask) for frame in bound]) if stacked else append_mask(bound, mask)
            for bound, mask in ((plain.low, np.zeros(actions)), (plain.high, np.ones(actions)))
        )
        super().__init__(low, high, dtype=low.dtype.type)

    def __eq__(self, other: object) -> bool:
        same_mask = isinstance(other, MaskedBox) and (self.actions, self.stacked) == (other.actions, other.stacked)
        return super().__eq__(other) and same_mask


def append_mask(state: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the state with its mask, (actions,), appended along the first axis and filled up with zeros."""
    rest = state.shape[1:]
    appended = np.zeros((math.ceil(len(mask) / math.prod(rest)), *rest), state.dtype)
    appended.flat[: len(mask)] = mask
    return np.concatenate([state, appended])


def reports_mask(env: gym.Env) -> bool:
    """Return whether an environment reports action masks, in info["action_mask"] or by a method action_masks().

    Args:
        env: environment. It is reset if it has no such method.
    """
    return env.has_wrapper_attr(METHOD_NAME) or INFO_KEY in env.reset(seed=0)[1]


def with_mask_in_info(env: gym.Env) -> gym.Env:
    """Move the action mask, if it is an entry of the Dict observations, to the infos.

    PettingZoo's games report it as observation["action_mask"].
    """
    space = env.observation_space
    is_entry = isinstance(space, spaces.Dict) and INFO_KEY in space.spaces
    return _MaskFromObservation(env) if is_entry else env


class _MaskFromObservation(gym.Wrapper):
    """Move the entry to the infos. If it is the only one, it is the observation as well."""

    def __init__(self, env: gym.Env):
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Dict)
        entries = env.observation_space.spaces
        self._kept = [name for name in entries if name != INFO_KEY] or [INFO_KEY]
        self.observation_space = spaces.Dict({name: entries[name] for name in self._kept})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self._split(*self.env.reset(seed=seed, options=options))

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation, info = self._split(observation, info)
        return observation, reward, terminated, truncated, info

    def _split(self, observation: dict[str, Any], info: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: observation[name] for name in self._kept}, info | {INFO_KEY: observation[INFO_KEY]}


class KeepOnlyMaskInfo(gym.Wrapper):
    """Remove everything from the infos except the action mask.

    Other infos may have any name and shape. gymnasium's vector environments cannot always combine them into one array.

    Raises:
        Fault: if a step reports a mask, but the last reset did not, and the environment has no method for it.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self._has_method = env.has_wrapper_attr(METHOD_NAME)
        self._has_mask = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._has_mask = self._has_method or INFO_KEY in info
        return observation, _mask_info(info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if INFO_KEY in info and not self._has_mask:
            raise Fault(
                f"{describe(self.env)} reports info[{INFO_KEY!r}] at a step, but did not report it at the reset; "
                "it has to report it at every reset and step"
            )
        return observation, reward, terminated, truncated, _mask_info(info)


def _without_mask(info: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in info.items() if name != INFO_KEY}


def _mask_info(info: dict[str, Any]) -> dict[str, Any]:
    return {INFO_KEY: info[INFO_KEY]} if INFO_KEY in info else {}


class AppendMask(gym.Wrapper):
    """Append the action mask that an environment reports to its observations.

    If the last state of an episode allows no action, its mask is set to allow all of them, because no action follows.
    The infos no longer have the mask.

    Args:
        env: environment with a Discrete action space and Box observations of one to three dimensions.

    Raises:
        Fault: if a mask is missing, has the wrong shape or numbers other than 0 and 1, or if it allows no action before
            the episode ends.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        assert isinstance(env.action_space, spaces.Discrete)
        self._actions = int(env.action_space.n)
        self._has_method = env.has_wrapper_attr(METHOD_NAME)
        self.observation_space = MaskedBox(env.observation_space, self._actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return append_mask(observation, self._mask(info, ended=False)), _without_mask(info)

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        mask = self._mask(info, ended=bool(terminated or truncated))
        return append_mask(observation, mask), reward, terminated, truncated, _without_mask(info)

    def _ask(self) -> Any:
        return self.env.get_wrapper_attr(METHOD_NAME)()

    def _mask(self, info: dict[str, Any], ended: bool) -> np.ndarray:
        if not self._has_method and INFO_KEY not in info:
            raise Fault(
                f"{describe(self.env)} reported info[{INFO_KEY!r}] before, but does not report it now; "
                "it has to report it at every reset and step"
            )
        mask = guarded(
            lambda: describe(self.env), lambda: np.asarray(self._ask() if self._has_method else info[INFO_KEY])
        )
        if mask.shape != (self._actions,):
            raise Fault(
                f"{describe(self.env)} reports an action mask of shape {mask.shape}; it has to be ({self._actions},), "
                "one number per action, 0 if the action is not allowed"
            )
        allowed: np.ndarray = mask == 1
        wrong = mask[~(allowed | (mask == 0))]
        if wrong.size:
            raise Fault(
                f"{describe(self.env)} reports an action mask with {wrong[0]}; it has to have 1 for each allowed "
                "action, and 0 for each other one"
            )
        if not allowed.any() and not ended:
            raise Fault(
                f"{describe(self.env)} reports that no action is allowed, but its episode goes on; "
                "a state that allows no action has to end the episode"
            )
        return allowed if allowed.any() else ~allowed
