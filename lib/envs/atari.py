"""Atari games: DeepMind preprocessing in one step, and access to the emulator."""

from typing import Any

import ale_py
import cv2
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    AtariPreprocessing,
    ClipReward,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
)

FRAME_SKIP = 4


NOOP_MAX = 30


SCREEN = 84


ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)


gym.register_envs(ale_py)


class DirectAtari(gym.Wrapper):
    """AtariPreprocessing, RecordEpisodeStatistics and ClipReward in one step on the emulator itself.

    The colour screens that AtariEnv fetches after every frame, and nobody looks at, are not fetched, and gymnasium's
    checking wrappers are left out. States, rewards and ends are the same; of the infos there is only the episode's.

    Args:
        env: an AtariEnv of frame skip 1, wrapped or not.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env.unwrapped)
        self.observation_space = spaces.Box(0, 255, (SCREEN, SCREEN), np.uint8)
        height, width = self.unwrapped.observation_space.shape[:2]  # type: ignore[index]
        self._newer, self._older = np.zeros((2, height, width), np.uint8)
        self._total, self._length = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        for _ in range(self.unwrapped.np_random.integers(1, NOOP_MAX + 1)):
            _, _, terminated, truncated, _ = self.env.step(0)
            if terminated or truncated:
                self.env.reset(seed=seed, options=options)
        emulator: Any = self.env
        emulator.ale.getScreenGrayscale(self._newer)
        self._older.fill(0)
        self._total, self._length = 0.0, 0
        return self._frame(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        emulator: Any = self.env
        ale, action = emulator.ale, emulator._action_set[action]
        reward, terminated, truncated = 0.0, False, False
        for frame in range(FRAME_SKIP):
            reward += ale.act(action)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if terminated or truncated:
                break  # and AtariPreprocessing, too, then leaves the screens as they were
            if frame >= FRAME_SKIP - 2:
                ale.getScreenGrayscale(self._older if frame == FRAME_SKIP - 2 else self._newer)
        self._total += reward
        self._length += 1
        info = {"episode": {"r": self._total, "l": self._length}} if terminated or truncated else {}
        return self._frame(), max(-1.0, min(1.0, reward)), terminated, truncated, info

    def _frame(self) -> np.ndarray:
        np.maximum(self._newer, self._older, out=self._newer)
        return cv2.resize(self._newer, (SCREEN, SCREEN), interpolation=cv2.INTER_AREA)


class _FixedNoOps:
    """In place of the generator from which AtariPreprocessing draws the number of no-ops: draws this one."""

    def __init__(self, number: int):
        self._number = number

    def integers(self, low: int, high: int) -> int:
        return self._number


def reset_with_no_ops(env: gym.Env, no_ops: int) -> Any:
    """Reset an Atari game without a seed, and have it begin after so many no-ops, not after a number that it draws.

    Returns:
        Its state.
    """
    emulator: Any = env.unwrapped
    emulator.np_random = _FixedNoOps(no_ops)  # until it is reset with a seed
    return env.reset()[0]


def is_atari(env: gym.Env) -> bool:
    """Whether an environment, wrapped or not, is an Atari game."""
    return isinstance(env.unwrapped, ale_py.AtariEnv)


def frame_skip(env: gym.Env) -> int:
    """How many frames of the emulator an agent step lasts; 1 for what is no Atari game."""
    return FRAME_SKIP if is_atari(env) else 1


def has_only_checking_wrappers(env: gym.Env) -> bool:
    """Whether an environment's wrappers can be left out: they check, and change nothing."""
    while isinstance(env, PassiveEnvChecker | OrderEnforcing):
        env = env.env
    return env is env.unwrapped


def _preprocessed(env: gym.Env) -> gym.Env:
    env = AtariPreprocessing(env, noop_max=NOOP_MAX, frame_skip=FRAME_SKIP, screen_size=SCREEN)
    return ClipReward(RecordEpisodeStatistics(env), -1.0, 1.0)
