"""Prioritised replay: sampling, importance weights, and priorities against their slow twin."""

import functools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.experience.priority_ring import PrioritisedRing, priorities_from_errors
from rings import index_of, places_of, random_steps, ring_and_twin, sample_many

CHANCES = np.array([1, 2, 3, 4, 1, 1, 1, 1]) / 14


def ring_with_chances(beta_steps=10**9):
    """Make a ring of 8 transitions that are sampled with the probabilities CHANCES."""
    ring = PrioritisedRing(10, 1, (1,), stack=1, alpha=0.5, beta=0.4, beta_steps=beta_steps, seed=3)
    nothing = np.zeros(1, bool)
    for step in range(9):
        ring.add(np.full((1, 1), step), np.zeros(1, int), np.zeros(1), nothing, nothing)
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
        ring.add(*step)
        twin.add(*step)
        priorities |= {(number, n): highest for n in range(num_envs)}
        places = places_of(twin, num_envs)
        if places and rng.random() < 0.5:
            count = rng.integers(1, 2 * len(places) + 1)
            updated = [places[index] for index in rng.integers(len(places), size=count)]
            new = rng.uniform(0.01, 3.0, count)
            indices = [step * num_envs + env for step, env in updated]  # of a repeated index, the last priority counts
            ring.update_priorities(torch.tensor(indices), torch.from_numpy(new))
            priorities |= dict(zip(updated, new.tolist(), strict=True))
            highest = max(highest, new.max())
        expected = np.zeros(ring._tree.size)
        for place in places:
            expected[index_of(ring, place)] = priorities[place] ** alpha
        assert ring._tree[np.arange(ring._tree.size)] == pytest.approx(expected)
        assert ring._tree.total == pytest.approx(expected.sum())


def test_priorities_of_overwritten_steps_change_nothing():
    ring = ring_with_chances()
    batch = ring.sample(8)
    nothing = np.zeros(1, bool)
    for step in range(11):  # as many as the ring holds, and one more
        ring.add(np.full((1, 1), step), np.zeros(1, int), np.zeros(1), nothing, nothing)
    before = ring._tree[np.arange(10)].copy()
    ring.update_priorities(batch.indices, torch.full((8,), 100.0))
    assert (ring._tree[np.arange(10)] == before).all()


@pytest.mark.slow
def test_steps_are_sampled_in_proportion_to_their_priorities():
    counts = sample_many(ring_with_chances(), 2_000, batch_size=1).indices.bincount(minlength=8).numpy()
    expected = 2_000 * CHANCES
    # Chi-square with 7 degrees of freedom exceeds 24.3 once in a thousand times.
    assert ((counts - expected) ** 2 / expected).sum() < 24.3
    assert counts[-1] > 0


def test_a_batch_is_stratified():
    # Each of the 7 equal parts covers one or two steps. Step 3 fills two parts, so it is in every batch twice.
    ring = ring_with_chances()
    for _ in range(200):
        counts = ring.sample(7).indices.bincount(minlength=8)
        assert counts[3] == 2
        assert 1 <= counts[2] <= 2
        assert counts[4] + counts[5] == counts[6] + counts[7] == 1


def test_each_part_of_a_batch_is_sampled_independently():
    ring, _ = ring_and_twin(functools.partial(PrioritisedRing, alpha=0.0), 5000, 1, 1)
    for step in random_steps(np.random.default_rng(1), 1, 4000):
        ring.add(*step)
    gaps = ring.sample(50).indices.diff()  # each part has 80 steps; one random number for all would give 80
    assert gaps.unique().numel() > 25
    assert ((gaps > 0) & (gaps < 160)).all()


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
        ring.add(*step)
    assert ring.beta == 0.4
    for number, step in enumerate(steps[10:]):
        ring.sample(4)
        assert ring.beta == pytest.approx(min(1.0, 0.4 + 0.6 * 2 * number / 20))
        ring.add(*step)


@pytest.mark.parametrize("later", [(), (2.0,)])
def test_a_new_step_has_the_highest_priority_so_far(later):
    ring, nothing = ring_with_chances(), np.zeros(1, bool)
    for priority in later:  # lower than the highest so far
        ring.update_priorities(torch.tensor([4]), torch.tensor([priority]))
    for step in (9, 10):
        ring.add(np.full((1, 1), step), np.zeros(1, int), np.zeros(1), nothing, nothing)
    assert ring._tree[np.array([8, 9])].tolist() == [1.0, 4.0]  # alpha is 0.5, so the priority 16 gives 4


def test_priorities_of_steps_that_cannot_be_sampled_are_ignored():
    ring, twin = ring_and_twin(PrioritisedRing, 8, 1, 1)
    for step in random_steps(np.random.default_rng(0), 1, 20):
        ring.add(*step)
        twin.add(*step)
    before = ring._tree.total
    ring.update_priorities(torch.arange(12, 20), torch.full((8,), 5.0))
    assert (ring._tree[np.arange(8)] > 0).sum() == len(twin.valid())
    assert ring._tree.total == pytest.approx(before * 5.0**0.6)


def test_priorities_are_absolute_errors_plus_a_constant_and_nan_counts_as_zero():
    errors = torch.tensor([0.0, -2.0, 3.0, float("nan")], requires_grad=True)
    priorities = priorities_from_errors(errors)
    assert not priorities.requires_grad
    assert priorities.tolist() == pytest.approx([1e-5, 2.00001, 3.00001, 1e-5])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_priorities_that_are_not_positive_and_finite_are_refused(bad):
    ring, _ = ring_and_twin(PrioritisedRing, 8, 1, 1)
    with pytest.raises(ValueError, match="all have to be finite and above 0"):
        ring.update_priorities(torch.tensor([0, 1]), torch.tensor([1.0, bad]))
