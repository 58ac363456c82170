"""The sum tree against cumulative sums."""

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.experience.priority_ring import SumTree


@contextlib.contextmanager
def branching(branches):
    """Set the number of children per node, so that a small tree can have many levels."""
    before, SumTree.BRANCHES = SumTree.BRANCHES, branches
    try:
        yield
    finally:
        SumTree.BRANCHES = before


@settings(max_examples=80, deadline=None)
@given(size=st.integers(1, 40), branches=st.sampled_from([2, 3, 4, 128]), data=st.data())
def test_the_tree_equals_a_cumulative_sum(size, branches, data):
    with branching(branches):
        tree, weights = SumTree(size), np.zeros(size)
        for _ in range(5):
            indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1)))
            new = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(indices), max_size=len(indices))), float)
            tree[indices], weights[indices] = new, new
            assert tree.total == weights.sum()
            assert tree[np.arange(size)].tolist() == weights.tolist()
            if weights.sum():
                targets = np.arange(0, weights.sum(), 0.5)
                expected = np.searchsorted(weights.cumsum(), targets, side="right")
                assert tree.find(targets).tolist() == expected.tolist()


@pytest.mark.parametrize("branches", [2, 3, 128])
def test_rounding_never_leads_to_a_weight_of_zero(branches):
    rng = np.random.default_rng(0)
    for _ in range(300):
        weights = rng.random(16) * (rng.random(16) < 0.4)
        if not weights.any():
            continue
        with branching(branches):
            tree = SumTree(16)
            tree[np.arange(16)] = weights
            edges = np.concatenate([weights.cumsum(), [tree.total]])
            targets = np.concatenate([np.nextafter(edges, 0), edges[edges < tree.total]])
            assert (weights[tree.find(targets[targets >= 0])] > 0).all()
