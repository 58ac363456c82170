"""Atari preprocessing: equal to gymnasium's, in the plain and in the faster version."""

import gymnasium as gym
import numpy as np
import pytest

from lib.envs.atari import frame_skip
from lib.envs.single_env import make_env
from oracles import atari


@pytest.mark.slow
@pytest.mark.parametrize(
    ("game", "seeds"),
    [
        pytest.param("PongNoFrameskip-v4", (5, 6), marks=pytest.mark.long),
        ("BreakoutNoFrameskip-v4", (5,)),
        ("fakes:ShortPong-v0", (5, 6)),
    ],
)
def test_plain_and_tweaked_wrappers_equal_gymnasiums_over_whole_episodes(game, seeds):
    """Those of ShortPong are truncated."""
    plain, generator = make_env(game), np.random.default_rng(3)
    others = [make_env(game, tweaked=True), atari.make(game)]
    for seed in seeds:
        state, ended = plain.reset(seed=seed)[0], False
        states = [other.reset(seed=seed)[0] for other in others]
        while not ended:
            assert all(np.array_equal(state, other) for other in states)
            action = int(generator.integers(plain.action_space.n))
            state, *rest, info = plain.step(action)
            steps = [other.step(action) for other in others]
            states = [step[0] for step in steps]
            assert all(list(step[1:4]) == rest for step in steps)
            ended = any(rest[1:])
        assert all(np.array_equal(state, other) for other in states)  # from which a truncated episode bootstraps
        tweaked_info = steps[0][4]
        assert [tweaked_info["episode"][name] for name in "rl"] == [info["episode"][name] for name in "rl"]


def test_a_game_with_its_own_frame_skip_does_not_skip_twice():
    env = make_env("ALE/Pong-v5")
    env.reset(seed=0)
    before = env.unwrapped.ale.getEpisodeFrameNumber()  # type: ignore[attr-defined]
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() - before == 4  # type: ignore[attr-defined]
    assert frame_skip(env) == 4
    assert frame_skip(gym.make("CartPole-v1")) == 1
