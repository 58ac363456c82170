"""Targets and losses beyond the textbook's, as functions of tensors."""

import torch


def double_q_targets(
    returns: torch.Tensor, discounts: torch.Tensor, next_q_values: torch.Tensor, next_target_q_values: torch.Tensor
) -> torch.Tensor:
    """What the values of actions are drawn to in double DQN: the network that learns chooses the next action, and the
    target network values it, van Hasselt et al. (2016), https://arxiv.org/abs/1509.06461, equation 4.

    Args:
        returns: (batch,) discounted rewards from a state to the next one, which may be several steps later.
        discounts: (batch,) what the next state's value is multiplied by; 0 where the episode terminated.
        next_q_values: (batch, n_actions) of the next states, from the network that learns.
        next_target_q_values: (batch, n_actions) of the same, from the target network.

    Returns:
        (batch,) of the type of `returns`.

    Raises:
        ValueError: the shapes do not fit.
    """
    shapes = [tuple(tensor.shape) for tensor in (returns, discounts, next_q_values, next_target_q_values)]
    batch = len(returns)
    if shapes[:2] != [(batch,)] * 2 or shapes[2] != shapes[3] or len(shapes[2]) != 2 or shapes[2][0] != batch:
        raise ValueError(
            f"returns, discounts, next_q_values and next_target_q_values have the shapes {shapes}; "
            "they have to be (batch,), (batch,), (batch, n_actions) and (batch, n_actions)"
        )
    chosen = next_q_values.argmax(dim=1, keepdim=True)
    return returns + discounts * next_target_q_values.gather(1, chosen).squeeze(1)
