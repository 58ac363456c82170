import pytest
import torch

from lib.ppo import losses
from oracles import gae
from ppo_setup import random_rollout


@pytest.mark.parametrize("seed", range(2))
def test_advantages_agree_with_the_slow_twin(seed):
    torch.manual_seed(seed)
    rollout = random_rollout(20, 4)
    names = ("rewards", "values", "next_values", "terminated", "ended")
    played = {name: getattr(rollout, name).tolist() for name in names}
    for rhos in (torch.ones(20, 4), torch.rand(20, 4)):
        targets = torch.tensor(gae.vtrace_targets(**played, gamma=0.9, lam=0.7, rhos=rhos.tolist()))
        found = rollout.values + rhos * losses.estimate_advantages(rollout, 0.9, 0.7, rhos)
        assert torch.allclose(found, targets, atol=1e-5)
    on_policy = losses.estimate_advantages(rollout, 0.9, 0.7)
    assert torch.equal(losses.estimate_advantages(rollout, 0.9, 0.7, torch.ones(20, 4)), on_policy)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        (1.1, 2.0, 2.2),
        (1.5, 2.0, 2.4),  # clipped
        (0.5, 2.0, 1.0),  # not clipped, because the policy moved in the wrong direction
        (1.5, -2.0, -3.0),
        (0.5, -2.0, -1.6),
    ],
)
def test_policy_loss_worked_by_hand(ratio, advantage, expected):
    old = torch.tensor([-1.0, -2.0])
    log_probs = old + torch.tensor([ratio, 1.0]).log()
    loss = losses.policy_loss(log_probs, old, torch.tensor([advantage, 4.0]), clip=0.2)
    assert loss.item() == pytest.approx(-(expected + 4.0) / 2)
