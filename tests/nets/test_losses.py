"""Targets and losses: small examples by hand, and comparisons with loops."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import UsageError
from lib.nets import losses
from oracles import distribution


def test_targets_by_hand():
    # The online network prefers actions 2, 0 and 1. The target network prefers the values 90 and 80. The value 1000
    # comes after a termination and does not count.
    returns, discounts = torch.tensor([1.0, -1.0, 2.0]), torch.tensor([0.9, 0.81, 0.0])
    online = torch.tensor([[0.0, 1.0, 3.0], [5.0, 4.0, 0.0], [0.0, 1.0, 0.0]])
    target = torch.tensor([[90.0, 7.0, 10.0], [20.0, 80.0, 3.0], [4.0, 1000.0, 5.0]])
    double = losses.double_q_targets(returns, discounts, online, target)
    assert double.tolist() == pytest.approx([1.0 + 0.9 * 10.0, -1.0 + 0.81 * 20.0, 2.0])
    single = losses.td_targets(returns, discounts, target.max(dim=1).values)
    assert single.tolist() == pytest.approx([1.0 + 0.9 * 90.0, -1.0 + 0.81 * 80.0, 2.0])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), atoms=st.integers(2, 51))
def test_the_divergence_equals_that_of_a_loop(seed, atoms):
    generator = torch.Generator().manual_seed(seed)
    targets, predicted = (3.0 * torch.randn(2, 4, atoms, generator=generator)).softmax(2)
    targets[:, 0] = 0.0
    divergences = losses.kl_divergence(targets, predicted.log()).tolist()
    for row, divergence in enumerate(divergences):
        pairs = zip(targets[row].tolist(), predicted[row].tolist(), strict=True)
        assert divergence == pytest.approx(sum(p * math.log(p / q) for p, q in pairs if p > 0.0), abs=1e-4)


def test_the_loss_of_a_prioritised_batch_is_a_weighted_mean():
    each, weights = torch.tensor([1.0, 10.0, 100.0]), torch.tensor([1.0, 0.5, 0.0])
    assert losses.weighted_mean(each, weights).item() == pytest.approx((1.0 + 5.0) / 3)
    with pytest.raises(ValueError, match=r"losses, weights have the shapes .*; all have to be \(batch,\)"):
        losses.weighted_mean(each, weights[:, None])


def test_values_after_a_termination_may_be_infinite_or_nan():
    values = torch.tensor([float("inf"), float("nan"), 2.0])
    targets = losses.td_targets(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.0, 0.0, 0.5]), values)
    assert targets.tolist() == [1.0, 2.0, 4.0]
    for argument in range(3):
        arguments = [torch.zeros(3, 1) if index == argument else torch.zeros(3) for index in range(3)]
        with pytest.raises(ValueError, match=r"all have to be \(batch,\)"):
            losses.td_targets(*arguments)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    atoms=st.integers(2, 51),
    v_min=st.integers(-20, 5),
    width=st.integers(1, 30),
    discount=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
)
def test_a_projection_equals_that_of_the_slow_twin_and_keeps_all_probability(seed, atoms, v_min, width, discount):
    generator = torch.Generator().manual_seed(seed)
    next_probs = torch.rand(4, atoms, generator=generator).softmax(1)
    returns = torch.rand(4, generator=generator) * 2 * width - width
    support = losses.support(v_min, v_min + width, atoms)
    projected = losses.project_distribution(next_probs, returns, torch.full((4,), discount), support)
    for row in range(4):
        twin = distribution.project(next_probs[row].tolist(), returns[row].item(), discount, v_min, v_min + width)
        assert projected[row].tolist() == pytest.approx(twin, abs=1e-4)
    assert projected.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)


def test_penalties_are_squared_errors_or_huber_losses():
    errors = torch.tensor([-3.0, -0.5, 0.0, 1.0, 2.0], requires_grad=True)
    assert losses.td_losses(errors).tolist() == [9.0, 0.25, 0.0, 1.0, 4.0]
    assert losses.td_losses(errors, huber=True).tolist() == [2.5, 0.125, 0.0, 0.5, 1.5]
    losses.td_losses(errors, huber=True).sum().backward()
    assert errors.grad.tolist() == [-1.0, -0.5, 0.0, 1.0, 1.0]


@pytest.mark.parametrize(("v_min", "v_max"), [(0.0, float("nan")), (1e8, 1e8 + 1.0)])
def test_a_support_whose_returns_do_not_grow_is_refused(v_min, v_max):
    with pytest.raises(UsageError, match="v_min has to be below v_max, and float32 has to distinguish 51 returns"):
        losses.support(v_min, v_max, 51)
