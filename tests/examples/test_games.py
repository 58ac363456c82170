"""What the example games have in common."""

import warnings

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from examples.blocks import Blocks
from lib.envs.single_env import make_env
from lib.run.episode_player import EpisodePlayer, play_together
from lib.run.policy import RandomPolicy

BLOCKS = "examples.blocks:Blocks-v0"
IDS = (BLOCKS, "examples.snake:Snake-v0", "examples.connect_four:ConnectFour-v0")


class LenientBlocks(Blocks):
    """Blocks for gymnasium's checker, which knows no masks: each action is mapped to a legal one."""

    def step(self, action):
        legal = self.action_masks().nonzero()[0]
        return super().step(legal[action % len(legal)])


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_s_checker_accepts_the_environment(env_id):
    env = LenientBlocks() if env_id == BLOCKS else gym.make(env_id, disable_env_checker=True).unwrapped
    env.spec = gym.spec(env_id.split(":")[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@pytest.mark.parametrize("env_id", IDS)
def test_a_seed_repeats_its_episodes(env_id):
    player, policy = EpisodePlayer(env := make_env(env_id)), RandomPolicy(env)
    first, second, other = [], [], []
    for results, seed in ((first, 5), (second, 5), (other, 6)):
        play_together(policy, [player], seed, range(20), results.append)
    assert first == second != other
