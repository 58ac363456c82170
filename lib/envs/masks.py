"""Action masks: which actions are allowed in a state.

The mask is a part of the state. It goes wherever states go, such as replay buffers, other processes and checkpoints.
The code in between does not need to know about it. A network splits it off and gives invalid actions the value
`lib.nets.masking.INVALID`, so that they are never the best action and are never sampled.
"""

import math
from typing import Any

import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import CheckedEnv, Info
from lib.errors import Fault
from lib.system.seeds import undisturbed

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
    """Return the state with its mask, (actions,), appended along the first axis and padded with zeros."""
    rest = state.shape[1:]
    appended = np.zeros((math.ceil(len(mask) / math.prod(rest)), *rest), state.dtype)
    appended.flat[: len(mask)] = mask
    return np.concatenate([state, appended])


class Masks:
    """Reads the action masks that an environment reports.

    They may come from a method action_masks(), as observation["action_mask"] of a Dict, as in PettingZoo's games, or as
    info["action_mask"]. The mask of a MultiDiscrete action is one array, or a tuple with one for each choice.

    If the last state of an episode allows no action, its mask is set to allow all of them, because no action follows.

    Args:
        env: environment with any action space; only Discrete and MultiDiscrete ones can have masks.
        reported: whether it reports masks; None to find out, which resets it if only its infos could have them.

    Attributes:
        observation_space: space of the observations without their masks.
        reported: see Args.
        size: number of options of all choices.
    """

    def __init__(self, env: CheckedEnv, reported: bool | None = None):
        self._env = env
        self._choices = choices(env.action_space)
        self.size = sum(self._choices)
        self._has_method = env.has_wrapper_attr(METHOD_NAME)
        self.observation_space = space = env.observation_space
        self._entries: list[str] = []  # of the observation, if it has the mask as well
        if isinstance(space, spaces.Dict) and INFO_KEY in space.spaces:
            self._entries = [name for name in space.spaces if name != INFO_KEY] or [INFO_KEY]
            self.observation_space = spaces.Dict({name: space[name] for name in self._entries})
        if reported is None:
            with undisturbed():  # the reset may seed the global generators
                reported = self._has_method or bool(self._entries) or INFO_KEY in env.reset(seed=0)[1]
        self.reported = reported

    def take(self, observation: Any, info: Info, ended: bool) -> tuple[Any, np.ndarray | None]:
        """Return the observation of a reset or step without its mask, and the mask, (size,) bool, or None.

        Raises:
            Fault: if the mask is wrong, if only some of the steps have one, or if no action is allowed before the
                episode ends.
        """
        mask = observation[INFO_KEY] if self._entries else info.get(INFO_KEY)
        if self._has_method:
            with self._env.guard:
                mask = self._env.get_wrapper_attr(METHOD_NAME)()
        if (mask is not None) != self.reported:
            raise Fault(
                f"{self._env.describe()} reports info[{INFO_KEY!r}] at some resets and steps only; "
                "it has to report it at every one"
            )
        if self._entries:
            observation = {name: observation[name] for name in self._entries}
        if mask is not None:
            parts = mask if isinstance(mask, tuple) else [mask]
            mask = self._checked(np.concatenate([np.ravel(part) for part in parts]), ended)
        return observation, mask

    def _checked(self, mask: np.ndarray, ended: bool) -> np.ndarray:
        allowed: np.ndarray = mask == 1
        if mask.shape != (self.size,) or not (allowed | (mask == 0)).all():
            raise Fault(
                f"{self._env.describe()} reports the action mask {mask}; it has to have {self.size} numbers, 1 for "
                "each allowed action and 0 for each other one"
            )
        for options in np.split(allowed, np.cumsum(self._choices)[:-1]):
            if not options.any() and not ended:
                raise Fault(
                    f"{self._env.describe()} reports that no action is allowed, but its episode goes on; "
                    "a state that allows no action has to end the episode"
                )
            options |= not options.any()
        return allowed
