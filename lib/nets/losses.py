"""Targets and losses of Q-learning as pure functions of tensors.

Arguments of the same name mean the same in every function:

    returns     (batch,) discounted rewards from a state to the next state, which may be several steps later
    discounts   (batch,) discount factors of the next state's value; 0 if the episode terminated
    support     (atoms,) evenly spaced returns of a return distribution

If shapes do not match, they raise a ValueError, because torch would broadcast them to a wrong number.
"""

import torch
from torch.nn import functional as F

from lib.errors import UsageError


def require_batch(**tensors: torch.Tensor) -> None:
    """Check that all tensors have the same shape (batch,)."""
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise ValueError(f"{', '.join(tensors)} have the shapes {shapes}; all have to be (batch,)")


def double_q_targets(
    returns: torch.Tensor, discounts: torch.Tensor, next_q_values: torch.Tensor, next_target_q_values: torch.Tensor
) -> torch.Tensor:
    """Compute the targets of double DQN, (batch,), van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461.

    Args:
        next_q_values: (batch, n_actions) values of the next states, from the online network, which selects the actions.
        next_target_q_values: (batch, n_actions) values of the next states, from the target network, which evaluates
            the actions.
    """
    return td_targets(returns, discounts, select_actions(next_target_q_values, next_q_values.argmax(dim=1)))


def td_targets(returns: torch.Tensor, discounts: torch.Tensor, next_values: torch.Tensor) -> torch.Tensor:
    """Compute returns + discounts * next_values, (batch,). A next value may be infinite or NaN if its discount is 0."""
    require_batch(returns=returns, discounts=discounts, next_values=next_values)
    return returns + torch.where(discounts == 0.0, 0.0, discounts * next_values)


def select_actions(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Select each row's action (batch,) from outputs (batch, n_actions, ...). The result is (batch, ...)."""
    return outputs[torch.arange(len(actions), device=actions.device), actions]


def td_losses(errors: torch.Tensor, huber: bool = False) -> torch.Tensor:
    """Compute the loss of each TD error: its square, or its Huber loss, Huber (1964).

    The gradient of the Huber loss is the error clipped to [-1, 1], as in Mnih et al. (2015), section Training
    algorithm. The gradient of the squared error is twice the error.
    """
    return F.huber_loss(errors, torch.zeros_like(errors), reduction="none") if huber else errors.square()


def weighted_mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the loss of a prioritised batch, Schaul et al. (2016), https://arxiv.org/abs/1511.05952, section 3.4.

    Args:
        losses: (batch,) losses of the transitions.
        weights: (batch,) importance-sampling weights.
    """
    require_batch(losses=losses, weights=weights)
    return (weights * losses).mean()


def support(v_min: float, v_max: float, atoms: int) -> torch.Tensor:
    """Return the support of a return distribution, (atoms,) float32, evenly spaced from v_min to v_max.

    See Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, section 4.

    Raises:
        UsageError: if v_min is not below v_max, or float32 cannot hold the returns.
    """
    returns = torch.linspace(v_min, v_max, atoms)
    if not (returns.diff() > 0.0).all():  # NaN is refused, too
        raise UsageError(
            f"v_min is {v_min:g} and v_max {v_max:g}; v_min has to be below v_max, and float32 has to distinguish "
            f"{atoms} returns between them"
        )
    return returns


def project_distribution(
    next_probs: torch.Tensor, returns: torch.Tensor, discounts: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """Project the distribution of returns + discounts * Z onto the support of Z, Bellemare et al. (2017), equation 7.

    The probability of each shifted atom is divided between its two neighbours in the support; the closer one gets more.
    An atom beyond an end of the support is moved to that end.

    Args:
        next_probs: (batch, atoms) probabilities of Z.

    Returns:
        (batch, atoms) probabilities; the sum of each row is unchanged.
    """
    atoms = len(support)
    step = (support[-1] - support[0]) / (atoms - 1)
    # Positions of the shifted atoms, in steps of the support.
    positions = ((returns[:, None] + discounts[:, None] * support - support[0]) / step).clamp(0.0, atoms - 1.0)
    # (batch, i, j): the share of position i that atom j gets. It falls linearly from 1 to 0 within one step.
    shares = (1.0 - (positions[:, :, None] - torch.arange(atoms, device=support.device)).abs()).clamp(min=0.0)
    return (next_probs[:, :, None] * shares).sum(dim=1)


def kl_divergence(target_probs: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    """Compute the Kullback-Leibler divergences KL(target || prediction), (batch,), at least 0 up to rounding.

    Their gradient is that of the cross-entropy loss of Bellemare et al. (2017), algorithm 1. Rainbow also uses them as
    priorities, Hessel et al. (2018), section The Integrated Agent.

    Args:
        target_probs: (batch, atoms) target probabilities, without a gradient.
        log_probs: (batch, atoms) natural logarithms of the predicted probabilities.
    """
    divergences: torch.Tensor = torch.special.xlogy(target_probs, target_probs) - target_probs * log_probs
    return divergences.sum(dim=1)
