"""Action masks: which actions are allowed in a state.

The mask is a part of the state. It goes wherever states go, such as replay buffers, other processes and checkpoints.
The code in between does not need to know about it. A network splits it off and gives invalid actions the value
`lib.nets.masking.INVALID`, so that they are never the best action and are never sampled.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import Guard, Info, Reset, Stepped, describe
from lib.errors import Fault

INFO_KEY = "action_mask"  # name of the mask in the infos
METHOD_NAME = "action_masks"  # name of the method that returns the mask


def choices(space: spaces.Space[object]) -> list[int]:
    """Return the number of options of each choice in a Discrete or MultiDiscrete action; none for other spaces."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)]
    return space.nvec.ravel().tolist() if isinstance(space, spaces.MultiDiscrete) else []


class StackedBox(spaces.Box):
    """Space of stacks of frames, (size, *frame_shape). Each state has the frames of the one before, and a newer one."""


class MaskedBox(spaces.Box):
    """Space of states with the action mask appended.

    A vector (n,) becomes (n + actions,). A board (channels, height, width) gets as many channels, and a frame
    (height, width) as many rows, as the mask needs. In a stack of frames, each frame has its own mask.

    Args:
        plain: space of the states without the mask.
        actions: number of actions; for MultiDiscrete, the options of all its choices.
    """

    def __init__(self, plain: spaces.Box, actions: int):
        self.plain = plain
        self.actions = actions
        self.stacked = isinstance(plain, StackedBox)
        low, high = (
            np.stack([append_mask(frame, mask) for frame in bound]) if self.stacked else append_mask(bound, mask)
            for bound, mask in ((plain.low, np.zeros(actions)), (plain.high, np.ones(actions)))
        )
        super().__init__(low, high, dtype=low.dtype.type)


def append_mask(state: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the state with its mask, (actions,), appended along the first axis and filled up with zeros."""
    rest = state.shape[1:]
    appended = np.zeros((math.ceil(len(mask) / math.prod(rest)), *rest), state.dtype)
    appended.flat[: len(mask)] = mask
    return np.concatenate([state, appended])


class TakeMask(gym.Wrapper):
    """Take the action mask out of the observations and infos. The infos are empty afterwards.

    An environment may report it by a method action_masks(), as observation["action_mask"] of a Dict, as PettingZoo's
    games do, or as info["action_mask"]. gymnasium's vector environments cannot combine every other info. The mask of a
    MultiDiscrete action is one array, or a tuple with one for each choice.

    If the last state of an episode allows no action, its mask is set to allow all of them, because no action follows.

    Args:
        env: environment with any action space; only Discrete and MultiDiscrete ones can have masks.

    Raises:
        Fault: by `reset` and `step`, if the mask is wrong, if only some of the steps have one, or if no action is
            allowed before the episode ends.

    Attributes:
        masked: whether the environment reports masks; `find_mask` finds out.
        mask: mask of the newest observation, (options,) bool.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.masked = False
        self._choices = choices(env.action_space)
        self.mask = np.ones(sum(self._choices), bool)
        self._has_method = env.has_wrapper_attr(METHOD_NAME)
        space = env.observation_space
        self._entries: list[str] = []  # of the observation, if it has the mask as well
        if isinstance(space, spaces.Dict) and INFO_KEY in space.spaces:
            self._entries = [name for name in space.spaces if name != INFO_KEY] or [INFO_KEY]
            self.observation_space = spaces.Dict({name: space[name] for name in self._entries})

    def find_mask(self) -> None:
        """Set `masked`. The environment is reset if it could report masks only in its infos."""
        self.masked = self._has_method or bool(self._entries) or INFO_KEY in self.env.reset(seed=0)[1]

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._take(observation, info, ended=False), {}

    def step(self, action: object) -> Stepped:
        observation, reward, terminated, truncated, info = self.env.step(action)
        observation = self._take(observation, info, ended=bool(terminated or truncated))
        return observation, reward, terminated, truncated, {}

    def _take(self, observation: Any, info: Info, ended: bool) -> Any:
        """Set `mask`, and return the observation without it."""
        mask = observation[INFO_KEY] if self._entries else info.get(INFO_KEY)
        if self._has_method:
            with Guard(lambda: describe(self.env)):
                mask = self.env.get_wrapper_attr(METHOD_NAME)()
        if (mask is not None) != self.masked:
            raise Fault(
                f"{describe(self.env)} reports info[{INFO_KEY!r}] at some resets and steps only; "
                "it has to report it at every one"
            )
        if mask is not None:
            parts = mask if isinstance(mask, tuple) else [mask]
            self.mask = self._checked(np.concatenate([np.ravel(part) for part in parts]), ended)
        return {name: observation[name] for name in self._entries} if self._entries else observation

    def _checked(self, mask: np.ndarray, ended: bool) -> np.ndarray:
        allowed: np.ndarray = mask == 1
        if mask.shape != self.mask.shape or not (allowed | (mask == 0)).all():
            raise Fault(
                f"{describe(self.env)} reports the action mask {mask}; it has to have {len(self.mask)} numbers, 1 for "
                "each allowed action and 0 for each other one"
            )
        for options in np.split(allowed, np.cumsum(self._choices)[:-1]):
            if not options.any() and not ended:
                raise Fault(
                    f"{describe(self.env)} reports that no action is allowed, but its episode goes on; "
                    "a state that allows no action has to end the episode"
                )
            options |= not options.any()
        return allowed


class AppendMask(gym.ObservationWrapper):
    """Append the action mask to the observations.

    Args:
        env: environment with Box observations of one to three dimensions.
        source: the wrapper in it that has the mask.
    """

    def __init__(self, env: gym.Env, source: TakeMask):
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        self.observation_space = MaskedBox(env.observation_space, len(source.mask))
        self._source = source

    def observation(self, observation: np.ndarray) -> np.ndarray:
        return append_mask(observation, self._source.mask)
