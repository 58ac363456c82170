"""CartPole whose step takes 5 ms, like a step of a robot or a slow simulator: `--env-id slow:SlowCartPole-v0`."""

import time
from typing import Any

import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

LATENCY = 0.005  # seconds


class SlowCartPole(CartPoleEnv):
    """CartPole that sleeps in every step, which costs no processor time."""

    def step(self, action: Any) -> Any:
        time.sleep(LATENCY)
        return super().step(action)


gym.register("SlowCartPole-v0", "slow:SlowCartPole", max_episode_steps=500)
