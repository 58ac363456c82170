"""Interquartile means and bootstrap intervals beside a naive twin."""

import numpy as np
import pytest

from lib.analysis.intervals import CONFIDENCE, interquartile_mean, interval
from oracles import intervals as oracle


@pytest.mark.parametrize("runs", [3, 4, 8])
def test_the_mean_and_its_interval_are_those_of_the_naive_twin(runs):
    scores = np.random.default_rng(7).normal(10.0, 5.0, runs)
    assert interquartile_mean(scores) == pytest.approx(oracle.interquartile_mean(scores.tolist()))
    centre, low, high = interval(scores, 20_000)
    expected = oracle.bounds(scores.tolist(), 20_000, CONFIDENCE)
    assert [low, high] == pytest.approx(expected, abs=0.04 * (expected[1] - expected[0]))
    assert low <= centre <= high


def test_each_point_of_a_curve_has_its_own_interval_and_the_same_runs_give_the_same_one():
    curves = np.random.default_rng(7).normal(10.0, 5.0, (6, 3))  # (runs, points)
    band = interval(curves)
    assert all(np.array_equal(one, other) for one, other in zip(band, interval(curves), strict=True))
    assert band.centre.tolist() == pytest.approx([oracle.interquartile_mean(column) for column in curves.T.tolist()])
    assert (band.low < band.centre).all()
    assert (band.centre < band.high).all()
