import numpy as np
import pytest
import torch

from lib.ppo import losses
from oracles import gae
from ppo_setup import rollout_of


def test_advantages_worked_by_hand():
    # The second step truncates its episode: the 8 counts, and the third step does not. The fourth step terminates its
    # episode, so the 1000 must not count.
    rollout = rollout_of(
        rewards=[[1.0], [2.0], [3.0], [4.0]],
        values=[[10.0], [20.0], [30.0], [40.0]],
        next_values=[[20.0], [8.0], [40.0], [1000.0]],
        terminated=[[False], [False], [False], [True]],
        ended=[[False], [True], [False], [True]],
    )
    deltas = [1 + 0.5 * 20 - 10, 2 + 0.5 * 8 - 20, 3 + 0.5 * 40 - 30, 4 - 40]
    expected = [deltas[0] + 0.5 * 0.2 * deltas[1], deltas[1], deltas[2] + 0.5 * 0.2 * deltas[3], deltas[3]]
    assert losses.estimate_advantages(rollout, 0.5, 0.2).flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(2))
def test_advantages_agree_with_the_slow_twins(seed):
    rng = np.random.default_rng(seed)
    rewards, values, next_values = rng.normal(size=(3, 20, 4)).tolist()
    ended = rng.random((20, 4)) < 0.2
    terminated = (ended & (rng.random((20, 4)) < 0.5)).tolist()
    played = (rewards, values, next_values, terminated, ended.tolist())
    rollout = rollout_of(*played)
    found = losses.estimate_advantages(rollout, 0.9, 0.7)
    assert torch.allclose(found, torch.tensor(gae.advantages(*played, 0.9, 0.7)), atol=1e-5)
    assert torch.equal(losses.estimate_advantages(rollout, 0.9, 0.7, torch.ones(20, 4)), found)
    rhos = torch.from_numpy(rng.random((20, 4), np.float32))
    targets = torch.tensor(gae.vtrace_targets(*played, 0.9, 0.7, rhos.tolist()))
    found = rollout.values + rhos * losses.estimate_advantages(rollout, 0.9, 0.7, rhos)
    assert torch.allclose(found, targets, atol=1e-6)


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
