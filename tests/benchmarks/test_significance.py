"""Permutation tests over seeds."""

import math

import numpy as np
import pandas as pd
import pytest

import significance


def test_the_permutation_test_on_numbers_worked_by_hand():
    # Of the 6 ways to draw two of four, only {3, 4} and {1, 2} are as far apart.
    assert significance.permutation_test(np.array([1.0, 2.0]), np.array([3.0, 4.0])) == pytest.approx(2 / 6)
    assert significance.permutation_test(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 1.0


def test_runs_without_the_goal_share_the_last_rank():
    never = math.inf
    # Ranks 1, 2 and 4.5, 4.5, 4.5. Of the 10 ways to draw two of five, only {1, 2} is as far apart.
    assert significance.rank_test(pd.Series([100, 200]), pd.Series([never, never, never])) == pytest.approx(1 / 10)
    assert significance.rank_test(pd.Series([never, never]), pd.Series([never, never])) == 1.0
