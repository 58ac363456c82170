"""Is the difference between two settings significant? Permutation tests over seeds."""

import itertools
import math

import numpy as np
import pandas as pd

MOST_DIVISIONS = 1_000_000  # of seeds into two groups


def permutation_test(a: np.ndarray, b: np.ndarray) -> float:
    """Return the two-sided p-value of the difference of two means.

    It is over all divisions into two groups, or over MOST_DIVISIONS random ones if there are more.
    """
    both = np.concatenate([a, b])
    if math.comb(len(both), len(a)) <= MOST_DIVISIONS:
        sums = np.array(list(itertools.combinations(both, len(a)))).sum(axis=1)
    else:
        shuffled = np.random.default_rng(1).permuted(np.tile(both, (MOST_DIVISIONS, 1)), axis=1)
        shuffled[0] = both  # the observed division is one of them, so p is never 0
        sums = shuffled[:, : len(a)].sum(axis=1)
    gaps = np.abs(sums / len(a) - (both.sum() - sums) / len(b))
    return float(np.mean(gaps >= abs(a.mean() - b.mean()) - 1e-12))


def rank_test(a: pd.Series, b: pd.Series) -> float:
    """Return the two-sided p-value of the Mann-Whitney test, by permutation_test of the ranks.

    Args:
        a: steps to the goal, infinite if it was not reached. All such runs share a rank.
        b: the same of another setting.
    """
    ranks = pd.concat([a, b]).rank().to_numpy()
    return permutation_test(ranks[: len(a)], ranks[len(a) :])
