"""Numbers behind the curves."""

import pytest

from lib.analysis.curves import Series, common_band

SHORT, LONG = Series.of([0, 10], [-20, 18], ended=True), Series.of([0, 20], [-20, 18], ended=True)


@pytest.mark.parametrize(
    ("runs", "expected", "band"),
    [
        ([Series.of([0, 10], [0, 10]), Series.of([5, 15], [20, 40])], [5, 7.5, 10], (20, 10, 30)),  # what both have
        ([SHORT, LONG], [0, 10, 20], (18, 18, 18)),  # both are solved, and keep their last value
        ([SHORT, LONG, Series.of([0, 12], [-20, 0])], [0, 6, 12], None),  # nobody knows how the third one goes on
    ],
)
def test_a_band_covers_the_range_that_all_runs_share_and_ended_runs_keep_their_last_value(runs, expected, band):
    found = common_band(runs, 3)
    assert found is not None
    grid, interval = found
    assert grid.tolist() == expected
    assert band in (None, tuple(part[-1] for part in interval))


def test_one_run_or_runs_without_a_shared_range_have_no_band():
    early = Series.of([0, 1], [1, 1])
    for runs in ([early], [early, Series.of([2, 3], [1, 1])], [early, Series.of([], [])]):
        assert common_band(runs) is None


def test_a_series_is_finite_and_its_x_never_decreases():
    series = Series.of([1, 4, 3, 5, 6], [10, 20, 30, float("nan"), 50])
    assert series.x.tolist() == [1, 4, 4, 6]
    assert series.y.tolist() == [10, 20, 30, 50]
    assert Series.of([1, 2, 3], [0, -1, 5], above=0).x.tolist() == [3]
