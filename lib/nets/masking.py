"""Action masks in networks: split the mask off a state, and exclude invalid actions."""

import torch
from gymnasium import spaces

from lib.envs.masks import MaskedBox

INVALID = -1e9  # the value, or the logit, of an action that is not allowed; finite, as 0 times it has to be 0


class MaskSplitter:
    """Takes states apart into what they show and the mask.

    Args:
        space: of a state, or its shape where there is no mask.
        channels_last: whether the channels of images and boards come last.

    Attributes:
        shape: of a state without the mask, channels first.
    """

    def __init__(self, space: spaces.Box | tuple[int, ...], channels_last: bool = False):
        self.actions = space.actions if isinstance(space, MaskedBox) else 0
        plain = space.plain if isinstance(space, MaskedBox) else space
        self.shape: tuple[int, ...] = plain.shape if isinstance(plain, spaces.Box) else plain
        self._channel = -1 if channels_last else 1
        self._height = 1 if channels_last or len(self.shape) == 1 else 2

    def __call__(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """What (batch, ...) states show, and (batch, actions) bool, what is allowed; None where everything is."""
        if not self.actions:
            return states, None
        size = self.shape[-2] if len(self.shape) > 1 else self.shape[0]
        shown, mask = states.split([size, states.shape[self._height] - size], dim=self._height)
        rows = mask if mask.ndim == 2 else mask.select(self._channel, -1).flatten(1)
        return shown, rows[:, : self.actions] > 0


def mask_invalid(scores: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Values or logits (batch, actions, ...), INVALID where `allowed` says so; None allows everything."""
    if allowed is None:
        return scores
    return scores.masked_fill(~allowed.reshape(*allowed.shape, *[1] * (scores.ndim - 2)), INVALID)
