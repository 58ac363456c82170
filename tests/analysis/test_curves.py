"""Numbers behind the curves."""

import numpy as np
import pytest

from lib.analysis import curves, intervals
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


def test_three_runs_have_their_interquartile_mean_and_interval():
    runs = [Series.of([0, 1], [value, 2 * value]) for value in (1.0, 2.0, 6.0)]
    _, band = shared_band(runs, 2)
    centre, low, high = intervals.interval(np.array([1.0, 2.0, 6.0]))
    for values, expected in ((band.centre, centre), (band.low, low), (band.high, high)):
        assert values == pytest.approx(np.array([1, 2]) * expected)


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


def test_the_legend_counts_the_runs_that_the_band_shows():
    series = Series.of([0, 1], [1, 1])
    figure = curves.draw_speeds({"group": [series, series, Series.of([], [])]}, "speeds")
    assert "group · 2 of 3 runs" in [line.get_label() for line in figure.axes[0].lines]


def test_the_ninth_group_has_another_line_style_and_an_empty_group_is_not_drawn():
    series = Series(np.arange(3.0), np.arange(3.0) + 1.0, True)
    figure = curves.draw_speeds({"empty": [], **{f"group {number}": [series] for number in range(1, 9)}}, "speeds")
    lines = {line.get_label(): (line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines}
    named = {label: style for label, style in lines.items() if str(label).startswith("group")}
    assert len(named) == len(set(named.values())) == 8
    ninth = curves.draw_speeds({f"group {number}": [series] for number in range(9)}, "speeds")
    styles = [(line.get_color(), line.get_linestyle()) for line in ninth.axes[0].lines if line.get_label()[0] == "g"]
    assert len(set(styles)) == 9
    assert len({curves.swatch(number) for number in range(32)}) == 32  # as many as the colours and styles


def test_long_names_of_bars_keep_their_seeds():
    names = [f"learning_rate=0.0003, gamma=0.995, batch_size=64, epsilon=0.02, seed {seed}" for seed in (1, 2)]
    figure = curves.draw_time_shares([(name, {"act": 1.0}) for name in names], "time")
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert [text[-6:] for text in texts if text.startswith("learning_rate")] == ["seed 1", "seed 2"]
