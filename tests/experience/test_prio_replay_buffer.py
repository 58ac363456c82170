"""The book's prioritised buffer, beside a naive one."""

import numpy as np
import pytest
import torch

from lib.dqn_extra import BETA_FRAMES, BETA_START, PrioReplayBuffer


class Naive:
    """The same by lists and loops."""

    def __init__(self, capacity, alpha):
        self.capacity, self.alpha = capacity, alpha
        self.items, self.priorities, self.highest, self.position = [], [], 1.0, 0

    def add(self, item):
        if len(self.items) < self.capacity:
            self.items.append(item)
            self.priorities.append(self.highest)
        else:
            self.items[self.position], self.priorities[self.position] = item, self.highest
        self.position = (self.position + 1) % self.capacity

    def update(self, indices, priorities):
        for index, priority in zip(indices, priorities, strict=True):
            self.priorities[index] = priority
            self.highest = max(self.highest, priority)

    @property
    def probabilities(self):
        weights = np.array(self.priorities) ** self.alpha
        return weights / weights.sum()


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_leave_the_same_probabilities_as_the_naive_buffer(seed):
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    alpha, capacity = rng.uniform(0.0, 1.0), int(rng.integers(1, 40))
    buffer, naive = PrioReplayBuffer(iter(range(10_000)), capacity, alpha), Naive(capacity, alpha)
    item = 0
    for _ in range(60):
        count = int(rng.integers(1, 8))
        buffer.populate(count)
        for _ in range(count):
            naive.add(item)
            item += 1
        buffer.update_beta(int(rng.integers(0, 150_000)))
        samples, indices, weights = buffer.sample(int(rng.integers(1, 10)))
        assert buffer.buffer == naive.items
        assert samples == [naive.items[index] for index in indices]
        expected = (len(naive.items) * naive.probabilities[indices]) ** -buffer.beta
        assert weights.dtype == np.float32
        assert np.allclose(weights, expected / expected.max(), rtol=1e-5)
        priorities = rng.uniform(0.01, 5.0, len(indices))
        buffer.update_priorities(indices, priorities)
        naive.update(indices, priorities)


def test_transitions_are_drawn_in_proportion_to_priority_to_the_power_of_alpha():
    torch.manual_seed(0)
    buffer = PrioReplayBuffer(iter(range(4)), 4, 0.5)
    buffer.populate(4)
    buffer.update_priorities(np.arange(4), np.array([1.0, 4.0, 9.0, 16.0]))
    _, indices, _ = buffer.sample(40_000)
    assert np.allclose(np.bincount(indices) / 40_000, np.array([1, 2, 3, 4]) / 10, atol=0.01)


def test_torchs_seed_decides_what_is_drawn():
    def draw(seed):
        torch.manual_seed(seed)
        buffer = PrioReplayBuffer(iter(range(100)), 100)
        buffer.populate(100)
        return buffer.sample(20)[1].tolist()

    assert draw(1) == draw(1) != draw(2)


def test_beta_rises_linearly_to_one():
    buffer = PrioReplayBuffer(iter(()), 1)
    assert (BETA_START, BETA_FRAMES) == (0.4, 100_000)
    assert buffer.beta == buffer.update_beta(0) == 0.4
    assert buffer.update_beta(50_000) == pytest.approx(0.7)
    assert buffer.update_beta(200_000) == buffer.beta == 1.0


def test_priorities_that_are_not_finite_leave_it_to_the_loss_to_stop_the_run():
    buffer = PrioReplayBuffer(iter(range(4)), 4, 1.0)
    buffer.populate(4)
    _, indices, _ = buffer.sample(4)
    buffer.update_priorities(indices, np.array([np.nan, np.inf, 1.0, np.nan], np.float32))
    *_, weights = buffer.sample(4)
    assert np.isfinite(weights).all()
