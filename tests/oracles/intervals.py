"""Interquartile mean and bootstrap interval, number by number with the standard library."""

import random


def interquartile_mean(numbers):
    numbers = sorted(numbers)
    cut = int(0.25 * len(numbers))
    middle = numbers[cut : len(numbers) - cut]
    return sum(middle) / len(middle)


def bounds(numbers, resamples, confidence):
    """Return the bounds of the bootstrap interval of the interquartile mean."""
    rng = random.Random(1)
    means = sorted(interquartile_mean(rng.choices(numbers, k=len(numbers))) for _ in range(resamples))
    edge = (1 - confidence) / 2
    return means[round(edge * (resamples - 1))], means[round((1 - edge) * (resamples - 1))]
