"""Slow twin of make_env for Atari games: the wrappers that gymnasium's documentation recommends."""

import ale_py
import gymnasium as gym
from gymnasium.wrappers import AtariPreprocessing, ClipReward, FrameStackObservation

gym.register_envs(ale_py)


def make(env_id):
    env = AtariPreprocessing(gym.make(env_id), noop_max=30, frame_skip=4, screen_size=84, grayscale_obs=True)
    return FrameStackObservation(ClipReward(env, -1.0, 1.0), 4)
