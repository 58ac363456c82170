"""Encoders: convolutional and dense networks that turn states into features."""

import logging
import math

import torch
from torch import nn
from torch.nn import functional as F

from lib.envs.observations import ObservationKind, observation_kind

log = logging.getLogger(__name__)

# A warning is logged if the standard deviations of two entries of a vector differ by more than this factor.
WIDE = 100.0


def nature_convolutions(channels: int) -> tuple[nn.Module, ...]:
    """Return the convolutional layers of Mnih et al. (2015), for images (batch, channels, 84, 84) from 0 to 1."""
    return (
        nn.Conv2d(channels, 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )


class NatureEncoder(nn.Sequential):
    """Network of Mnih et al. (2015): 32 filters of 8 x 8, 64 of 4 x 4, 64 of 3 x 3, and 512 units.

    Args:
        shape: shape of a state, (channels, height, width). The input is (batch, height, width, channels) uint8.

    Attributes:
        features: number of output features.
    """

    features = 512

    def __init__(self, shape: tuple[int, ...]):
        super().__init__(*nature_convolutions(shape[0]))
        with torch.no_grad():
            size = self._apply_layers(torch.zeros(1, *shape)).shape[1]
        self.extend((nn.Linear(size, self.features), nn.ReLU()))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode (batch, height, width, channels) uint8 states as (batch, features) float32."""
        return self._apply_layers(states.permute(0, 3, 1, 2).float() / 255.0)

    def _apply_layers(self, images: torch.Tensor) -> torch.Tensor:
        for layer in self:
            images = layer(images)
        return images


class ImageEncoder(nn.Module):
    """Network of Mnih et al. (2013), with layer normalisation: 16 filters of 8 x 8, 32 of 4 x 4, and 256 units.

    Args:
        shape: shape of a state, (channels, height, width). The input is (batch, height, width, channels) uint8.
        dtype: data type of the computation; weights are float32.

    Attributes:
        mean: mean state, (height, width, channels), which is subtracted from the input; see `normalise_by`.
        scale: factor by which the difference is multiplied, ().
        features: number of output features.
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
        """Set the mean of each pixel and the common scale from a batch of states.

        Means are rounded to integers. bfloat16 holds integers up to 256 exactly, so a pixel minus its mean is exact.
        """
        _fit_normalisation(self, states, round_mean=True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode (batch, height, width, channels) uint8 states as (batch, features) float32."""
        # Casting, shifting, scaling or transposing a batch in float32 takes as long as a layer. So the states are cast
        # to self.dtype once and shifted there, and the scale is applied to the few weights of the first layer. Channels
        # stay last.
        shifted = states.to(self.dtype, copy=True).sub_(self.mean).permute(0, 3, 1, 2)
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            first = F.conv2d(shifted, self.first.weight * self.scale, self.first.bias, self.first.stride)
            second = self.second(F.relu(first, inplace=True))
            third = self.third(F.relu(second, inplace=True).permute(0, 2, 3, 1).flatten(1))
        return F.relu(self.norm(third.float()))


class BoardEncoder(nn.Module):
    """Two padded 3 x 3 convolutions with 16 and 32 filters, and 256 units with layer normalisation.

    A 3 x 3 convolution cannot see a whole line. So the second layer also gets the means of each cell's row and column.
    Wu (2019), https://arxiv.org/abs/1902.10565, section 3.3, uses the means of the whole board in a similar way.

    Args:
        shape: shape of a state, (channels, height, width). The input is (batch, height, width, channels) float32.

    Attributes:
        mean: mean state, (height, width, channels), which is subtracted from the input; see `normalise_by`.
        scale: factor by which the difference is multiplied, ().
        features: number of output features per board.
        filters: number of output features per cell.
    """

    features = 256
    filters = 32
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
        """Set the mean of each entry and the common scale from a batch of states."""
        _fit_normalisation(self, states)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode (batch, height, width, channels) states as (batch, features) float32."""
        return self.encode(states)[0]

    def encode(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features of the boards, (batch, features), and of the cells, (batch, filters, height, width)."""
        normal = ((states.float() - self.mean) * self.scale).permute(0, 3, 1, 2)
        first = F.relu(self.first(normal))
        lines = self.of_rows(first.mean(3, keepdim=True)) + self.of_columns(first.mean(2, keepdim=True))
        cells = F.relu(self.second(first) + lines)
        return F.relu(self.norm(self.third(cells.permute(0, 2, 3, 1).flatten(1)))), cells


class VectorEncoder(nn.Module):
    """Multilayer perceptron with two layers of 64 units.

    Args:
        shape: shape of a state, (n,). The input is (batch, n) float32.

    Attributes:
        mean: mean state, (n,), which is subtracted from the input; see `normalise_by`.
        scale: factor by which the difference is multiplied, ().
        features: number of output features.
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
        """Set the mean of each entry and the common scale from a batch of states. Warn if their units differ widely."""
        _fit_normalisation(self, states)
        spreads = states.float().std(0, correction=0)
        constant = spreads == 0.0
        if constant.all():
            return
        smallest = spreads.masked_fill(constant, math.inf).min(0)
        largest = spreads.max(0)
        if (ratio := (largest.values / smallest.values).item()) > WIDE:
            log.warning(
                "In an observation, entry %d varies %s times as much as entry %d. All entries get one scale, so the "
                "network hardly sees the small ones. Bring them to similar units, for example by gymnasium's "
                "TransformObservation.",
                largest.indices,
                f"{ratio:,.0f}",
                smallest.indices,
            )

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode (batch, n) states as (batch, features) float32."""
        first = torch.tanh(self.first(((states.float() - self.mean) * self.scale).flatten(1)))
        return torch.tanh(self.second(first))


Encoder = ImageEncoder | BoardEncoder | VectorEncoder


def channels_last(states: torch.Tensor) -> torch.Tensor:
    """Return a view of states in the layout of PPO's networks: (N, C, H, W) as (N, H, W, C), vectors unchanged.

    An encoder is faster if such a view is made contiguous first.
    """
    return states.movedim(1, -1) if states.ndim == 4 else states


def make_encoder(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Encoder:
    """Make the encoder that fits the shape of a state.

    Args:
        shape: shape of a state, (channels, height, width) or (n,), without the action mask.
        dtype: data type in which an ImageEncoder computes.

    Raises:
        ValueError: if the shape is not (channels, height, width) or (n,).
    """
    kind = observation_kind(shape)
    if kind is ObservationKind.IMAGE:
        return ImageEncoder(shape, dtype)
    if kind is ObservationKind.BOARD:
        return BoardEncoder(shape)
    return VectorEncoder(shape)


def _fit_normalisation(encoder: Encoder, states: torch.Tensor, round_mean: bool = False) -> None:
    values = states.to(torch.float32, copy=True)  # on the states' own device, which may differ from the encoder's
    # A sum of large numbers, such as times, would lose the small ones, so the first state is subtracted before.
    first = values[0].clone()
    mean = values.mean(0).round() if round_mean else first + (values - first).mean(0)
    encoder.mean.copy_(mean)
    std = values.sub_(mean).std()  # 0 for a single state, and NaN for a single number
    encoder.scale.copy_(torch.where(std > 0, 1.0 / std.clamp(min=1e-3), 1.0))


def initialise(encoder: nn.Module) -> None:
    """Initialise an encoder with orthogonal weights, in the channels-last layout of its states."""
    for layer in encoder.children():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            orthogonal(layer, math.sqrt(2))
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def orthogonal(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    """Initialise a layer with zero biases and orthogonal weights, multiplied by `gain`."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
