"""The progress toward the goal: the share that is done, and the time that is left."""

import numpy as np
import pytest

from lib.experience.episodes import Episode
from lib.run import goal_progress
from lib.run.episodes import Episodes
from lib.run.goal_progress import GoalProgress


class Source:
    steps_done = 0


class Clock:
    """The clock of this test. It stands at the newest episode unless a test moves it."""

    now = 0.0


@pytest.fixture(autouse=True)
def fake_clock(monkeypatch):
    monkeypatch.setattr(goal_progress, "since_process_start", lambda: Clock.now)


def way_of(returns, seconds_per_episode=1.0, goal=100.0, first=()):
    episodes = Episodes(Source(), goal)
    way = GoalProgress(episodes, first)
    for number, total in enumerate(returns):
        Clock.now = number * seconds_per_episode
        episodes._add(Episode(float(total), 10, 10 * number, Clock.now, None))
        way.add()
    return way


def test_there_is_no_estimate_without_a_trend():
    noise = np.random.default_rng(1).normal(size=200)
    assert way_of([]).seconds_left is None
    assert way_of(noise).seconds_left is None
    assert way_of([5.0] * 200).seconds_left is None
    assert way_of(-np.arange(200.0)).seconds_left is None


def test_nor_if_the_goal_is_too_far_for_the_trend():
    assert way_of(np.arange(150.0) * 0.001).seconds_left is None


@pytest.mark.parametrize("seconds_per_episode", [0.5, 2.0])
def test_a_trend_is_extrapolated_to_the_goal(seconds_per_episode):
    # After 150 episodes, the mean of the last 100 is 99.5 / 4 and rises by 1 / 4 with each episode.
    noise = np.random.default_rng(1).normal(size=150)
    way = way_of(np.arange(150.0) / 4 + noise, seconds_per_episode)
    assert way.seconds_left == pytest.approx(4 * (100 - 99.5 / 4) * seconds_per_episode, rel=0.1)


def test_a_resumed_run_that_has_lost_its_first_returns_starts_from_the_oldest_that_are_known():
    episodes = Episodes(Source(), 100.0)
    episodes.returns.extend([20.0] * 10 + [60.0] * 90)
    assert GoalProgress(episodes, []).share == pytest.approx((56 - 20) / (100 - 20))


def test_a_goal_that_is_reached_early_still_needs_a_hundred_episodes():
    way = way_of([200.0] * 60)
    assert way.seconds_left == pytest.approx(40, abs=1)
    assert way.share == 0.6


def test_between_episodes_the_estimate_counts_down_and_vanishes_when_its_time_has_passed():
    way = way_of([200.0] * 60)
    first = way.seconds_left
    Clock.now += 15.0
    assert way.seconds_left == first - 15.0
    Clock.now += 30.0
    assert way.seconds_left is None


def test_the_share_starts_at_the_first_episodes():
    assert way_of([10.0] * 100).share == 0.0
    assert way_of([0.0] * 100 + [50.0] * 100).share == 0.5
    assert way_of([50.0] * 100, first=[0.0] * 10).share == 0.5  # a resumed run
    assert way_of([500.0] * 100).share == 1.0
