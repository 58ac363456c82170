import math

import numpy as np
import pytest

from fakes import Counting
from lib.ppo.goal import FINAL_TEMPERATURE_FROM
from lib.ppo.progress import Progress
from lib.ppo.rollout import Sampler
from ppo_setup import Fixed, vectorised


def progress_of(*returns):
    """Progress after 16 episodes with a return of 6, and these."""
    progress = Progress(16)
    for value in (*[6.0] * 16, *returns):
        progress.add(value)
    return progress


def test_progress_is_the_share_of_the_way_from_the_first_mean_to_the_goal():
    for newest_return, goal, expected in ((6.0, 8.0, 0.0), (22.0, 8.0, 0.5), (-9.0, 8.0, 0.0), (99.0, 8.0, 1.0)):
        assert progress_of(newest_return)(goal).mean == expected
    assert progress_of(22.0)(None).mean == 0.0


def test_the_lower_bound_is_the_progress_less_three_standard_errors():
    returns = [10.0, 14.0] * 8
    error = np.std(returns, ddof=1) / 4
    estimate = progress_of(*returns)(16.0)
    assert estimate == pytest.approx((0.6, (12.0 - 3 * error - 6.0) / 10.0))
    assert progress_of(*[14.0] * 16)(16.0) == pytest.approx((0.8, 0.8))


def test_a_goal_below_the_first_mean_is_measured_from_the_lowest_mean():
    """The first episodes to end are short ones. If each step costs, their returns are too high."""
    progress = progress_of(*[2.0] * 16)
    assert progress(5.0).mean == 0.0  # from 2 to 5, at 2
    for _ in range(16):
        progress.add(3.5)
    assert progress(5.0) == pytest.approx((0.5, 0.5))
    resumed = Progress(16)
    resumed.load_state_dict(progress.state_dict())
    assert resumed(5.0) == progress(5.0)
    assert progress_of()(5.0).mean == 0.0  # no mean was below the goal yet


def test_trained_weights_that_reach_the_goal_are_at_its_end():
    progress = progress_of()
    progress.trained = True
    assert progress(5.0) == (1.0, 1.0)
    resumed = Progress(16)
    resumed.load_state_dict(progress.state_dict())
    assert resumed(5.0) == (1.0, 1.0)
    assert resumed(8.0).mean == 0.0


def test_trained_weights_begin_at_the_goal_until_their_mean_return_is_known():
    progress = Progress(16)
    progress.trained = True
    assert progress(8.0) == (1.0, -math.inf)  # not sure enough for a permanent switch
    assert progress(None).mean == 0.0
    for _ in range(16):
        progress.add(3.0)
    assert progress(8.0).mean == 0.0  # they do not reach the goal, so it is measured from here


def test_before_there_are_enough_episodes_nothing_is_known():
    progress = Progress(2)  # raised to 16
    for _ in range(15):
        progress.add(6.0)
    assert progress(8.0) == (0.0, -math.inf)
    progress.add(22.0)
    progress.add(22.0)
    assert progress(8.0).mean > 0.0


@pytest.mark.parametrize(("true_progress", "spread", "share"), [(0.6, 0.5, 0.1), (0.9, 0.15, 1.0)])
def test_noise_rarely_causes_the_permanent_switch(true_progress, spread, share):
    """The mean alone reached 0.85 in 94 % of such runs with a true progress of 0.6."""
    rng = np.random.default_rng(3)
    switched = 0
    for _ in range(20):
        progress = Progress(16)
        for value in (*[0.0] * 16, *rng.normal(true_progress, spread, 500)):
            progress.add(value)
            if progress(1.0).lower_bound >= FINAL_TEMPERATURE_FROM:
                switched += 1
                break
    assert switched <= 20 * share
    assert share < 1.0 or switched == 20


def test_a_resumed_sampler_has_the_same_progress():
    def counting_sampler():
        return Sampler(vectorised(lambda: Counting(3), 2), Fixed(), steps=30)

    sampler = counting_sampler()
    next(iter(sampler))  # 20 episodes that return 6
    sampler.progress.add(20.0)
    sampler.progress.add(1.0)
    resumed = counting_sampler()
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.progress(20.0) == sampler.progress(20.0)
    assert resumed.progress(20.0).mean == pytest.approx(9 / 16 / 14)


def test_toward_a_goal_that_the_first_episodes_reach_there_is_no_progress():
    progress = progress_of()
    assert progress(5.0) == progress(6.0) == (0.0, -math.inf)
