"""Interquartile means over seeds, and bootstrap confidence intervals of them.

Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice,
https://arxiv.org/abs/2108.13264. Their library rliable needs SciPy, statsmodels and arch for these few lines.
"""

from typing import NamedTuple

import numpy as np

CONFIDENCE = 0.95
RESAMPLES = 2_000
SEED = 0  # so that the same runs always give the same interval


class Interval(NamedTuple):
    """Interquartile mean and bounds, each of the shape of one run's scores."""

    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean of scores, (runs, ...), over the runs without the lowest and the highest quarter of them.

    As in rliable and SciPy, the number of runs that are cut at each end is rounded down. So of three runs, none is cut.
    """
    cut = len(scores) // 4
    mean: np.ndarray = np.sort(scores, axis=0)[cut : len(scores) - cut].mean(axis=0)
    return mean


def interval(scores: np.ndarray, resamples: int = RESAMPLES) -> Interval:
    """Compute the interquartile mean of scores, (runs, ...), and its bootstrap interval, by the percentile method.

    Every resample draws as many runs as there are, with replacement. The bounds of up to four runs are their lowest and
    highest score, because more than 2.5 % of the resampled means equal each.
    """
    draws = np.random.default_rng(SEED).integers(len(scores), size=(resamples, len(scores)))
    means = np.stack([interquartile_mean(scores[draw]) for draw in draws])
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    return Interval(interquartile_mean(scores), low, high)
