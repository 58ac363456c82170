"""What sees in PPO's networks and in the fast ones of DQNs: small encoders that normalise what is shown."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from lib.envs import observations


def make_encoder(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> "ImageEncoder | BoardEncoder | VectorEncoder":
    """The body for states of a shape, (channels, height, width) or (n,); dtype is what Images calculates in.

    Raises:
        ValueError: it is neither.
    """
    if len(shape) not in (1, 3):
        raise ValueError(f"states of the shape {shape} are seen by nothing; give (channels, height, width) or (n,)")
    if len(shape) == 1:
        return VectorEncoder(shape)
    return ImageEncoder(shape, dtype) if observations.is_large(shape[1:]) else BoardEncoder(shape)


class ImageEncoder(nn.Module):
    """The convolutions of Mnih et al. (2013): 16 filters of 8 x 8, 32 of 4 x 4, and 256 units, these normalised.

    Args:
        shape: of a state, (channels, height, width); states come as (batch, height, width, channels) uint8.
        dtype: what the layers calculate in.

    Attributes:
        mean, scale: what is subtracted from a state, and what that is then multiplied by; see `normalise_by`.
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

    def normalise_by(self, states: torch.Tensor) -> None:
        """Normalise from now on by the mean of each pixel of these states, and one scale for all.

        The means are whole numbers, which bfloat16 holds up to 256 as they are: a pixel less its mean is exact then.
        """
        _fit(self, states, whole=True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(batch, height, width, channels) uint8 to (batch, features) float32."""
        # To cast, shift, scale or lay out a batch anew takes as long as a layer where it is done in float32. So there
        # is one cast; the shift is done in bfloat16, the scale within the first layer's few weights, and the flattening
        # leaves the channels last.
        normal = states.to(self.dtype, copy=True).sub_(self.mean).permute(0, 3, 1, 2)
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            first = F.conv2d(normal, self.first.weight * self.scale, self.first.bias, self.first.stride)
            second = self.second(F.relu(first, inplace=True))
            third = self.third(F.relu(second, inplace=True).permute(0, 2, 3, 1).flatten(1))
        return F.relu(self.norm(third.float()))


class BoardEncoder(nn.Module):
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

    def normalise_by(self, states: torch.Tensor) -> None:
        """Normalise from now on by the mean of each number of these states, and one scale for all."""
        _fit(self, states)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(batch, height, width, channels) to (batch, features) float32."""
        return self.see(states)[0]

    def see(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What there is on the boards, (batch, features), and on each cell, (batch, filters, height, width)."""
        normal = ((states.float() - self.mean) * self.scale).permute(0, 3, 1, 2)
        first = F.relu(self.first(normal))
        lines = self.of_rows(first.mean(3, keepdim=True)) + self.of_columns(first.mean(2, keepdim=True))
        second = F.relu(self.second(first) + lines)
        return F.relu(self.norm(self.third(second.permute(0, 2, 3, 1).flatten(1)))), second


class VectorEncoder(nn.Module):
    """A multilayer perceptron: two layers of 64 units, for vectors.

    Args:
        shape: of a state.

    Attributes:
        mean, scale: what is subtracted from each number, and what all are then multiplied by; see `normalise_by`.
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

    def normalise_by(self, states: torch.Tensor) -> None:
        """Normalise from now on by the mean of each number of these states, and one scale for all."""
        _fit(self, states)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """(batch, n) to (batch, features) float32."""
        first = torch.tanh(self.first(((states.float() - self.mean) * self.scale).flatten(1)))
        return torch.tanh(self.second(first))


def _fit(body: ImageEncoder | BoardEncoder | VectorEncoder, states: torch.Tensor, whole: bool = False) -> None:
    shown = states.to(torch.float32, copy=True)  # where the states are, which may be elsewhere
    mean = shown.mean(0).round() if whole else shown.mean(0)
    body.mean.copy_(mean)
    body.scale.copy_(1.0 / shown.sub_(mean).std().clamp(min=1e-3))


def initialise(body: nn.Module) -> None:
    """Give a body its first weights, orthogonal, and lay them out as its states are."""
    for layer in body.children():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            orthogonal(layer, math.sqrt(2))
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def orthogonal(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    """First weights that are orthogonal, and no bias."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
