"""The network: from states to action logits and values."""

import logging
import math

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib.masks import Split, only_allowed
from lib.observations import is_large

log = logging.getLogger(__name__)


class Images(nn.Module):
    """The convolutions of Mnih et al. (2013): 16 filters of 8 x 8, 32 of 4 x 4, and 256 units, these normalised.

    Args:
        shape: of a state, (channels, height, width); states come as (batch, height, width, channels) uint8.
        dtype: what the layers calculate in.

    Attributes:
        mean, scale: what is subtracted from a state, and what that is then multiplied by; see `look_at`.
        features: how many numbers come out.
    """

    features = 256
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype):
        super().__init__()
        channels, height, width = shape
        self.dtype = dtype
        self.first = nn.Conv2d(channels, 16, kernel_size=8, stride=4)
        self.second = nn.Conv2d(16, 32, kernel_size=4, stride=2)
        with torch.no_grad():
            size = self.second(self.first(torch.zeros(1, *shape))).numel()
        self.third = nn.Linear(size, self.features)
        self.norm = nn.LayerNorm(self.features)
        self.register_buffer("mean", torch.zeros((height, width, channels), dtype=dtype))
        self.register_buffer("scale", torch.ones(()))

    def look_at(self, states: torch.Tensor) -> None:
        """Normalise from now on by the mean of each pixel of these states, and one scale for all.

        The means are whole numbers, which bfloat16 holds up to 256 as they are: a pixel less its mean is exact then.
        """
        mean = states.float().mean(0).round()  # where the states are, which may be elsewhere
        self.mean.copy_(mean)
        self.scale.copy_(1.0 / (states - mean).std().clamp(min=1e-3))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        # Each of these takes as long as a layer if it is done in float32, or once more than it has to be: the scale
        # goes into the first layer's few weights, and the flattening leaves the channels where they are.
        normal = states.to(self.dtype, copy=True).sub_(self.mean).permute(0, 3, 1, 2)
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            first = F.conv2d(normal, self.first.weight * self.scale, self.first.bias, self.first.stride)
            second = self.second(F.relu(first, inplace=True))
            third = self.third(F.relu(second, inplace=True).permute(0, 2, 3, 1).flatten(1))
        return F.relu(self.norm(third.float()))


class Boards(nn.Module):
    """Two convolutions of 3 x 3, which keep the size, of 16 and 32 filters, and 256 units, these normalised.

    The second one has the means of each cell's row and column as well, as a convolution sees no whole line; for the
    same reason Wu (2019), https://arxiv.org/abs/1902.10565, section 3.3, has means of the whole board there.

    Args:
        shape: of a state, (channels, height, width); states come as (batch, height, width, channels) float32.

    Attributes:
        mean, scale: see Numbers.
        features, filters: how many numbers come out, for the board and for each cell.
    """

    features, filters = 256, 32
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        channels, height, width = shape
        self.first = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.second = nn.Conv2d(16, self.filters, kernel_size=3, padding=1)
        self.of_rows = nn.Conv2d(16, self.filters, kernel_size=1)
        self.of_columns = nn.Conv2d(16, self.filters, kernel_size=1)
        self.third = nn.Linear(self.filters * height * width, self.features)
        self.norm = nn.LayerNorm(self.features)
        self.register_buffer("mean", torch.zeros((height, width, channels)))
        self.register_buffer("scale", torch.ones(()))

    def look_at(self, states: torch.Tensor) -> None:
        """Normalise from now on by the mean of each number of these states, and one scale for all."""
        _normalise_by(self, states)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.see(states)[0]

    def see(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What there is on the boards, (batch, features), and on each cell, (batch, filters, height, width)."""
        normal = ((states.float() - self.mean) * self.scale).permute(0, 3, 1, 2)
        first = F.relu(self.first(normal))
        lines = self.of_rows(first.mean(3, keepdim=True)) + self.of_columns(first.mean(2, keepdim=True))
        second = F.relu(self.second(first) + lines)
        return F.relu(self.norm(self.third(second.permute(0, 2, 3, 1).flatten(1)))), second


class Places(nn.Module):
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
        _orthogonal(self.board, math.sqrt(2))
        _orthogonal(self.cell, math.sqrt(2))
        _orthogonal(self.last, 0.01)

    def forward(self, board: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """(batch, planes * height * width) of what Boards.see gives."""
        return self.last(F.relu(self.cell(cells) + self.board(board)[:, :, None, None])).flatten(1)


class Numbers(nn.Module):
    """Two layers of 64 units, for vectors.

    Args:
        shape: of a state.

    Attributes:
        mean, scale: of each number; see `look_at`.
        features: how many numbers come out.
    """

    features = 64
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, shape: tuple[int, ...]):
        super().__init__()
        self.first = nn.Linear(math.prod(shape), self.features)
        self.second = nn.Linear(self.features, self.features)
        self.register_buffer("mean", torch.zeros(shape))
        self.register_buffer("scale", torch.ones(()))

    def look_at(self, states: torch.Tensor) -> None:
        """Normalise from now on by the mean of each number of these states, and one scale for all."""
        _normalise_by(self, states)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        first = torch.tanh(self.first(((states.float() - self.mean) * self.scale).flatten(1)))
        return torch.tanh(self.second(first))


def _normalise_by(body: Boards | Numbers, states: torch.Tensor) -> None:
    mean = states.float().mean(0)
    body.mean.copy_(mean)
    body.scale.copy_(1.0 / (states.float() - mean).std().clamp(min=1e-3))


class Model(nn.Module):
    """Action logits and values; an image is seen by Images, a board by Boards, a vector by Numbers.

    Where there are as many actions as a board has cells, or a multiple of that, they are taken for cells; see Places.

    Args:
        space: of a state, see observations.prepared and masks.MaskedBox; images and boards come with the channels last.
        n_actions: how many actions there are.
        dtype: what Images calculates in.

    Attributes:
        return_mean, return_std: of all returns so far; the last layer gives values in these terms; see `expect`.
    """

    return_mean: torch.Tensor
    return_std: torch.Tensor
    returns_seen: torch.Tensor

    def __init__(self, space: spaces.Box, n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.split = Split(space, channels_last=True)
        shape = self.split.shape
        self.body: Images | Boards | Numbers
        if len(shape) == 1:
            self.body = Numbers(shape)
        else:
            self.body = Images(shape, dtype) if is_large(shape[1:]) else Boards(shape)
        planes, rest = divmod(n_actions, math.prod(shape[1:])) if isinstance(self.body, Boards) else (0, 1)
        self.policy: nn.Linear | Places
        if planes and not rest:
            log.info("Policy: the %d actions are taken for %d on each cell of the board.", n_actions, planes)
            self.policy = Places(self.body.features, Boards.filters, planes)
        else:
            self.policy = nn.Linear(self.body.features, n_actions)
            _orthogonal(self.policy, 0.01)
        self.value = nn.Linear(self.body.features, 1)
        self.register_buffer("return_mean", torch.zeros(()))
        self.register_buffer("return_std", torch.ones(()))
        self.register_buffer("returns_seen", torch.zeros(()))
        for layer in self.body.children():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                _orthogonal(layer, math.sqrt(2))
            if isinstance(layer, nn.Conv2d):  # as the states are laid out
                layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        _orthogonal(self.value, 0.01)  # the first returns are small; values far from them would be all that is learnt

    def look_at(self, states: torch.Tensor) -> None:
        """Normalise states from now on by these."""
        self.body.look_at(self.split(states)[0])

    @torch.no_grad()
    def expect(self, returns: torch.Tensor) -> None:
        """Have the last layer's unit be the standard deviation of all returns so far, and its zero their mean.

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
        if isinstance(self.body, Boards) and isinstance(self.policy, Places):
            features, cells = self.body.see(states)
            logits = self.policy(features, cells)
        else:
            features = self.body(states)
            logits = self.policy(features)
        values = self.value(features).squeeze(-1) * self.return_std + self.return_mean
        return only_allowed(logits, allowed), values


def _orthogonal(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
