"""Action masks in networks: split the mask off a state, and exclude invalid actions."""

import torch
from gymnasium import spaces

from lib.envs.masks import MaskedBox, stacks_frames

# Value or logit of an invalid action: below every return, and finite, because 0 * INVALID has to be 0.
INVALID = -(2.0**100)


class MaskSplitter:
    """Split states into observations and action masks.

    Args:
        space: space of a state, or its shape if there is no mask.

    Attributes:
        actions: number of actions in a mask; 0 if states have no mask.
        space: space, or shape, of a state without the mask.
        shape: its shape.
    """

    def __init__(self, space: spaces.Box | tuple[int, ...]):
        self.actions = space.actions if isinstance(space, MaskedBox) else 0
        self.space = space.plain if isinstance(space, MaskedBox) else space
        self.shape: tuple[int, ...] = self.space.shape if isinstance(self.space, spaces.Box) else self.space
        self._stacked = isinstance(space, MaskedBox) and stacks_frames(space)

    def __call__(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Split states (batch, ...) into observations (batch, ...) and masks (batch, actions) bool, or None.

        A mask is true for allowed actions.
        """
        if not self.actions:
            return states, None
        axis = 2 if self._stacked else 1
        size = self.shape[axis - 1]
        observations, mask = torch.split(states, [size, states.shape[axis] - size], dim=axis)
        mask = mask[:, -1] if self._stacked else mask
        return observations, mask.flatten(1)[:, : self.actions] > 0


def mask_invalid(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Replace the scores of invalid actions by INVALID.

    Args:
        scores: (batch, actions, ...) values or logits.
        allowed: (batch, actions) bool; None if all actions are allowed.
    """
    if allowed is None:
        return scores
    return scores.masked_fill(~allowed.reshape(*allowed.shape, *[1] * (scores.ndim - 2)), INVALID)
