"""The book's wrappers of Atari games."""

import pickle
from typing import Any

import cv2
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from lib import atari_wrappers
from lib.envs.atari import DirectAtari, statistics_wrapper
from lib.envs.checked_env import wrappers
from lib.envs.frames import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.experience.source import ExperienceSourceFirstLast

PONG, BREAKOUT = "PongNoFrameskip-v4", "BreakoutNoFrameskip-v4"


class Firing:
    """Agent that presses FIRE."""

    initial_state = staticmethod(lambda: None)

    def __call__(self, states, agent_states):
        return [1] * len(states), agent_states


def ale(env):
    """Return the emulator of a game."""
    emulator: Any = env.unwrapped
    return emulator.ale


def play(env, steps, seed=3):
    """Play random actions, and return the states, rewards and ends."""
    rng, states = np.random.default_rng(seed), [np.asarray(env.reset(seed=seed)[0])]
    rewards, ends = [], []
    for _ in range(steps):
        state, reward, terminated, truncated, _ = env.step(int(rng.integers(env.action_space.n)))
        states.append(np.asarray(state))
        rewards.append(reward)
        ends.append(terminated or truncated)
        if ends[-1]:
            env.reset()
    return states, rewards, ends


@pytest.mark.parametrize(("stack", "frames"), [(0, 1), (2, 2), (4, 4)])
def test_wrap_dqn_gives_stacked_frames(stack, frames):
    env = atari_wrappers.wrap_dqn(gym.make(PONG), stack_frames=stack)
    assert env.observation_space.shape == (frames, 84, 84)
    state, _ = env.reset(seed=1)
    assert isinstance(state, LazyFrames)
    assert np.asarray(state).dtype == np.uint8
    states, _, _ = play(env, 20)
    assert np.array_equal(states[10][1:], states[11][:-1])


def test_without_the_maximum_a_frame_is_the_fourth_screen_of_a_step():
    env, plain = DirectAtari(gym.make(PONG), noop_max=0, max_frames=False), gym.make(PONG).unwrapped
    env.reset(seed=5)
    plain.reset(seed=5)
    for action in (0, 2, 3, 1, 4, 5) * 5:
        frame, *_ = env.step(action)
        for _ in range(4):
            plain.step(action)
        expected = cv2.resize(ale(plain).getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)
        assert np.array_equal(frame, expected)


def test_colour_screens_are_those_of_the_emulator():
    env, plain = atari_wrappers.make_atari(PONG, skip_noop=True, skip_maxskip=True), gym.make(PONG).unwrapped
    assert env.observation_space.shape == (210, 160, 3)
    states = [env.reset(seed=5)[0]]
    plain.reset(seed=5)
    for action in (2, 3, 0):
        states.append(env.step(action)[0])
        for _ in range(4):
            plain.step(action)
        assert np.array_equal(states[-1], ale(plain).getScreenRGB())
    assert not np.array_equal(states[-1], states[0])  # each state is an array of its own


def test_rewards_are_clipped_only_if_asked_for():
    tanks = "SpaceInvadersNoFrameskip-v4"
    for wrap in (
        lambda clip: atari_wrappers.wrap_dqn(gym.make(tanks), clip_reward=clip),
        lambda clip: atari_wrappers.wrap_deepmind(atari_wrappers.make_atari(tanks, skip_noop=True), clip_rewards=clip),
    ):
        (_, ones, _), (_, points, _) = play(wrap(True), 300), play(wrap(False), 300)
        assert max(points) > 1.0
        assert ones == np.sign(points).tolist()


def test_a_lost_life_ends_an_episode_and_the_game_goes_on():
    env = atari_wrappers.wrap_dqn(gym.make(BREAKOUT))
    env.reset(seed=1)
    lives = [ale(env).lives()]
    for _ in range(500):
        _, _, terminated, _, _ = env.step(0)
        if terminated:
            lives.append(ale(env).lives())
            env.reset()
        if len(lives) == 6:
            break
    assert lives == [5, 4, 3, 2, 1, 0]
    assert ale(env).lives() == 5
    whole = atari_wrappers.wrap_dqn(gym.make(BREAKOUT), episodic_life=False)
    whole.reset(seed=1)
    for _ in range(60):
        whole.step(0)
    assert ale(whole).lives() < 5


def test_returns_of_lives_and_of_truncated_games_are_those_before_clipping():
    tanks = "SpaceInvadersNoFrameskip-v4"
    truncated = atari_wrappers.make_atari(tanks, max_episode_steps=120, skip_noop=True)
    for env in (atari_wrappers.wrap_dqn(gym.make(tanks)), atari_wrappers.wrap_deepmind(truncated, episode_life=False)):
        [game] = [each for each in wrappers(env) if isinstance(each, DirectAtari)]
        source = ExperienceSourceFirstLast(env, Firing(), gamma=0.99)
        before = 0.0
        for _ in source:
            if episodes := source.pop_episodes():
                break
            before = game.episode_returns
        assert episodes[0].total >= before >= 5.0


def test_wrappers_that_would_have_no_effect_are_refused():
    with pytest.raises(UsageError, match=r"TimeLimit.* would have no effect"):
        atari_wrappers.wrap_dqn(gym.make(PONG, max_episode_steps=1000))


@pytest.mark.parametrize(
    ("options", "shape", "dtype"),
    [
        ({"pytorch_img": True, "frame_stack": True, "frame_stack_count": 2}, (2, 84, 84), np.uint8),
        ({"frame_stack": True}, (4, 84, 84), np.uint8),
        ({"pytorch_img": True}, (1, 84, 84), np.uint8),
        ({}, (84, 84, 1), np.uint8),
        ({"pytorch_img": True, "scale": True}, (1, 84, 84), np.float32),
    ],
)
def test_wrap_deepmind_gives_the_asked_for_states(options, shape, dtype):
    env = atari_wrappers.wrap_deepmind(atari_wrappers.make_atari(PONG), **options)
    state = np.asarray(env.reset(seed=1)[0])
    assert (state.shape, state.dtype) == (shape, dtype)
    assert (env.observation_space.shape, env.observation_space.dtype) == (shape, dtype)
    if dtype == np.float32:
        assert 0.0 <= state.min() < state.max() <= 1.0


def test_a_stack_without_frames_is_refused():
    with pytest.raises(UsageError, match="a stack of 0 frames was asked for"):
        atari_wrappers.wrap_deepmind(atari_wrappers.make_atari(PONG), frame_stack=True, frame_stack_count=0)


def test_with_defaults_make_atari_and_wrap_deepmind_play_the_projects_own_game():
    book = atari_wrappers.wrap_deepmind(
        atari_wrappers.make_atari(PONG), episode_life=False, fire=False, frame_stack=True
    )
    for theirs, ours in zip(play(book, 200), play(atari_wrappers.make_env(PONG), 200), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(theirs, ours, strict=True))


@pytest.mark.parametrize("episodic_life", [True, False])
def test_gymnasiums_statistics_may_be_around_the_books_wrappers(episodic_life):
    game = gym.make(PONG, max_num_frames_per_episode=200)
    env = RecordEpisodeStatistics(atari_wrappers.wrap_dqn(game, episodic_life=episodic_life))
    env.reset(seed=1)
    ended, steps = False, 0
    while not ended:
        *_, terminated, truncated, info = env.step(0)
        ended, steps = terminated or truncated, steps + 1
    assert info["episode"]["l"] == steps


def test_returns_are_unclipped_also_if_gymnasiums_statistics_are_around_the_books_wrappers():
    env = RecordEpisodeStatistics(atari_wrappers.wrap_dqn(gym.make("SpaceInvadersNoFrameskip-v4"), episodic_life=False))
    env.reset(seed=1)
    rng, clipped = np.random.default_rng(1), 0.0
    for _ in range(500):
        clipped += env.step(rng.integers(6))[1]
    statistics = statistics_wrapper(env)
    assert statistics.episode_returns >= 5 * clipped > 0  # the worst alien is worth 5 points


class Seen(gym.Wrapper):
    """Wrapper of a reader that looks at screens and rewards."""

    def step(self, action):
        state, reward, terminated, truncated, info = self.env.step(action)
        self.shape = np.shape(state)
        self.total = getattr(self, "total", 0.0) + reward
        return state, reward, terminated, truncated, info


def test_a_wrapper_between_make_atari_and_wrap_deepmind_sees_the_game_as_it_is():
    seen = Seen(atari_wrappers.make_atari("MsPacmanNoFrameskip-v4"))
    env = atari_wrappers.wrap_deepmind(seen, frame_stack=True)
    env.reset(seed=1)
    rewards = [env.step(action // 20 % 9)[1] for action in range(160)]
    assert seen.shape == (210, 160, 3)
    assert seen.total > sum(rewards) > 0
    assert set(rewards) <= {0.0, 1.0}
    assert env.observation_space.shape == np.asarray(env.step(0)[0]).shape == (4, 84, 84)


def test_an_episode_can_be_truncated():
    env = atari_wrappers.wrap_deepmind(atari_wrappers.make_atari(PONG, max_episode_steps=7), frame_stack=True)
    env.reset(seed=1)
    ends = [env.step(0)[3] for _ in range(7)]  # FIRE and the action after it are two of the seven steps
    assert ends.index(True) == 4


@pytest.mark.parametrize("env_id", ["CartPole-v1", "ALE/Pong-v5"])
def test_other_environments_are_refused(env_id):
    with pytest.raises(
        UsageError, match="is not an Atari game with frame skip 1; use an id such as PongNoFrameskip-v4"
    ):
        atari_wrappers.wrap_dqn(gym.make(env_id))
    with pytest.raises(UsageError, match="wrap_deepmind needs an environment of make_atari"):
        atari_wrappers.wrap_deepmind(gym.make(env_id))


def test_a_pickled_state_holds_its_own_frames_only():
    env = FrameStack(DirectAtari(gym.make(PONG)))
    env.reset(seed=1)
    for _ in range(100):
        state = env.step(2)[0]
    assert not np.array_equal(np.asarray(state)[0], np.asarray(state)[-1])
    pickled = pickle.dumps(state)
    assert len(pickled) < 4 * 84 * 84 + 1000
    assert np.array_equal(np.asarray(pickle.loads(pickled)), np.asarray(state))
