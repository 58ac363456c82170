"""Epsilon-greedy selection among valid actions."""

import numpy as np
import pytest

from lib.experience.selectors import EpsilonGreedyActionSelector
from lib.nets.masking import INVALID


def test_random_actions_are_drawn_uniformly_from_the_valid_ones():
    np.random.seed(1)
    scores = np.tile(np.array([INVALID, 1.0, 5.0, INVALID], np.float32), (20_000, 1))
    actions = EpsilonGreedyActionSelector(epsilon=0.5)(scores)
    assert np.bincount(actions, minlength=4) / 20_000 == pytest.approx([0.0, 0.25, 0.75, 0.0], abs=0.02)


def test_without_a_mask_the_actions_equal_those_of_ptans_selector():
    scores = np.random.default_rng(1).normal(size=(300, 4))
    actions = []
    for selector in (EpsilonGreedyActionSelector, EpsilonGreedyActionSelector.__base__):
        np.random.seed(2)
        actions.append(selector(epsilon=0.5)(scores))
    assert np.array_equal(*actions)
