"""Interquartile means and bootstrap intervals beside a naive twin."""

import numpy as np
import pytest

from lib.analysis.intervals import interquartile_mean, interval
from oracles import intervals as oracle


def scores(*sizes):
    rng = np.random.default_rng(7)
    return [rng.normal(10 * number, 1 + 9 * number, size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize("runs", range(1, 14))
def test_the_interquartile_mean_is_that_of_the_naive_twin(runs):
    [numbers] = scores(runs)
    assert interquartile_mean(numbers) == pytest.approx(oracle.interquartile_mean(numbers.tolist()))


def test_a_lucky_run_does_not_move_the_interquartile_mean():
    assert interquartile_mean(np.array([1.0, 2.0, 3.0, 1e9])) == 2.5


@pytest.mark.parametrize("sizes", [(3,), (8,), (5, 4), (3, 3, 6)])
@pytest.mark.parametrize("confidence", [0.95, 0.5])
def test_the_interval_is_that_of_the_naive_twin(sizes, confidence):
    strata = scores(*sizes)
    centre, low, high = interval(strata, 20_000, confidence)
    expected = oracle.bounds([numbers.tolist() for numbers in strata], 20_000, confidence)
    width = expected[1] - expected[0]
    assert [low, high] == pytest.approx(expected, abs=0.04 * width)
    assert low <= centre <= high


def test_strata_keep_their_sizes():
    # Without strata, a resample could hold only zeros or only hundreds.
    centre, low, high = interval([np.zeros(3), np.full(3, 100.0)])
    assert centre == low == high == 50


def test_each_point_of_a_curve_has_its_own_interval_and_the_same_runs_give_the_same_one():
    curves = np.stack(scores(6, 6, 6), axis=1)  # (runs, points)
    band = interval([curves])
    assert [part.shape for part in band] == [(3,)] * 3
    assert all(np.array_equal(one, other) for one, other in zip(band, interval([curves]), strict=True))
    for point in range(3):
        assert band.centre[point] == pytest.approx(oracle.interquartile_mean(curves[:, point].tolist()))
    assert (band.low < band.centre).all()
    assert (band.centre < band.high).all()
