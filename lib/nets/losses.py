"""Targets and losses of Q-learning as pure functions of tensors.

Shapes: a batch is (batch, ...), action values are (batch, n_actions), return distributions are (batch, atoms).
"""

import torch
from torch.nn import functional as F

from lib.errors import UsageError

MAX_ATOMS = 500  # limited because a projection needs memory for batch * atoms ** 2 numbers
MAX_RETURN = 1e30  # largest absolute return of a support, so that float32 does not overflow


def require_batch(**tensors: torch.Tensor) -> None:
    """Check that all tensors have the same shape (batch,). torch would broadcast other shapes without an error.

    Args:
        tensors: tensors by name. The names appear in the error message.

    Raises:
        ValueError: if the shapes differ or are not (batch,).
    """
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise ValueError(f"{', '.join(tensors)} have the shapes {shapes}; all have to be (batch,)")


def q_targets(returns: torch.Tensor, discounts: torch.Tensor, next_target_q_values: torch.Tensor) -> torch.Tensor:
    """Compute the targets of DQN, Mnih et al. (2015), algorithm 1.

    Args:
        returns: see double_q_targets.
        discounts: see double_q_targets.
        next_target_q_values: (batch, n_actions) values of the next states, from the target network.

    Returns:
        (batch,) targets in the dtype of the inputs.

    Raises:
        ValueError: if the shapes do not match.
    """
    return double_q_targets(returns, discounts, next_target_q_values, next_target_q_values)


def double_q_targets(
    returns: torch.Tensor, discounts: torch.Tensor, next_q_values: torch.Tensor, next_target_q_values: torch.Tensor
) -> torch.Tensor:
    """Compute the targets of double DQN, van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461.

    The online network selects the next action, and the target network evaluates it.

    Args:
        returns: (batch,) discounted rewards from a state to the next state, which may be several steps later.
        discounts: (batch,) discount factors of the next state's value; 0 if the episode terminated.
        next_q_values: (batch, n_actions) values of the next states, from the online network.
        next_target_q_values: (batch, n_actions) values of the next states, from the target network.

    Returns:
        (batch,) targets in the dtype of the inputs.

    Raises:
        ValueError: if the shapes do not match.
    """
    shapes = [tuple(tensor.shape) for tensor in (returns, discounts, next_q_values, next_target_q_values)]
    batch = len(returns)
    if shapes[:2] != [(batch,)] * 2 or shapes[2] != shapes[3] or len(shapes[2]) != 2 or shapes[2][0] != batch:
        raise ValueError(
            f"returns, discounts, next_q_values and next_target_q_values have the shapes {shapes}; "
            "they have to be (batch,), (batch,), (batch, n_actions) and (batch, n_actions)"
        )
    return td_targets(returns, discounts, select_actions(next_target_q_values, next_q_values.argmax(dim=1)))


def td_targets(returns: torch.Tensor, discounts: torch.Tensor, next_values: torch.Tensor) -> torch.Tensor:
    """Compute returns + discounts * next_values. A next value is ignored if its discount is 0.

    Args:
        returns: (batch,) discounted rewards up to the next state.
        discounts: (batch,) discount factors of the next state's value; 0 if the episode terminated.
        next_values: (batch,) values of the next states. They may be infinite or NaN if the discount is 0.

    Raises:
        ValueError: if the shapes differ or are not (batch,).
    """
    require_batch(returns=returns, discounts=discounts, next_values=next_values)
    return returns + torch.where(discounts == 0.0, 0.0, discounts * next_values)


def select_actions(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Select the output of each row's action.

    Args:
        outputs: (batch, n_actions, ...) values or distributions.
        actions: (batch,) int64.

    Returns:
        (batch, ...) outputs of the actions.

    Raises:
        ValueError: if the shapes do not match.
    """
    if outputs.ndim < 2 or actions.shape != outputs.shape[:1]:
        raise ValueError(
            f"outputs and actions have the shapes {tuple(outputs.shape)} and {tuple(actions.shape)}; "
            "they have to be (batch, n_actions, ...) and (batch,)"
        )
    return outputs[torch.arange(len(actions), device=actions.device), actions]


def td_losses(errors: torch.Tensor, huber: bool = False) -> torch.Tensor:
    """Compute the loss of each TD error: its square, or its Huber loss.

    The gradient of the Huber loss is the error clipped to [-1, 1], as in Mnih et al. (2015), section Training
    algorithm. The gradient of the squared error is twice the error.

    Args:
        errors: TD errors of any shape.
        huber: use the Huber loss, Huber (1964), instead of the squared error.

    Returns:
        Losses of the same shape.
    """
    return F.huber_loss(errors, torch.zeros_like(errors), reduction="none") if huber else errors.square()


def weighted_mean(losses: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Compute the loss of a prioritised batch, Schaul et al. (2016), https://arxiv.org/abs/1511.05952, section 3.4.

    Args:
        losses: (batch,) losses of the transitions.
        weights: (batch,) importance-sampling weights.

    Returns:
        The mean of losses * weights, a scalar.

    Raises:
        ValueError: if the shapes differ or are not (batch,).
    """
    require_batch(losses=losses, weights=weights)
    return (weights * losses).mean()


def support(v_min: float, v_max: float, atoms: int) -> torch.Tensor:
    """Return the support of a return distribution, Bellemare et al. (2017), section 4.

    The paper is https://arxiv.org/abs/1707.06887.

    Args:
        v_min: smallest return.
        v_max: largest return.
        atoms: number of returns.

    Returns:
        (atoms,) float32, evenly spaced from v_min to v_max.

    Raises:
        UsageError: if atoms is out of range, v_min is not below v_max, or the range is too large or too narrow for
            float32.
    """
    if not 2 <= atoms <= MAX_ATOMS:
        raise UsageError(f"atoms is {atoms}; it has to be between 2 and {MAX_ATOMS}")
    bounds = f"v_min is {v_min:g} and v_max {v_max:g}"
    if not -MAX_RETURN < v_min < v_max < MAX_RETURN:
        raise UsageError(f"{bounds}; v_min has to be below v_max, both between -{MAX_RETURN:g} and {MAX_RETURN:g}")
    returns = torch.linspace(v_min, v_max, atoms)
    if (returns.diff() <= 0.0).any():
        raise UsageError(f"{bounds}; float32 cannot distinguish {atoms} returns between them; use a wider range")
    return returns


def project_distribution(
    next_probs: torch.Tensor, returns: torch.Tensor, discounts: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """Project the distribution of returns + discounts * Z onto the support of Z, Bellemare et al. (2017), equation 7.

    The probability of each shifted atom is divided between its two neighbours in the support; the closer one gets more.
    An atom beyond an end of the support is moved to that end.

    Args:
        next_probs: (batch, atoms) probabilities of Z.
        returns: (batch,) discounted rewards up to the next state.
        discounts: (batch,) discount factors; 0 moves all probability to the return.
        support: (atoms,) evenly spaced returns.

    Returns:
        (batch, atoms) probabilities; the sum of each row is unchanged.

    Raises:
        ValueError: if the shapes do not match.
    """
    shapes = [tuple(tensor.shape) for tensor in (next_probs, returns, discounts, support)]
    batch, atoms = len(returns), len(support)
    if shapes != [(batch, atoms), (batch,), (batch,), (atoms,)]:
        raise ValueError(
            f"next_probs, returns, discounts and support have the shapes {shapes}; "
            "they have to be (batch, atoms), (batch,), (batch,) and (atoms,)"
        )
    step = (support[-1] - support[0]) / (atoms - 1)
    # Positions of the shifted atoms, in steps of the support.
    positions = ((returns[:, None] + discounts[:, None] * support - support[0]) / step).clamp(0.0, atoms - 1.0)
    # (batch, i, j): the share of position i that atom j gets. It falls linearly from 1 to 0 within one step.
    shares = (1.0 - (positions[:, :, None] - torch.arange(atoms, device=support.device)).abs()).clamp(min=0.0)
    return (next_probs[:, :, None] * shares).sum(dim=1)


def kl_divergence(target_probs: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    """Compute the Kullback-Leibler divergences KL(target || prediction).

    Their gradient is that of the cross-entropy loss of Bellemare et al. (2017), algorithm 1. Rainbow also uses them as
    priorities, Hessel et al. (2018), section The Integrated Agent.

    Args:
        target_probs: (batch, atoms) target probabilities, without a gradient.
        log_probs: (batch, atoms) natural logarithms of the predicted probabilities.

    Returns:
        (batch,) divergences, at least 0 up to rounding.

    Raises:
        ValueError: if the shapes differ or are not (batch, atoms).
    """
    if target_probs.ndim != 2 or target_probs.shape != log_probs.shape:
        raise ValueError(
            f"target_probs and log_probs have the shapes {tuple(target_probs.shape)} and {tuple(log_probs.shape)}; "
            "both have to be (batch, atoms)"
        )
    divergences: torch.Tensor = torch.special.xlogy(target_probs, target_probs) - target_probs * log_probs
    return divergences.sum(dim=1)
