"""Targets and losses as functions of tensors.

Shapes: a batch is (batch, ...), action values are (batch, n_actions), distributions of returns (batch, atoms).
"""

import torch
from torch.nn import functional as F

from lib.errors import UsageError

MAX_ATOMS = 500  # a projection takes the square of them, times the batch


MAX_RETURN = 1e30  # return that a support may have: float32 calculates with it


def require_batch(**tensors: torch.Tensor) -> None:
    """Refuse tensors, given by their names, that are not all (batch,): such are broadcast without a word.

    Raises:
        ValueError: the shapes differ, or are not (batch,).
    """
    shapes = [tuple(tensor.shape) for tensor in tensors.values()]
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        raise ValueError(f"{', '.join(tensors)} have the shapes {shapes}; all have to be (batch,)")


def q_targets(returns: torch.Tensor, discounts: torch.Tensor, next_target_q_values: torch.Tensor) -> torch.Tensor:
    """Targets of DQN, Mnih et al. (2015), algorithm 1; see double_q_targets."""
    return double_q_targets(returns, discounts, next_target_q_values, next_target_q_values)


def double_q_targets(
    returns: torch.Tensor, discounts: torch.Tensor, next_q_values: torch.Tensor, next_target_q_values: torch.Tensor
) -> torch.Tensor:
    """Targets of double DQN: the network that learns selects the next action, and the target network evaluates it, van
    Hasselt et al. (2016), https://arxiv.org/abs/1509.06461, section Double DQN.

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
    return td_targets(returns, discounts, select_actions(next_target_q_values, next_q_values.argmax(dim=1)))


def td_targets(returns: torch.Tensor, discounts: torch.Tensor, next_values: torch.Tensor) -> torch.Tensor:
    """returns + discounts * next_values, all (batch,); where a discount is 0 a value means nothing, be it infinite.

    Raises:
        ValueError: the shapes differ, or are not (batch,).
    """
    require_batch(returns=returns, discounts=discounts, next_values=next_values)
    return returns + torch.where(discounts == 0.0, 0.0, discounts * next_values)


def select_actions(outputs: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """What belongs to the action of each row: (batch, n_actions, ...) and (batch,) int64 to (batch, ...).

    Raises:
        ValueError: the shapes do not fit.
    """
    if outputs.ndim < 2 or actions.shape != outputs.shape[:1]:
        raise ValueError(
            f"outputs and actions have the shapes {tuple(outputs.shape)} and {tuple(actions.shape)}; "
            "they have to be (batch, n_actions, ...) and (batch,)"
        )
    return outputs[torch.arange(len(actions), device=actions.device), actions]


def penalties(errors: torch.Tensor, huber: bool = False) -> torch.Tensor:
    """What errors of any shape cost, each by itself: their squares, or Huber's loss, half the square up to 1 and beyond
    that linear, Huber (1964); its gradient is the error clipped to [-1, 1], as in Mnih et al. (2015), section Training
    algorithm, where that of a square is twice the error.
    """
    return F.huber_loss(errors, torch.zeros_like(errors), reduction="none") if huber else errors.square()


def weighted_mean(each: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The loss of a prioritised batch: the mean of losses (batch,) times importance weights (batch,), Schaul et al.
    (2016), https://arxiv.org/abs/1511.05952, section 3.4.

    Raises:
        ValueError: the shapes differ, or are not (batch,).
    """
    require_batch(losses=each, weights=weights)
    return (weights * each).mean()


def support(v_min: float, v_max: float, atoms: int) -> torch.Tensor:
    """The returns that a distribution is over, Bellemare et al. (2017), https://arxiv.org/abs/1707.06887, section 4.

    Returns:
        (atoms,) float32, evenly from v_min to v_max.

    Raises:
        UsageError: there are too few or too many, or v_min is not below v_max, or they are too large or too near.
    """
    if not 2 <= atoms <= MAX_ATOMS:
        raise UsageError(f"atoms is {atoms}; it has to be between 2 and {MAX_ATOMS}")
    given = f"v_min is {v_min:g} and v_max {v_max:g}"
    if not -MAX_RETURN < v_min < v_max < MAX_RETURN:
        raise UsageError(f"{given}; v_min has to be below v_max, both between -{MAX_RETURN:g} and {MAX_RETURN:g}")
    made = torch.linspace(v_min, v_max, atoms)
    if (made.diff() <= 0.0).any():
        raise UsageError(f"{given}; {atoms} returns between them are not apart in float32, give ends further apart")
    return made


def project_distribution(
    next_probs: torch.Tensor, returns: torch.Tensor, discounts: torch.Tensor, support: torch.Tensor
) -> torch.Tensor:
    """The distribution of returns + discounts * Z brought back onto Z's support, Bellemare et al. (2017), equation 7.

    Each atom's probability goes to its two neighbours, the nearer the more, and beyond the ends to the end.

    Args:
        next_probs: (batch, atoms), the distribution of Z.
        returns, discounts: (batch,); a discount of 0 puts everything at the return.
        support: (atoms,) in even steps.

    Returns:
        (batch, atoms), the sum of each row as before.

    Raises:
        ValueError: the shapes do not fit.
    """
    shapes = [tuple(tensor.shape) for tensor in (next_probs, returns, discounts, support)]
    batch, atoms = len(returns), len(support)
    if shapes != [(batch, atoms), (batch,), (batch,), (atoms,)]:
        raise ValueError(
            f"next_probs, returns, discounts and support have the shapes {shapes}; "
            "they have to be (batch, atoms), (batch,), (batch,) and (atoms,)"
        )
    step = (support[-1] - support[0]) / (atoms - 1)
    places = ((returns[:, None] + discounts[:, None] * support - support[0]) / step).clamp(0.0, atoms - 1.0)
    # The share that place i gives to atom j falls from 1 to 0 within one step of the support.
    shares = (1.0 - (places[:, :, None] - torch.arange(atoms, device=support.device)).abs()).clamp(min=0.0)
    return (next_probs[:, :, None] * shares).sum(dim=1)


def kl_divergence(target_probs: torch.Tensor, log_probs: torch.Tensor) -> torch.Tensor:
    """How far a predicted distribution is from its target: the loss of Bellemare et al. (2017), algorithm 1, less the
    target's entropy, which has no gradient; Rainbow's priority, Hessel et al. (2018), section The Integrated Agent.

    Args:
        target_probs: (batch, atoms); not a function of what is learnt.
        log_probs: (batch, atoms) natural logarithms of the prediction.

    Returns:
        (batch,), 0 or above up to rounding.

    Raises:
        ValueError: the shapes differ, or are not (batch, atoms).
    """
    if target_probs.ndim != 2 or target_probs.shape != log_probs.shape:
        raise ValueError(
            f"target_probs and log_probs have the shapes {tuple(target_probs.shape)} and {tuple(log_probs.shape)}; "
            "both have to be (batch, atoms)"
        )
    return (torch.special.xlogy(target_probs, target_probs) - target_probs * log_probs).sum(dim=1)
