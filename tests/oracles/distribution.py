"""The projection of Bellemare et al. (2017), algorithm 1, an atom at a time, in plain Python numbers."""

import math


def project(next_probs, total, discount, v_min, v_max):
    """`next_probs` is a list of probabilities of returns evenly from v_min to v_max."""
    atoms = len(next_probs)
    step = (v_max - v_min) / (atoms - 1)
    projected = [0.0] * atoms
    for atom, probability in enumerate(next_probs):
        moved = min(v_max, max(v_min, total + discount * (v_min + atom * step)))
        place = (moved - v_min) / step
        below, above = math.floor(place), math.ceil(place)
        if below == above:
            projected[below] += probability
        else:
            projected[below] += probability * (above - place)
            projected[above] += probability * (place - below)
    return projected
