"""Random play: which actions are drawn, and when an episode ends."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import fakes
from lib.analysis.random_play import RandomPlayer, play
from lib.envs.single_env import make_env


class Recorder(fakes.Shape):
    """A Shape that records the actions of all instances."""

    actions: ClassVar[list[tuple[int, int]]] = []

    def step(self, action):
        self.actions.append((self.t, int(action)))
        return super().step(action)


@pytest.fixture
def registered(register):
    """Function that registers an environment for one test, and makes it."""

    def make(environment, **options):
        register(f"{environment.__name__}-v0", environment, **options)
        return make_env(f"{environment.__name__}-v0")

    return make


@pytest.mark.parametrize("mask", [None, "info", "method", "observation"])
def test_every_legal_action_is_drawn_and_no_other(registered, monkeypatch, mask):
    """Action t % 5 is not legal in step t; it would fail an assertion."""
    monkeypatch.setattr(Recorder, "actions", [])
    episodes = play(registered(Recorder, kwargs={"space": spaces.Box(0.0, 1.0, (2,)), "mask": mask}), 100)
    legal = {(t, action) for t in range(5) for action in range(5) if mask is None or action != t}
    assert set(Recorder.actions) == legal
    assert {episode.legal_share for episode in episodes} == {1.0 if mask is None else 0.8}
    assert [episode.length for episode in episodes] == [5] * 100
    assert all(episode.total == episode.rewards[1.0] for episode in episodes)


def test_actions_may_start_at_another_number(registered, monkeypatch):
    monkeypatch.setattr(Recorder, "actions", [])
    play(registered(Recorder, kwargs={"space": spaces.Box(0.0, 1.0, (2,)), "start": 7}), 50)
    assert {action for _, action in Recorder.actions} == {7, 8, 9, 10, 11}


def test_an_episode_ends_at_a_limit_of_the_environment_or_of_evaluations(registered, monkeypatch):
    env = registered(fakes.Catch, max_episode_steps=4)
    assert [episode.length for episode in play(env, 3)] == [4, 4, 4]
    monkeypatch.setattr("lib.run.episode_player.MAX_STEPS", 3)
    assert [episode.length for episode in play(env, 2)] == [3, 3]


def test_every_state_of_an_episode_is_announced():
    states = []
    episode = RandomPlayer(make_env("fakes:Catch-v0")).play(lambda: states.append(None))
    assert len(states) == episode.length + 1


def test_the_player_does_not_share_the_environments_random_numbers(registered):
    """A player with the environment's generator would guess every number that the environment draws."""

    class Guess(gym.Env):
        observation_space, action_space = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(4)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps += 1
            right = action == self.np_random.integers(4)
            return np.zeros(1, np.float32), float(right), self.steps == 100, False, {}

    assert RandomPlayer(registered(Guess), seed=3).play().total < 50
