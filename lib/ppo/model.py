"""PPO's network: action logits and state values."""

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
    """Policy head for boards on which every action belongs to one cell.

    All cells share the same weights, so what the head learns for one cell applies to the others.

    Args:
        features: number of features of the whole board.
        filters: number of features of each cell.
        planes: number of actions per cell. Actions are numbered `plane * height * width + row * width + column`.
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
        """Compute the logits.

        Args:
            board: features of the whole board, (batch, features) float32.
            cells: features of each cell, (batch, filters, height, width) float32.

        Returns:
            (batch, planes * height * width) float32.
        """
        hidden = F.relu(self.cell(cells) + self.board(board)[:, :, None, None])
        logits: torch.Tensor = self.last(hidden)
        return logits.flatten(1)


class Model(nn.Module):
    """Policy and value heads on one shared encoder; `make_encoder` chooses the encoder from the observation space.

    If the number of actions is a multiple of a board's cells, the policy head is a CellPolicy.

    Args:
        space: observation space of one environment; it may carry an action mask (`MaskedBox`).
        n_actions: number of actions.
        dtype: dtype in which an image encoder computes.

    Attributes:
        temperature: divisor of the logits, a scalar tensor; 1 at first.
        return_mean: mean of all returns so far, a scalar tensor.
        return_std: standard deviation of all returns so far, a scalar tensor.
        returns_seen: number of returns so far, a scalar tensor.
    """

    temperature: torch.Tensor
    return_mean: torch.Tensor
    return_std: torch.Tensor
    returns_seen: torch.Tensor

    def __init__(self, space: spaces.Box, n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.split = MaskSplitter(space, channels_last=True)
        self.body = make_encoder(self.split.shape, dtype)
        self.policy = self._policy_head(n_actions)
        self.value = nn.Linear(self.body.features, 1)
        self.register_buffer("temperature", torch.ones(()))
        self.register_buffer("return_mean", torch.zeros(()))
        self.register_buffer("return_std", torch.ones(()))
        self.register_buffer("returns_seen", torch.zeros(()))
        initialise(self.body)
        # The first returns are small, so the errors of large initial values would dominate the loss.
        orthogonal(self.value, 0.01)

    def _policy_head(self, n_actions: int) -> nn.Linear | CellPolicy:
        if isinstance(self.body, BoardEncoder):
            cells = math.prod(self.split.shape[1:])
            planes, remainder = divmod(n_actions, cells)
            if planes and not remainder:
                log.info("Policy: %d actions, %d for each cell of the board.", n_actions, planes)
                return CellPolicy(self.body.features, BoardEncoder.filters, planes)
        head = nn.Linear(self.body.features, n_actions)
        orthogonal(head, 0.01)
        return head

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        # Checkpoints of earlier versions have no temperature.
        state_dict.setdefault(f"{prefix}temperature", torch.ones(()))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def normalise_by(self, states: torch.Tensor) -> None:
        """Fit the encoder's input normalisation to these states.

        Args:
            states: (batch, ...), in the layout that `forward` takes.
        """
        observations, _ = self.split(states)
        self.body.normalise_by(observations)

    @torch.no_grad()
    def normalise_values(self, returns: torch.Tensor) -> None:
        """Pop-Art: update the mean and standard deviation of the returns, and rescale the value head to them.

        The head predicts normalised values. Its weights change so that the predicted values stay the same, van Hasselt
        et al. (2016), https://arxiv.org/abs/1602.07714, equation 9. The first call does not change the weights, so that
        the values start near the mean of the first returns.

        Args:
            returns: new returns, of any shape.
        """
        old_mean, old_std, old_count = self.return_mean.clone(), self.return_std.clone(), self.returns_seen.clone()
        new_count = returns.numel()
        total = old_count + new_count
        gap = returns.mean() - old_mean
        variance = (
            old_count / total * old_std**2
            + new_count / total * returns.var(correction=0)
            + old_count * new_count / total**2 * gap**2
        )
        self.returns_seen.copy_(total)
        self.return_mean.add_(gap * new_count / total)
        self.return_std.copy_(variance.sqrt().clamp(min=1e-3))
        # Without a branch on `old_count`, for which the CPU would have to wait for the device.
        known = old_count > 0
        bias = (self.value.bias * old_std + (old_mean - self.return_mean)) / self.return_std
        self.value.weight.mul_(torch.where(known, old_std / self.return_std, 1.0))
        self.value.bias.copy_(torch.where(known, bias, self.value.bias))

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logits and values.

        Args:
            states: (batch, n), or (batch, height, width, channels) for images and boards.

        Returns:
            Logits, (batch, n_actions) float32, and values, (batch,) float32. The logit of an invalid action is
            masking.INVALID.
        """
        observations, allowed = self.split(states)
        if isinstance(self.body, BoardEncoder) and isinstance(self.policy, CellPolicy):
            features, cells = self.body.encode(observations)
            logits = self.policy(features, cells)
        else:
            features = self.body(observations)
            logits = self.policy(features)
        values = self.value(features).squeeze(-1) * self.return_std + self.return_mean
        return mask_invalid(logits / self.temperature, allowed), values
