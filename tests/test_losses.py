import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib import losses
from oracles import td


def test_values_of_picks_the_column_of_each_rows_action():
    q_values = torch.tensor([[1.0, 20.0, 300.0], [4.0, 50.0, 600.0]])  # 20 and 4 are decoys
    assert losses.values_of(q_values, torch.tensor([2, 1])).tolist() == [300.0, 50.0]


def test_td_targets_by_hand():
    rewards = torch.tensor([1.0, -1.0, 0.5])
    dones = torch.tensor([False, True, False])
    next_values = torch.tensor([10.0, 1e6, 4.0])  # a million behind a terminal state would show at once
    assert losses.td_targets(rewards, dones, next_values, 0.5).tolist() == [6.0, -1.0, 2.5]


@pytest.mark.parametrize(("gamma", "expected"), [(0.0, [1.0, 2.0]), (1.0, [4.0, 2.0])])
def test_td_targets_at_the_ends_of_gamma(gamma, expected):
    targets = losses.td_targets(
        torch.tensor([1.0, 2.0]), torch.tensor([False, True]), torch.tensor([3.0, float("inf")]), gamma
    )
    assert targets.tolist() == expected


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**31), st.floats(0, 1))
def test_agree_with_the_loop_twin(batch, n_actions, seed, gamma):
    generator = torch.Generator().manual_seed(seed)
    q_values, next_q_values = torch.randn(2, batch, n_actions, generator=generator, dtype=torch.float64)
    actions = torch.randint(n_actions, (batch,), generator=generator)
    rewards = torch.randn(batch, generator=generator, dtype=torch.float64)
    dones = torch.rand(batch, generator=generator) < 0.3
    values = losses.values_of(q_values, actions)
    targets = losses.td_targets(rewards, dones, next_q_values.max(dim=1).values, gamma)
    rows = list(zip(actions.tolist(), rewards.tolist(), dones.tolist(), strict=True))
    expected = td.dqn_loss(rows, q_values.tolist(), next_q_values.tolist(), gamma)
    assert torch.nn.functional.mse_loss(values, targets).item() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("q_values", "actions", "message"),
    [
        (torch.zeros(3), torch.zeros(3, dtype=torch.int64), "q_values have the shape"),
        (torch.zeros(3, 2), torch.zeros(3, 1, dtype=torch.int64), "actions have the shape"),
        (torch.zeros(3, 2), torch.zeros(4, dtype=torch.int64), "actions are 4, the batch is 3"),
        (torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, dtype=torch.int64), "floating-point"),
        (torch.zeros(3, 2), torch.zeros(3), "int64"),
    ],
)
def test_values_of_refuses_other_shapes_and_types(q_values, actions, message):
    with pytest.raises((ValueError, TypeError), match=message):
        losses.values_of(q_values, actions)


@pytest.mark.parametrize(
    ("rewards", "dones", "next_values", "message"),
    [
        (torch.zeros(2, 1), torch.zeros(2, dtype=torch.bool), torch.zeros(2), "rewards have the shape"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.uint8), torch.zeros(2), "dones are torch.uint8"),
        (torch.zeros(2), torch.zeros(3, dtype=torch.bool), torch.zeros(2), "dones are 3, the batch is 2"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bool), torch.zeros(2, 1), "next_values have the shape"),
        (torch.zeros(2, dtype=torch.int64), torch.zeros(2, dtype=torch.bool), torch.zeros(2), "floating-point"),
    ],
)
def test_td_targets_refuses_other_shapes_and_types(rewards, dones, next_values, message):
    with pytest.raises((ValueError, TypeError), match=message):
        losses.td_targets(rewards, dones, next_values, 0.9)
