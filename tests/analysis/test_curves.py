"""Numbers behind the curves."""

from lib.analysis import curves
from lib.analysis.curves import Series, common_band


def shared_band(runs, points):
    band = common_band(runs, points)
    assert band is not None
    return band


def test_the_band_of_runs_that_have_not_ended_covers_the_range_that_all_share():
    grid, band = shared_band([Series.of([0, 10], [0, 10]), Series.of([5, 15], [20, 40])], 2)
    assert grid.tolist() == [5, 10]
    assert band.low.tolist() == [5, 10]
    assert band.high.tolist() == [20, 30]
    assert band.centre.tolist() == [12.5, 20]


def test_runs_that_have_ended_carry_their_last_value_on():
    short, long = Series.of([0, 10], [-20, 18], ended=True), Series.of([0, 20], [-20, 18], ended=True)
    grid, band = shared_band([short, long], 5)
    assert grid.tolist() == [0, 5, 10, 15, 20]
    assert (band.centre[-1], band.low[-1], band.high[-1]) == (18, 18, 18)  # both were solved
    running = Series.of([0, 12], [-20, 0])
    grid, _ = shared_band([short, long, running], 3)
    assert grid.tolist() == [0, 6, 12]  # nobody knows how the third run goes on


def test_one_run_or_runs_without_a_shared_range_have_no_band():
    early, late = Series.of([0, 1], [1, 1]), Series.of([2, 3], [1, 1])
    assert common_band([early]) is None
    assert common_band([early, late]) is None
    assert common_band([early, Series.of([], [])]) is None


def test_a_series_is_finite_and_its_x_never_decreases():
    series = Series.of([1, 4, 3, 5, 6], [10, 20, 30, float("nan"), 50])
    assert series.x.tolist() == [1, 4, 4, 6]
    assert series.y.tolist() == [10, 20, 30, 50]
    assert Series.of([1, 2, 3], [0, -1, 5], above=0).x.tolist() == [3]


def test_as_many_groups_as_there_are_colours_and_styles_are_told_apart():
    series = Series.of([0, 1], [1, 1])
    figure = curves.draw_speeds({f"group {number}": [series, Series.of([], [])] for number in range(9)}, "speeds")
    lines = [line for line in figure.axes[0].lines if str(line.get_label()).endswith("· 1 of 2 runs")]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9
    assert len({curves.swatch(number) for number in range(32)}) == 32
