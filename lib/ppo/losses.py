"""PPO's advantage estimates and losses, as pure functions of tensors."""

import torch

from lib.ppo.rollout import Rollout


def estimate_advantages(rollout: Rollout, gamma: float, lam: float, rhos: torch.Tensor | None = None) -> torch.Tensor:
    """Generalised advantage estimates, Schulman et al. (2016), https://arxiv.org/abs/1506.02438, equation 16.

    A truncated episode is bootstrapped from the value of its last state, a terminated one from 0.

    With `rhos`, they are those of V-trace for steps of an older policy, Espeholt et al. (2018),
    https://arxiv.org/abs/1802.01561, equation 1, with both truncation levels 1 and c = lambda * rho. The value target
    is value + rho * advantage. PPO's clipped ratio replaces the paper's rho of the step itself.

    Args:
        rollout: T steps of N environments.
        gamma: discount factor, 0 to 1.
        lam: the paper's lambda, 0 to 1.
        rhos: (T, N) importance weights, at most 1: the ratios of the actions' probabilities under the current policy
            to those under the behaviour policy. None for on-policy steps.

    Returns:
        (T, N) float32.
    """
    deltas = rollout.rewards + gamma * rollout.next_values.masked_fill(rollout.terminated, 0.0) - rollout.values
    discounts = gamma * lam * (~rollout.ended).float()
    estimates = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        following = estimates[step] = deltas[step] + discounts[step] * following
        if rhos is not None:
            following = rhos[step] * following
    return estimates


def policy_loss(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, advantages: torch.Tensor, clip: float
) -> torch.Tensor:
    """Negated clipped surrogate objective, a scalar, Schulman et al. (2017), equation 7.

    Args:
        log_probs, old_log_probs: log-probabilities of the actions now, and when they were chosen, (batch,).
        advantages: (batch,).
        clip: the paper's epsilon.
    """
    assert log_probs.shape == old_log_probs.shape == advantages.shape  # otherwise torch would broadcast them
    ratio = (log_probs - old_log_probs).exp()
    return -torch.min(ratio * advantages, ratio.clamp(1.0 - clip, 1.0 + clip) * advantages).mean()


def normalised(advantages: torch.Tensor) -> torch.Tensor:
    """Shift and scale advantages, (batch,), to mean 0 and standard deviation 1. There have to be at least two."""
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def approximate_kl(log_probs: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
    """Estimate the Kullback-Leibler divergence KL(old policy || new policy), a scalar, from the old policy's actions.

    The estimate is the mean of r - 1 - log r, in which r is the ratio of the new probability to the old one; see
    http://joschu.net/blog/kl-approx.html. The arguments are those of policy_loss.
    """
    log_ratio = log_probs - old_log_probs
    return (log_ratio.exp() - 1.0 - log_ratio).mean()
