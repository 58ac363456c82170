"""Interquartile mean and stratified bootstrap, number by number with the standard library."""

import random


def interquartile_mean(numbers):
    numbers = sorted(numbers)
    cut = int(0.25 * len(numbers))
    middle = numbers[cut : len(numbers) - cut]
    return sum(middle) / len(middle)


def bounds(strata, resamples, confidence):
    """Return the bounds of the bootstrap interval of the interquartile mean of several lists of numbers."""
    rng = random.Random(1)
    means = sorted(
        interquartile_mean([rng.choice(numbers) for numbers in strata for _ in numbers]) for _ in range(resamples)
    )
    edge = (1 - confidence) / 2
    return means[round(edge * (resamples - 1))], means[round((1 - edge) * (resamples - 1))]
