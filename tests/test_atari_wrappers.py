import hashlib
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from fakes import Catch
from lib.envs import single_env
from lib.envs.atari import frame_skip
from lib.envs.single_env import make_env
from lib.errors import UsageError
from oracles import atari

GOLDEN = Path(__file__).parent / "golden" / "pong.json"


def trace(env, seed, steps, actions_seed=0):
    """SHA-256 of the newest frames, of the rewards and of the ends over `steps` steps of random play."""
    frames, rewards, ends = hashlib.sha256(), [], []
    generator = np.random.default_rng(actions_seed)
    observation, _ = env.reset(seed=seed)
    for _ in range(steps):
        frames.update(np.ascontiguousarray(np.asarray(observation)[-1]))
        observation, reward, terminated, truncated, _ = env.step(int(generator.integers(env.action_space.n)))
        rewards.append(float(reward))
        ends.append((terminated, truncated))
        if terminated or truncated:
            observation, _ = env.reset()
    digest = {
        "frames": frames.hexdigest(),
        "rewards": hashlib.sha256(repr(rewards).encode()).hexdigest(),
        "ends": hashlib.sha256(repr(ends).encode()).hexdigest(),
    }
    return digest | {"return": sum(rewards), "episodes": sum(map(any, ends))}


def test_the_golden_trace_of_pong():
    golden = json.loads(GOLDEN.read_text())
    seen = trace(make_env("PongNoFrameskip-v4"), golden["seed"], golden["steps"])
    assert seen == golden["trace"]


def test_the_plain_gymnasium_stack_gives_the_golden_trace_too():
    golden = json.loads(GOLDEN.read_text())
    seen = trace(atari.make("PongNoFrameskip-v4"), golden["seed"], golden["steps"])
    assert seen == golden["trace"]


def test_the_tweaked_stack_gives_the_golden_trace_too():
    golden = json.loads(GOLDEN.read_text())
    seen = trace(make_env("PongNoFrameskip-v4", tweaked=True), golden["seed"], golden["steps"])
    assert seen == golden["trace"]


@pytest.mark.parametrize("game", ["PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"])
def test_the_tweaked_stack_is_the_plain_one_over_whole_episodes(game):
    tweaked, plain = make_env(game, tweaked=True), make_env(game)
    generator = np.random.default_rng(3)
    for seed in (5, 6):
        ours, theirs = tweaked.reset(seed=seed)[0], plain.reset(seed=seed)[0]
        end = False
        while not end:
            assert np.array_equal(ours, theirs)
            action = int(generator.integers(plain.action_space.n))
            (ours, *our_rest, our_info), (theirs, *their_rest, their_info) = tweaked.step(action), plain.step(action)
            assert our_rest == their_rest
            end = any(our_rest[1:])
        assert np.array_equal(ours, theirs)  # the last state as well, which a truncated episode learns from
        assert our_info["episode"]["r"] == their_info["episode"]["r"]
        assert our_info["episode"]["l"] == their_info["episode"]["l"]


def test_the_tweaked_stack_is_truncated_where_the_plain_one_is(monkeypatch):
    monkeypatch.setattr(single_env, "make_plain_env", lambda env_id: gym.make(env_id, max_num_frames_per_episode=203))
    tweaked, plain = (make_env("PongNoFrameskip-v4", tweaked=choice) for choice in (True, False))
    tweaked.reset(seed=1)
    plain.reset(seed=1)
    for _ in range(60):
        (ours, *our_rest, _), (theirs, *their_rest, _) = tweaked.step(2), plain.step(2)
        assert np.array_equal(ours, theirs)
        assert our_rest == their_rest
        if any(our_rest[1:]):
            break
    assert our_rest[1:] == [False, True]


def test_states_that_lie_side_by_side_are_what_stacking_makes():
    adjacent, plain = (make_env("fakes:Catch-v0", tweaked=choice) for choice in (True, False))
    states = []
    for episode in range(100):  # 1,000 frames: several strips
        states.append((adjacent.reset(seed=episode)[0], plain.reset(seed=episode)[0]))
        for step in range(6):
            states.append((adjacent.step(step % 3)[0], plain.step(step % 3)[0]))
    for ours, theirs in states:  # none was overwritten by a later one
        assert np.array_equal(ours, theirs)
    a, b = np.asarray(states[1][0]), np.asarray(states[2][0])
    assert np.shares_memory(a[1:], b[:-1])
    assert np.shares_memory(a, np.asarray(states[1][0]))  # looked at, not copied
    assert not np.shares_memory(a, np.array(states[1][0], copy=True))


@pytest.mark.parametrize("game", ["BreakoutNoFrameskip-v4", "SpaceInvadersNoFrameskip-v4"])
def test_whole_stacks_equal_the_plain_ones_in_other_games(game):
    ours, theirs = make_env(game), atari.make(game)
    assert ours.observation_space.shape == theirs.observation_space.shape == (4, 84, 84)
    a, b = ours.reset(seed=11)[0], theirs.reset(seed=11)[0]
    generator = np.random.default_rng(5)
    for _ in range(150):
        assert np.array_equal(a, b)
        action = int(generator.integers(ours.action_space.n))
        (a, *ours_rest, _), (b, *theirs_rest, _) = ours.step(action), theirs.step(action)
        assert ours_rest == theirs_rest


def test_pong_has_all_six_actions_and_its_seeds_matter():
    env = make_env("PongNoFrameskip-v4")
    assert env.action_space.n == 6
    assert len({trace(env, seed, 40)["frames"] for seed in range(6)}) > 1


def test_an_id_with_its_own_frame_skip_is_not_skipped_twice():
    env = make_env("ALE/Pong-v5")
    env.reset(seed=0)
    before = env.unwrapped.ale.getEpisodeFrameNumber()
    env.step(0)
    assert env.unwrapped.ale.getEpisodeFrameNumber() - before == 4
    assert frame_skip(env) == 4


def test_successive_states_share_their_frames():
    env = make_env("fakes:Catch-v0")
    first, _ = env.reset(seed=0)
    second = env.step(0)[0]
    assert second.frames[0] is first.frames[1]
    assert np.asarray(second).shape == (4, 84, 84)
    assert np.asarray(second, dtype=np.float32).dtype == np.float32
    assert frame_skip(env) == 1


def test_returns_are_the_games_own_before_the_clipping():
    env = make_env("SpaceInvadersNoFrameskip-v4")
    env.reset(seed=1)
    generator, clipped, end = np.random.default_rng(1), 0.0, False
    while not end:
        _, reward, terminated, truncated, info = env.step(int(generator.integers(6)))
        clipped += reward
        end = terminated or truncated
    assert float(info["episode"]["r"]) > clipped > 0


class Colours(Catch):
    """Catch as an RGB, or grey but three-dimensional, or five-channel image."""

    def __init__(self, channels):
        super().__init__(zoom=8)
        self.channels = channels
        shape = (*self.observation_space.shape, channels)
        self.observation_space = type(self.observation_space)(0, 255, shape, np.uint8)

    def _observation(self):
        return np.repeat(super()._observation()[:, :, None], self.channels, axis=2)


@pytest.mark.parametrize("channels", [1, 3])
def test_images_with_a_channel_axis_become_grey(channels, monkeypatch):
    monkeypatch.setattr(single_env, "make_plain_env", lambda env_id: Colours(channels))
    env = make_env("Colours")
    assert np.asarray(env.reset(seed=0)[0]).shape == env.observation_space.shape == (4, 84, 84)


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("NoSuchGame-v0", "has to be registered"),
        ("no_such_module:Game-v0", "No module named 'no_such_module'"),
        ("Pendulum-v1", "finitely many actions"),
        ("fakes:Continuous-v0", "finitely many actions"),
        ("fakes:Heat-v0", "of 4 dimensions"),
    ],
)
def test_environments_that_do_not_fit_are_refused(env_id, message):
    with pytest.raises(UsageError, match=message):
        make_env(env_id)


def test_images_of_five_channels_are_refused(monkeypatch):
    monkeypatch.setattr(single_env, "make_plain_env", lambda env_id: Colours(5))
    with pytest.raises(UsageError, match="images of 5 channels"):
        make_env("Colours")
