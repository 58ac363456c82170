"""Atari games: DeepMind's preprocessing, a faster version of it, and resets with a given number of no-ops."""

from types import SimpleNamespace
from typing import Any

import ale_py
import cv2
import gymnasium as gym
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import (
    AtariPreprocessing,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    TransformReward,
)

from lib.envs.checked_env import Info
from lib.errors import UsageError

FRAME_SKIP = 4  # emulator frames per agent step
NOOP_MAX = 30  # maximum number of no-op actions at the start of an episode
SCREEN = 84  # height and width of a preprocessed screen, in pixels; see single_env.screen_size

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
gym.register_envs(ale_py)


def preprocess(env: gym.Env, tweaked: bool = False, screen: int = SCREEN) -> gym.Env:
    """Wrap an Atari game with frame skip 1 in gymnasium's preprocessing, or in DirectAtari if it is tweaked.

    Observations are (screen, screen) uint8. The return of an episode is the sum of its rewards before they are clipped
    to [-1, 1].

    Raises:
        UsageError: if the game has wrappers for observations, which would have no effect.
    """
    each = env
    while isinstance(each, gym.Wrapper):
        if isinstance(each, gym.ObservationWrapper) or each.observation_space != each.env.observation_space:
            raise UsageError(
                f"{env} is registered with wrappers that have no effect here. States are made from the emulator's "
                "screen; register it without them"
            )
        each = each.env
    if tweaked and has_only_checking_wrappers(env):
        env = DirectAtari(env, screen)
    else:
        env = AtariPreprocessing(env, noop_max=NOOP_MAX, frame_skip=FRAME_SKIP, screen_size=screen)
    # ClipReward takes ten times as long.
    return TransformReward(RecordEpisodeStatistics(env), lambda reward: max(-1.0, min(1.0, float(reward))))


class DirectAtari(gym.Wrapper):
    """Faster version of AtariPreprocessing, which calls the emulator of an AtariEnv with frame skip 1 directly.

    AtariEnv fetches a colour screen after every frame, but only grey screens are used. This wrapper bypasses it and
    gymnasium's checking wrappers. Observations, rewards and episode ends are those of AtariPreprocessing; the infos are
    empty.
    """

    def __init__(self, env: gym.Env, screen: int):
        super().__init__(env.unwrapped)
        self._emulator: Any = env.unwrapped
        self._shape = screen, screen
        self.observation_space = spaces.Box(0, 255, self._shape, np.uint8)
        size = (self.env.observation_space.shape or ())[:2]
        self._screen, self._previous_screen = np.zeros((2, *size), np.uint8)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        self.env.reset(seed=seed, options=options)
        for _ in range(self.unwrapped.np_random.integers(1, NOOP_MAX + 1)):
            _, _, terminated, truncated, _ = self.env.step(0)
            if terminated or truncated:
                self.env.reset(seed=seed, options=options)
        self._emulator.ale.getScreenGrayscale(self._screen)
        self._previous_screen.fill(0)
        return self._observation(), {}

    def step(self, action: object) -> tuple[np.ndarray, float, bool, bool, Info]:
        ale = self._emulator.ale
        ale_action = self._emulator._action_set[action]
        reward, terminated, truncated = 0.0, False, False
        for frame in range(FRAME_SKIP):
            reward += ale.act(ale_action)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if terminated or truncated:
                break  # AtariPreprocessing does not fetch this frame either
            if frame == FRAME_SKIP - 2:
                ale.getScreenGrayscale(self._previous_screen)
            elif frame == FRAME_SKIP - 1:
                ale.getScreenGrayscale(self._screen)
        return self._observation(), reward, terminated, truncated, {}

    def _observation(self) -> np.ndarray:
        # The maximum of the last two frames of a step, because some games draw their objects on every second frame.
        np.maximum(self._screen, self._previous_screen, out=self._screen)
        observation: np.ndarray = cv2.resize(self._screen, self._shape, interpolation=cv2.INTER_AREA)
        return observation


def reset_with_no_ops(env: gym.Env, no_ops: int) -> object:
    """Reset an Atari game without a seed, and start the episode with a given number of no-op actions.

    The number stays fixed for later resets, until one of them has a seed. The first observation of the episode is
    returned.
    """
    # The preprocessing draws the number from this generator.
    env.unwrapped.np_random = SimpleNamespace(integers=lambda low, high: no_ops)  # type: ignore[assignment]
    return env.reset()[0]


def counted(env: gym.Env) -> gym.Env:
    """Return an environment whose attributes episode_returns and episode_lengths count without clipping of rewards."""
    return env if env.has_wrapper_attr("episode_returns") else RecordEpisodeStatistics(env)


def is_atari(env: gym.Env) -> bool:
    """Return whether an environment, wrapped or not, is an Atari game."""
    return isinstance(env.unwrapped, ale_py.AtariEnv)


def frame_skip(env: gym.Env | VectorEnv) -> int:
    """Return the emulator frames per agent step; 1 if the environment, or each of several, is not an Atari game."""
    return FRAME_SKIP if isinstance(env.unwrapped, ale_py.AtariEnv | AtariVectorEnv) else 1


def has_only_checking_wrappers(env: gym.Env) -> bool:
    """Return whether all wrappers of an environment only check how it is used. Such wrappers can be left out."""
    while isinstance(env, PassiveEnvChecker | OrderEnforcing):
        env = env.env
    return env is env.unwrapped
