"""States: observations as the networks take them, with the action mask."""

import logging
import textwrap
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import CheckedEnv, Info, Reset, Stepped, guard
from lib.envs.frames import STACK, FrameStrip
from lib.envs.masks import CompositeBox, MaskedBox, StackedBox, append_mask, choices
from lib.envs.observations import log_once, observation_kind, prepare
from lib.errors import Fault
from lib.system.seeds import undisturbed

INFO_KEY = "action_mask"  # name of the mask in the infos
METHOD_NAME = "action_masks"  # name of the method that returns the mask


class States(gym.Wrapper):
    """Convert observations to states. The infos are empty, because gymnasium cannot combine every other info.

    Grey images are stacked. Their states are LazyFrames, unless the observation is a Dict or Tuple with an image or a
    board beside other parts. Then the state is one vector, of which a network encodes every part as it would alone; see
    lib.nets.encoders.CompositeEncoder.

    Action masks may come from a method action_masks(), as observation["action_mask"] of a Dict, as in PettingZoo's
    games, or as info["action_mask"]. The mask of a MultiDiscrete action is one array, or a tuple with one for each
    choice. If the last state of an episode allows no action, its mask allows all of them, because no action follows.

    Args:
        env: environment with any observation space. Only Discrete and MultiDiscrete actions can have masks.
        channel_axis: see observations.prepare.
        masked: whether the environment reports action masks; None to find out, which resets it if only its infos could
            have them.

    Raises:
        Fault: by reset and step, if a mask is wrong, if only some of the steps have one, or if no action is allowed
            before the episode ends.

    Attributes:
        conversions: how observations become states, for people.
    """

    env: CheckedEnv

    def __init__(self, env: CheckedEnv, channel_axis: object = None, masked: bool | None = None):
        super().__init__(env)
        space = env.observation_space
        self._choices = choices(env.action_space)
        self._has_method = env.has_wrapper_attr(METHOD_NAME)
        self._is_observed = isinstance(space, spaces.Dict) and INFO_KEY in space.spaces
        if isinstance(space, spaces.Dict) and self._is_observed and len(space) > 1:
            space = spaces.Dict({name: part for name, part in space.items() if name != INFO_KEY})
        if masked is None:
            with undisturbed():  # the reset may seed the global generators
                masked = self._has_method or self._is_observed or INFO_KEY in env.reset(seed=0)[1]
        self._masked = masked
        self._parts = prepare(space, env.env_id, channel_axis)
        self._strips = {i: FrameStrip(STACK) for i, part in enumerate(self._parts) if len(part.space.shape) == 2}
        parts = [part.space for part in self._parts]
        for index in self._strips:
            parts[index] = StackedBox(parts[index], STACK)
            self._parts[index].notes.append("the last four frames; at first, copies of the first one")
        state_space, self.conversions = parts[0], self._parts[0].notes
        if len(parts) > 1:
            state_space = CompositeBox(parts)
            self.conversions = ["one vector of these parts, each flattened"] + [
                f"{observation_kind(state.shape)} {state.shape} {'; '.join(part.notes)}"
                for part, state in zip(self._parts, parts, strict=True)
            ]
        if masked:
            state_space = MaskedBox(state_space, sum(self._choices))
            self.conversions.append("the action mask appended: 1 for each valid action")
        self.observation_space = state_space
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

    def _state(self, observation: Any, info: Info, is_first: bool, ended: bool) -> Any:
        mask = observation[INFO_KEY] if self._is_observed else info.get(INFO_KEY)
        if self._has_method:
            with guard(self.env.describe):
                mask = self.env.get_wrapper_attr(METHOD_NAME)()
        if (mask is not None) != self._masked:
            raise Fault(
                f"{self.env.describe()} reports info[{INFO_KEY!r}] at some resets and steps only; "
                "it has to report it at every one"
            )
        mask = None if mask is None else self._checked(mask, ended)
        states: list[Any] = [part(observation) for part in self._parts]
        if mask is not None and len(states) == 1:  # before frames are stacked, because each frame has its own mask
            states = [append_mask(states[0], mask)]
        for index, strip in self._strips.items():
            frame = states[index]
            states[index] = strip.start([frame] * STACK) if is_first else strip.append(frame)
        if len(states) == 1:
            return states[0]
        state = np.concatenate([np.ravel(state) for state in states])
        return state if mask is None else append_mask(state, mask)

    def _checked(self, reported: Any, ended: bool) -> np.ndarray:
        """Return a mask as one array, (options of all choices,) bool."""
        parts = reported if isinstance(reported, tuple) else [reported]
        mask = np.concatenate([np.ravel(part) for part in parts])
        allowed: np.ndarray = mask == 1
        if len(mask) != sum(self._choices) or not (allowed | (mask == 0)).all():
            raise Fault(
                f"{self.env.describe()} reports the action mask {mask}; it has to have {sum(self._choices)} numbers, 1 "
                "for each allowed action and 0 for each other one"
            )
        for options in np.split(allowed, np.cumsum(self._choices)[:-1]):
            if not options.any() and not ended:
                raise Fault(
                    f"{self.env.describe()} reports that no action is allowed, but its episode goes on; "
                    "a state that allows no action has to end the episode"
                )
            options |= not options.any()
        return allowed
