"""The network: from states to action logits and values."""

import logging
import math
from typing import Any

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib.nets.encoders import BoardEncoder, initialise, make_encoder, orthogonal
from lib.nets.masking import MaskSplitter, mask_invalid

log = logging.getLogger(__name__)


class CellPolicy(nn.Module):
    """Logits of actions that are cells of a board, one or several for each: what is good on one is so on others.

    Args:
        features, filters: see Boards.
        planes: actions of a cell; action plane * height * width + row * width + column is one of them.
    """

    def __init__(self, features: int, filters: int, planes: int):
        super().__init__()
        self.board = nn.Linear(features, 64)
        self.cell = nn.Conv2d(filters, 64, kernel_size=1)
        self.last = nn.Conv2d(64, planes, kernel_size=1)
        orthogonal(self.board, math.sqrt(2))
        orthogonal(self.cell, math.sqrt(2))
        orthogonal(self.last, 0.01)

    def forward(self, board: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """(batch, planes * height * width) of what BoardEncoder.encode gives."""
        return self.last(F.relu(self.cell(cells) + self.board(board)[:, :, None, None])).flatten(1)


class Model(nn.Module):
    """Action logits and values; an image is seen by Images, a board by Boards, a vector by Numbers.

    Where there are as many actions as a board has cells, or a multiple of that, they are taken for cells; see Places.

    Args:
        space: of a state, see observations.prepared and masks.MaskedBox; images and boards come with the channels last.
        n_actions: how many actions there are.
        dtype: what Images calculates in.

    Attributes:
        temperature: what logits are divided by, (); 1 at first.
        return_mean, return_std, returns_seen: of all returns so far, and how many there were; the last layer gives
            values in these terms, see `normalise_values`.
    """

    temperature: torch.Tensor
    return_mean: torch.Tensor
    return_std: torch.Tensor
    returns_seen: torch.Tensor

    def __init__(self, space: spaces.Box, n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.split = MaskSplitter(space, channels_last=True)
        self.body = make_encoder(self.split.shape, dtype)
        planes, rest = (
            divmod(n_actions, math.prod(self.split.shape[1:])) if isinstance(self.body, BoardEncoder) else (0, 1)
        )
        self.policy: nn.Linear | CellPolicy
        if planes and not rest:
            log.info("Policy: the %d actions are taken for %d on each cell of the board.", n_actions, planes)
            self.policy = CellPolicy(self.body.features, BoardEncoder.filters, planes)
        else:
            self.policy = nn.Linear(self.body.features, n_actions)
            orthogonal(self.policy, 0.01)
        self.value = nn.Linear(self.body.features, 1)
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("return_mean", torch.zeros(()))
        self.register_buffer("return_std", torch.ones(()))
        self.register_buffer("returns_seen", torch.zeros(()))
        initialise(self.body)
        # The first returns are small; values far from them would be all that is learnt.
        orthogonal(self.value, 0.01)

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        state.setdefault(f"{prefix}temperature", torch.ones(()))  # of a checkpoint that is older than it
        super()._load_from_state_dict(state, prefix, *rest)

    def normalise_by(self, states: torch.Tensor) -> None:
        """Normalise states from now on by these, (batch, ...) as `forward` takes them."""
        self.body.normalise_by(self.split(states)[0])

    @torch.no_grad()
    def normalise_values(self, returns: torch.Tensor) -> None:
        """Pop-Art: have the last layer's unit be the standard deviation of all returns so far, and its zero their mean.

        All values stay as they are, van Hasselt et al. (2016), https://arxiv.org/abs/1602.07714, equation 9; save for
        the first time, when they have meant nothing yet: they begin near the mean of the first returns.

        Args:
            returns: new ones, of any shape.
        """
        old_mean, old_std, old = self.return_mean.clone(), self.return_std.clone(), self.returns_seen.clone()
        new = returns.numel()
        total = old + new
        gap = returns.mean() - old_mean
        variance = old / total * old_std**2 + new / total * returns.var(correction=0) + old * new / total**2 * gap**2
        self.returns_seen.copy_(total)
        self.return_mean.add_(gap * new / total)
        self.return_std.copy_(variance.sqrt().clamp(min=1e-3))
        if old:
            self.value.weight.mul_(old_std / self.return_std)
            self.value.bias.mul_(old_std).add_(old_mean - self.return_mean).div_(self.return_std)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and values.

        Args:
            states: (batch, ...), images and boards (batch, height, width, channels).

        Returns:
            (batch, n_actions) and (batch,), float32; the logit of an action that is not allowed is masks.INVALID.
        """
        states, allowed = self.split(states)
        if isinstance(self.body, BoardEncoder) and isinstance(self.policy, CellPolicy):
            features, cells = self.body.encode(states)
            logits = self.policy(features, cells)
        else:
            features = self.body(states)
            logits = self.policy(features)
        values = self.value(features).squeeze(-1) * self.return_std + self.return_mean
        return mask_invalid(logits / self.temperature, allowed), values
