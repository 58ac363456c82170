"""The book's wrappers of Atari games."""

import gymnasium as gym
import numpy as np
import pytest
from ptan.common import wrappers as ptan_wrappers

from lib import atari_wrappers
from lib.envs.frames import LazyFrames
from lib.errors import UsageError

PONG, BREAKOUT = "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"


def play(env, steps):
    """Play random actions, and return the states, rewards and ends."""
    env.unwrapped.reset(seed=3)  # PTAN's wrappers do not pass a seed on
    rng, states = np.random.default_rng(3), [np.asarray(env.reset()[0])]
    rewards, ends = [], []
    for _ in range(steps):
        state, reward, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        states.append(np.asarray(state))
        rewards.append(reward)
        ends.append(terminated or truncated)
        if ends[-1]:
            env.reset()
    return states, rewards, ends


@pytest.mark.parametrize(("stack", "frames"), [(0, 1), (4, 4)])
def test_wrap_dqn_stacks_the_frames_of_ptans_wrappers(stack, frames):
    env = atari_wrappers.wrap_dqn(gym.make(BREAKOUT), stack_frames=stack)
    assert env.observation_space.shape == (frames, 84, 84)
    assert isinstance(env.reset(seed=1)[0], LazyFrames)
    states, *results = play(env, 100)
    expected, *others = play(ptan_wrappers.wrap_dqn(gym.make(BREAKOUT), frames), 100)
    assert results == others
    assert any(results[1])  # a lost life, after which the game goes on
    assert states[0].dtype == np.uint8
    for state, other in zip(states, expected, strict=True):
        assert np.array_equal(state[-1], other[-1])
    assert np.array_equal(states[10], np.stack([state[-1] for state in states[11 - frames : 11]]))


@pytest.mark.parametrize(("options", "shape"), [({}, (84, 84, 1)), ({"pytorch_img": True}, (1, 84, 84))])
def test_wrap_deepmind_gives_the_asked_for_states(options, shape):
    env = atari_wrappers.wrap_deepmind(atari_wrappers.make_atari(PONG), **options)
    assert env.observation_space.contains(state := env.reset(seed=1)[0])
    assert state.shape == shape


def test_other_environments_are_refused():
    with pytest.raises(UsageError, match="is not an Atari game with frame skip 1; use an id such as PongNoFrameskip"):
        atari_wrappers.wrap_dqn(gym.make("ALE/Pong-v5"))
