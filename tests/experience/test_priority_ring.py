"""Prioritised replay: sampling, importance weights, and priorities against their slow twin."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.experience.priority_ring import PrioritisedRing, priorities_from_errors
from rings import eventless, index_of, places_of, random_steps, ring_and_twin, ring_of

CHANCES = np.array([1, 2, 3, 4, 1, 1, 1, 1]) / 14


def ring_with_chances(beta_steps=10**9):
    """Make a ring of 8 transitions that are sampled with the probabilities CHANCES."""
    ring = ring_of(PrioritisedRing, 10, 1, alpha=0.5, beta=0.4, beta_steps=beta_steps)
    for step in range(9):
        ring.add(eventless(np.full((1, 1), step)))
    ring.update_priorities(torch.arange(8), torch.tensor([1.0, 4.0, 9.0, 16.0, 1.0, 1.0, 1.0, 1.0]))
    return ring


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.integers(1, 3),
    n_step=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_priorities_equal_those_of_a_slow_twin_after_random_operations(seed, num_envs, n_step, alpha):
    ring, twin = ring_and_twin(functools.partial(PrioritisedRing, alpha=alpha), 8 + n_step, num_envs, n_step)
    rng, priorities, highest = np.random.default_rng(seed), {}, 1.0
    for number, step in enumerate(random_steps(rng, num_envs, 40)):
        ring.add(step)
        twin.add(*step)
        priorities |= {(number, n): highest for n in range(num_envs)}
        places = places_of(twin, num_envs)
        if rng.random() < 0.5:  # also of steps that were overwritten, or that cannot be sampled yet
            indices = rng.integers(max(0, number - 12) * num_envs, (number + 1) * num_envs, size=rng.integers(1, 20))
            new = rng.uniform(0.01, 3.0, len(indices))
            ring.update_priorities(torch.from_numpy(indices), torch.from_numpy(new))
            updated = zip((divmod(int(index), num_envs) for index in indices), new.tolist(), strict=True)
            kept = [(place, priority) for place, priority in updated if place in places]
            priorities |= dict(kept)  # of a repeated index, the last priority counts
            highest = max([highest, *(priority for _, priority in kept)])
        expected = np.zeros(ring._tree.size)
        for place in places:
            expected[index_of(ring, place)] = priorities[place] ** alpha
        assert ring._tree[np.arange(ring._tree.size)] == pytest.approx(expected)
        assert ring._tree.total == pytest.approx(expected.sum())


def test_a_batch_is_stratified():
    # Each of the 7 equal parts covers one or two steps. Step 3 fills two parts, so it is in every batch twice.
    ring = ring_with_chances()
    for _ in range(200):
        counts = ring.sample(7).indices.bincount(minlength=8)
        assert counts[3] == 2
        assert 1 <= counts[2] <= 2
        assert counts[4] + counts[5] == counts[6] + counts[7] == 1


def test_importance_weights_correct_the_priorities():
    ring = ring_with_chances()
    for _ in range(5):
        batch = ring.sample(8)
        expected = (8 * CHANCES) ** -0.4
        expected = expected[batch.indices] / expected[batch.indices].max()
        assert batch.weights.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_beta_rises_with_agent_steps_after_the_first_batch():
    ring, _ = ring_and_twin(functools.partial(PrioritisedRing, beta_steps=20), 9, 2, 1)
    steps = list(random_steps(np.random.default_rng(0), 2, 30))
    for step in steps[:10]:
        ring.add(step)
    assert ring.beta == 0.4
    for number, step in enumerate(steps[10:]):
        ring.sample(4)
        assert ring.beta == pytest.approx(min(1.0, 0.4 + 0.6 * 2 * number / 20))
        ring.add(step)


def test_priorities_are_absolute_errors_plus_a_constant_and_nan_counts_as_zero():
    errors = torch.tensor([0.0, -2.0, 3.0, float("nan")], requires_grad=True)
    priorities = priorities_from_errors(errors)
    assert not priorities.requires_grad
    assert priorities.tolist() == pytest.approx([1e-5, 2.00001, 3.00001, 1e-5])
