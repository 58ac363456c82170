import pytest

from fakes import Counting
from lib.ppo.progress import Progress
from lib.ppo.rollout import Sampler
from ppo_setup import Fixed, vectorised


def counting_sampler():
    """Two environments whose first episodes both return 6."""
    return Sampler(vectorised(lambda: Counting(3), 2), Fixed(), steps=4)


def test_progress_is_the_share_of_the_way_from_the_first_mean_to_the_goal():
    sampler = counting_sampler()
    assert sampler.progress(10.0) == 0.0
    next(iter(sampler))
    cases = ((6.0, 8.0, 0.0), (8.0, 8.0, 0.5), (0.0, 8.0, 0.0), (20.0, 8.0, 1.0), (1.0, None, 0.0))
    for newest_return, goal, progress in cases:
        sampler.progress.add(newest_return)
        assert sampler.progress(goal) == progress


def test_a_resumed_sampler_has_the_same_progress():
    sampler = counting_sampler()
    next(iter(sampler))
    sampler.progress.add(20.0)
    sampler.progress.add(1.0)
    resumed = counting_sampler()
    resumed.load_state_dict(sampler.state_dict())
    assert resumed.progress(20.0) == sampler.progress(20.0) == pytest.approx(4.5 / 14)


def test_a_goal_below_the_first_episodes_is_either_reached_or_not():
    progress = Progress(2)
    progress.add(6.0)
    assert progress(5.0) == 0.0
    progress.add(6.0)
    assert progress(5.0) == progress(6.0) == 1.0
    progress.add(-9.0)
    assert progress(5.0) == progress(6.0) == 0.0
