"""Slow twin of losses.project_distribution: Bellemare et al. (2017), algorithm 1, in fractions without rounding."""

import math
from fractions import Fraction


def project(next_probs, total, discount, v_min, v_max):
    """Project a list of probabilities of returns that are evenly spaced from v_min to v_max, both integers."""
    atoms = len(next_probs)
    step = Fraction(v_max - v_min, atoms - 1)
    projected = [Fraction(0)] * atoms
    for atom, probability in enumerate(map(Fraction, next_probs)):
        moved = min(v_max, max(v_min, Fraction(total) + Fraction(discount) * (v_min + atom * step)))
        place = (moved - v_min) / step
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            projected[below] += probability
        else:
            projected[below] += probability * (above - place)
            projected[above] += probability * (place - below)
    return [float(probability) for probability in projected]
