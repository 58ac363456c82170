"""CartPole whose step takes 5 ms, as a robot's or a slow simulator's does: `--env-id slow:SlowCartPole-v0`."""

import time

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

LATENCY = 0.005  # seconds


class SlowCartPole(CartPoleEnv):
    """See the module; the time is slept, so that it costs no processor."""

    def step(self, action):
        time.sleep(LATENCY)
        return super().step(action)


gym.register("SlowCartPole-v0", SlowCartPole, max_episode_steps=500)
