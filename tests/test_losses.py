import pytest
import torch

from lib import losses


def test_double_q_targets_worked_by_hand():
    # The learning network prefers actions 2, 0 and 1; 90 and 80 are what the target network would have preferred, and
    # 1000 follows a terminated episode.
    targets = losses.double_q_targets(
        returns=torch.tensor([1.0, -1.0, 2.0]),
        discounts=torch.tensor([0.9, 0.81, 0.0]),
        next_q_values=torch.tensor([[0.0, 1.0, 3.0], [5.0, 4.0, 0.0], [0.0, 1.0, 0.0]]),
        next_target_q_values=torch.tensor([[90.0, 7.0, 10.0], [20.0, 80.0, 3.0], [4.0, 1000.0, 5.0]]),
    )
    assert targets.tolist() == pytest.approx([1.0 + 0.9 * 10.0, -1.0 + 0.81 * 20.0, 2.0])


@pytest.mark.parametrize("shape", [(3, 1), (2, 4), (3,)])
def test_targets_of_shapes_that_do_not_fit_are_refused(shape):
    with pytest.raises(ValueError, match=r"have to be \(batch,\), \(batch,\), \(batch, n_actions\)"):
        losses.double_q_targets(torch.zeros(3), torch.zeros(3), torch.zeros(3, 4), torch.zeros(shape))
