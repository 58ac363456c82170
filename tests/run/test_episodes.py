"""Finished episodes: means, goals and the best network. The golden runs check episodes.csv."""

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ignite.engine import Engine, Events
from ptan.ignite import EndOfEpisodeHandler

from lib.experience.interface import Episode
from lib.run.episodes import EpisodeEvents, Episodes, register_events
from sources import CountingSource


class Rollouts(CountingSource):
    """Several episodes end in each step."""

    def __init__(self, returns):
        super().__init__()
        self.lists = returns

    def pop_episodes(self):
        return [Episode(each, 5, 5 * self.steps_done, 5.0) for each in self.lists[self.steps_done - 1]]


def run(source, iterations, stop_reward=18.0, milestone=None):
    """Run an engine in which episodes of the source end.

    Returns:
        the counter of the episodes, and the number of episodes at each event, by its name.
    """
    engine = Engine(lambda engine, batch: {"loss": 1.0})
    register_events(engine)
    episodes = Episodes(source, stop_reward, milestone)
    engine.add_event_handler(Events.ITERATION_COMPLETED, episodes)
    fired = {event.name: [] for event in EpisodeEvents}
    for event in EpisodeEvents:
        engine.add_event_handler(event, lambda engine, event: fired[event.name].append(episodes.count), event)
    engine.run(source.batches(), max_iters=iterations, epoch_length=iterations)
    return episodes, fired


def expected(rollouts, goals):
    """Return the iteration in which each goal is reached, and the episodes after which the mean is the best so far."""
    returns, best, bests, reached = [], -math.inf, [], {}
    for iteration, rollout in enumerate(rollouts, 1):
        for total in rollout:
            returns.append(total)
            mean = math.fsum(returns[-100:]) / len(returns[-100:])
            if (len(returns) >= 10 and mean > best) or len(returns) == 100:
                best = mean
                bests.append(len(returns))
        for goal in goals:
            if len(returns) >= 100 and mean >= goal - 1e-9:
                reached.setdefault(goal, iteration)
    return reached, bests


@settings(max_examples=30, deadline=None)
@example([[3] * 30], 0)  # the goal is passed by too few episodes
@example([[3] * 14 + [-3] * 90], 0)  # the first means are higher than that of a hundred episodes
@given(st.lists(st.lists(st.integers(-3, 3), max_size=40), min_size=1, max_size=60), st.integers(0, 8))
def test_goals_and_best_means_are_those_of_a_simple_count(changes, speed):
    """Returns are a random walk that drifts upward."""
    level, rollouts = -21.0, []
    for steps in changes:
        rollouts.append([])
        for step in steps:
            level = min(21.0, level + step + speed / 8)
            rollouts[-1].append(level)
    episodes, fired = run(Rollouts(rollouts), len(rollouts), stop_reward=5.0, milestone=-3.0)
    reached, bests = expected(rollouts, (5.0, -3.0))
    assert {float(goal): moment["iteration"] for goal, moment in episodes.reached.items()} == reached
    assert fired["BEST_REWARD_REACHED"] == bests
    assert bool(fired["BOUND_REWARD_REACHED"]) == (episodes.solved is not None) == (5.0 in reached)


@pytest.mark.parametrize("total", [0.1, -0.7, sum([0.1] * 10)])
def test_a_game_whose_every_return_equals_the_goal_is_solved(total):
    """Sums of floating-point numbers round: sum([0.1] * 100) / 100 and sum([0.1] * 10) are below 0.1 and 1."""
    episodes, fired = run(CountingSource(dict.fromkeys(range(1, 101), total)), 100, round(total, 3))
    assert episodes.solved is not None
    assert fired["BOUND_REWARD_REACHED"] == [100]


def test_the_smoothed_return_equals_that_of_ptan():
    returns = {1: 10.0, 2: 0.0, 3: -4.0}
    episodes, _ = run(CountingSource(returns), 3)
    source: Any = CountingSource(returns)
    source.pop_rewards_steps = lambda: [(episode.total, episode.length) for episode in source.pop_episodes()]
    engine = Engine(lambda engine, batch: None)
    EndOfEpisodeHandler(source).attach(engine)
    engine.run(source.batches(), max_iters=3, epoch_length=3)
    assert episodes.smoothed == pytest.approx(engine.state.metrics["avg_reward"])


def test_the_counts_continue_after_a_resume():
    before, _ = run(CountingSource({1: 1.0, 2: 3.0}), 2)
    after = Episodes(CountingSource(), 18.0)
    after.load_state_dict(before.state_dict())
    assert (after.count, list(after.returns), after.first, after.best_mean) == (2, [1.0, 3.0], [1.0, 3.0], -math.inf)
    assert after.smoothed == before.smoothed
    assert after.seconds > before.seconds - 1
