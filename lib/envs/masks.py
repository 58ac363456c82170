"""Actions that are not allowed in every state: the mask of those that are travels as a part of the state.

So it goes wherever states go, through replays, to other processes, into checkpoints, and nobody on the way has to know
of it. A network takes it off again and gives INVALID for what is not allowed; whoever chooses by its values, in acting
or in targets, or draws from its logits, never chooses that.
"""

from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.errors import Fault, UsageError

KEY, METHOD = "action_mask", "action_masks"


class MaskedBox(spaces.Box):
    """States that end with the mask: (numbers + actions,), or (..., height + rows, width), the same in every channel.

    Attributes:
        plain: the states without it.
        actions: how many there are.
    """

    def __init__(self, plain: spaces.Box, actions: int):
        self.plain = plain
        self.actions = actions
        low, high = append_mask(plain.low, np.zeros(actions)), append_mask(plain.high, np.ones(actions))
        super().__init__(low, high, dtype=low.dtype.type)

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, MaskedBox) and self.actions == other.actions


def append_mask(state: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """A state that ends with a mask (actions,); see MaskedBox."""
    if state.ndim == 1:
        return np.concatenate([state, mask.astype(state.dtype)])
    width = state.shape[-1]
    rows = np.zeros((-(-len(mask) // width), width), state.dtype)
    rows.flat[: len(mask)] = mask
    return np.concatenate([state, np.broadcast_to(rows, (*state.shape[:-2], *rows.shape))], axis=-2)


def reports_mask(env: gym.Env) -> bool:
    """Whether an environment tells which actions are allowed: by info["action_mask"], or by a method action_masks().

    Args:
        env: one to try; it may be reset.
    """
    return env.has_wrapper_attr(METHOD) or KEY in env.reset(seed=0)[1]


class KeepMaskInfo(gym.Wrapper):
    """Leaves of the infos only the mask: others may have any name and shape, and some cannot be put side by side."""

    _at_reset = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        self._at_reset = KEY in info
        return observation, self._left(info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if KEY in info and not self._at_reset:
            raise Fault(
                f"{self.env} gives info[{KEY!r}] at a step, but gave none at the reset; it has to be there always"
            )
        return observation, reward, terminated, truncated, self._left(info)

    @staticmethod
    def _left(info: dict[str, Any]) -> dict[str, Any]:
        return {KEY: info[KEY]} if KEY in info else {}


class AppendMask(gym.Wrapper):
    """Puts the mask that an environment reports behind its observations.

    The last state of an episode may allow nothing; then its mask allows everything, as no action follows.

    Args:
        env: of Discrete actions and observations that are a Box of one to three dimensions.

    Raises:
        UsageError: what is reported is no mask.
        Fault: it is not there any more, or allows nothing in a state that goes on.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        assert isinstance(env.action_space, spaces.Discrete)
        self._actions = int(env.action_space.n)
        self._asked = env.has_wrapper_attr(METHOD)
        self.observation_space = MaskedBox(env.observation_space, self._actions)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return append_mask(observation, self._mask(info, False)), info

    def step(self, action: Any) -> tuple[np.ndarray, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        mask = self._mask(info, bool(terminated or truncated))
        return append_mask(observation, mask), reward, terminated, truncated, info

    def _mask(self, info: dict[str, Any], ended: bool) -> np.ndarray:
        if not self._asked and KEY not in info:
            raise Fault(f"{self.env} gave info[{KEY!r}] at a reset, but not now; it has to be there always")
        mask = np.asarray(self.env.get_wrapper_attr(METHOD)() if self._asked else info[KEY])
        if mask.shape != (self._actions,):
            raise UsageError(
                f"{self.env} reports an action mask of shape {mask.shape}; it has to be ({self._actions},), "
                "one number an action, 0 where it is not allowed"
            )
        allowed = mask != 0
        if allowed.any():
            return allowed
        if not ended:
            raise Fault(f"{self.env} reports that no action is allowed, but its episode goes on; it has to end there")
        return ~allowed
