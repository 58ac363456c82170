"""Values and targets as pure functions of batched tensors; each checks the shapes and types that it is given."""

import torch


def values_of(q_values: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Q(s, a) of the actions that were taken.

    Args:
        q_values: (batch, n_actions), floating point.
        actions: (batch,), int64, each in 0 .. n_actions - 1.

    Returns:
        (batch,), of q_values' type.

    Raises:
        ValueError, TypeError: a shape or a type is another.
    """
    _check("q_values", q_values, 2, floating=True)
    _check("actions", actions, 1, like=q_values)
    if actions.dtype != torch.int64:
        raise TypeError(f"actions are {actions.dtype}; they have to be int64")
    return q_values.gather(1, actions.unsqueeze(-1)).squeeze(-1)


def td_targets(rewards: torch.Tensor, dones: torch.Tensor, next_values: torch.Tensor, gamma: float) -> torch.Tensor:
    """One-step targets r + gamma V(s'), with V = 0 behind a terminal state; Sutton and Barto (2018), eq. 6.3.

    Args:
        rewards: (batch,), floating point.
        dones: (batch,), bool: the transition ends in a terminal state; a truncated one does not.
        next_values: (batch,), floating point: the values of the last states.
        gamma: discount factor between the two states.

    Returns:
        (batch,), of next_values' type.

    Raises:
        ValueError, TypeError: a shape or a type is another.
    """
    _check("rewards", rewards, 1, floating=True)
    _check("next_values", next_values, 1, floating=True, like=rewards)
    _check("dones", dones, 1, like=rewards)
    if dones.dtype != torch.bool:
        raise TypeError(f"dones are {dones.dtype}; they have to be bool")
    return rewards + gamma * next_values.masked_fill(dones, 0.0)


def _check(
    name: str, tensor: torch.Tensor, rank: int, floating: bool = False, like: torch.Tensor | None = None
) -> None:
    if tensor.ndim != rank:
        raise ValueError(f"{name} have the shape {tuple(tensor.shape)}; they have to have {rank} dimensions")
    if like is not None and len(tensor) != len(like):
        raise ValueError(f"{name} are {len(tensor)}, the batch is {len(like)}")
    if floating and not tensor.is_floating_point():
        raise TypeError(f"{name} are {tensor.dtype}; they have to be of a floating-point type")
