"""Numbers behind the curves."""

import numpy as np

from lib.analysis.curves import Series, common_band


def test_a_band_covers_the_range_that_all_runs_share():
    band = common_band([Series.of([0, 10], [0, 10]), Series.of([5, 15], [20, 40])], points=2)
    assert band.grid.tolist() == [5, 10]
    assert band.low.tolist() == [5, 10]
    assert band.high.tolist() == [20, 30]
    assert band.mean.tolist() == [12.5, 20]


def test_one_run_or_runs_without_a_shared_range_have_no_band():
    early, late = Series.of([0, 1], [1, 1]), Series.of([2, 3], [1, 1])
    assert common_band([early]) is None
    assert common_band([early, late]) is None
    assert common_band([early, Series.of([], [])]) is None


def test_a_series_is_finite_and_its_x_never_decreases():
    series = Series.of([1, 4, 3, 5, 6], [10, 20, 30, float("nan"), 50])
    assert series.x.tolist() == [1, 4, 4, 6]
    assert series.y.tolist() == [10, 20, 30, 50]
    assert series.at(np.array([4.0, 5.0])).tolist() == [30, 40]
