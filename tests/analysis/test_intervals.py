"""Interquartile means and bootstrap intervals beside a naive twin."""

import numpy as np
import pytest

from lib.analysis.intervals import CONFIDENCE, interquartile_mean, interval
from oracles import intervals as oracle


def scores(*shape):
    return np.random.default_rng(7).normal(10.0, 5.0, shape)


@pytest.mark.parametrize("runs", [1, 3, 4, 7, 12])
def test_the_interquartile_mean_is_that_of_the_naive_twin(runs):
    numbers = scores(runs)
    assert interquartile_mean(numbers) == pytest.approx(oracle.interquartile_mean(numbers.tolist()))


def test_a_lucky_run_does_not_move_the_interquartile_mean():
    assert interquartile_mean(np.array([1.0, 2.0, 3.0, 1e9])) == 2.5


@pytest.mark.parametrize("runs", [3, 8, 12])
def test_the_interval_is_that_of_the_naive_twin(runs):
    numbers = scores(runs)
    centre, low, high = interval(numbers, 20_000)
    expected = oracle.bounds(numbers.tolist(), 20_000, CONFIDENCE)
    width = expected[1] - expected[0]
    assert [low, high] == pytest.approx(expected, abs=0.04 * width)
    assert low <= centre <= high


def test_each_point_of_a_curve_has_its_own_interval_and_the_same_runs_give_the_same_one():
    curves = scores(6, 3)  # (runs, points)
    band = interval(curves)
    assert [part.shape for part in band] == [(3,)] * 3
    assert all(np.array_equal(one, other) for one, other in zip(band, interval(curves), strict=True))
    for point in range(3):
        assert band.centre[point] == pytest.approx(oracle.interquartile_mean(curves[:, point].tolist()))
    assert (band.low < band.centre).all()
    assert (band.centre < band.high).all()
