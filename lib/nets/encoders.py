"""Encoders: convolutional and dense networks that turn states into features, and their numeric precision.

The shape of a state is (channels, height, width) or (n,), without the action mask. Batches of states have this layout,
too: `movedim(-1, 1)` gives it to states with the channels last, as in a ring or a rollout, and changes no vectors.
Encoders are faster if the channels are last in memory.
"""

import functools
import logging
import math
from collections.abc import Callable
from typing import TypeVar, cast

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib.envs.masks import CompositeBox
from lib.envs.observations import MIN_IMAGE_SIDE, observation_kind
from lib.system.machine import has_fast_bfloat16

log = logging.getLogger(__name__)

Encoder = TypeVar("Encoder", bound=nn.Module)

LARGEST = 10.0  # normalised numbers of a vector are clipped to this range, as unusual ones would swamp the others


class PlainEncoder(nn.Sequential):
    """Encoder whose input is not normalised.

    Images get the three convolutions of Mnih et al. (2015), boards two convolutions of 3 x 3, and vectors one layer of
    128 units.

    Args:
        shape: shape of a state.
        dtype: data type in which images are processed; weights are float32.

    Attributes:
        features: number of output features.
        dtype: data type of the computation.

    Raises:
        ValueError: if the shape is not (channels, height, width) or (n,), or is that of an image with channels last.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        kind = observation_kind(shape)
        if kind == "board" and min(shape[:2]) >= MIN_IMAGE_SIDE and shape[2] <= 4:
            raise ValueError(
                f"the shape {shape} has its channels last; they have to come first, as with pytorch_img=True or "
                "frame_stack=True of wrap_deepmind"
            )
        if kind == "vector":
            super().__init__(nn.Flatten(), nn.Linear(math.prod(shape), 128), nn.ReLU())
        else:
            if kind == "image":
                layers = [nn.Conv2d(shape[0], 32, 8, stride=4), nn.Conv2d(32, 64, 4, stride=2), nn.Conv2d(64, 64, 3)]
            else:
                layers = [nn.Conv2d(shape[0], 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1)]
            super().__init__(*(part for layer in layers for part in (layer, nn.ReLU())), nn.Flatten())
        self.dtype, self.scale = torch.float32, 1.0
        with torch.no_grad():
            self.features: int = self(torch.zeros(1, *shape)).shape[1]
        if kind == "image":
            self.dtype, self.scale = dtype, 255.0

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode states, (batch, features). Images have numbers from 0 to 255."""
        features = states.to(self.dtype) / self.scale
        for layer in self:
            features = layer(features)
        return features


class NatureEncoder(nn.Sequential):
    """The convolutions and the hidden layer of Mnih et al. (2015), for images. See PlainEncoder for the arguments."""

    features = 512

    def __init__(self, shape: tuple[int, ...]):
        convolutions = PlainEncoder(shape)
        super().__init__(convolutions, nn.Linear(convolutions.features, self.features), nn.ReLU())


class NormalisingEncoder(nn.Module):
    """Base of encoders that normalise their input.

    Most of a screen never changes. If that part is subtracted, the network needs far fewer steps to learn from what
    does change, such as the ball in Pong. A high learning rate then no longer kills all units of the first layer.

    Args:
        shape: shape of a state.
        dtype: data type of the computation; weights are float32.

    Attributes:
        features: number of output features.
        mean: mean state, with its channels last, which is subtracted from the input; see `normalise_by`.
        scale: factor by which the difference is multiplied, ().
        running: whether `normalise_by` goes on adapting the normalisation after its first call.
    """

    running = False
    features: int
    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.dtype = dtype
        self.register_buffer("mean", torch.zeros(shape[1:] + shape[:1], dtype=dtype))
        self.register_buffer("scale", torch.ones(()))

    @property
    def is_fitted(self) -> bool:
        """Whether the mean and the scale have been set."""
        return bool(self.scale != 1.0 or self.mean.any())

    def normalise_by(self, states: torch.Tensor) -> None:
        """Set the mean of each entry and the common scale from a batch of states.

        A fitted encoder of images or boards does not change any more, because its weights depend on the fit.
        """
        if self.is_fitted:
            return
        values = states.movedim(1, -1).to(torch.float32, copy=True)  # on the states' own device
        mean = self._mean_of(values)
        self.mean.copy_(mean)
        std = values.sub_(mean).std()  # 0 for a single state, and NaN for a single number
        self.scale.copy_(torch.where(std > 0, 1.0 / std.clamp(min=1e-3), 1.0))

    def _mean_of(self, values: torch.Tensor) -> torch.Tensor:
        # A sum of large numbers, such as times, would lose the small ones, so the first state is subtracted before.
        return values[0] + (values - values[0]).mean(0)


class ImageEncoder(NormalisingEncoder):
    """Network of Mnih et al. (2013), with layer normalisation: 16 filters of 8 x 8, 32 of 4 x 4, and 256 units.

    If a side is shorter than 60 pixels, the first filters are 4 x 4 with half the stride.
    """

    features = 256

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        super().__init__(shape, dtype)
        kernel = 4 if min(shape[1:]) < 60 else 8
        self.first = nn.Conv2d(shape[0], 16, kernel, stride=kernel // 2)
        self.second = nn.Conv2d(16, 32, kernel_size=4, stride=2)
        with torch.no_grad():
            size = self.second(self.first(torch.zeros(1, *shape))).numel()
        self.third = nn.Linear(size, self.features)
        self.norm = nn.LayerNorm(self.features)

    def _mean_of(self, values: torch.Tensor) -> torch.Tensor:
        # bfloat16 holds integers up to 256 exactly, so a pixel minus a mean that is an integer is exact.
        return values.mean(0).round()

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode (batch, channels, height, width) uint8 states as (batch, features) float32."""
        # Casting, shifting, scaling or transposing a batch in float32 takes as long as a layer. So the states are cast
        # to self.dtype once and shifted there, and the scale is applied to the few weights of the first layer. Channels
        # stay last.
        pixels = states.movedim(1, -1).contiguous()
        shifted = pixels.to(self.dtype, copy=True).sub_(self.mean).permute(0, 3, 1, 2)
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            first = F.conv2d(shifted, self.first.weight * self.scale, self.first.bias, self.first.stride)
            second = self.second(F.relu(first, inplace=True))
            third = self.third(F.relu(second, inplace=True).permute(0, 2, 3, 1).flatten(1))
        return F.relu(self.norm(third.float()))


class BoardEncoder(NormalisingEncoder):
    """Two padded 3 x 3 convolutions with 16 and 32 filters, and 256 units with layer normalisation.

    A 3 x 3 convolution cannot see a whole line. So the second layer also gets the means of each cell's row and column.
    Wu (2019), https://arxiv.org/abs/1902.10565, section 3.3, uses the means of the whole board in a similar way.

    Attributes:
        filters: number of output features per cell.
    """

    features = 256
    filters = 32

    def __init__(self, shape: tuple[int, ...]):
        super().__init__(shape)
        channels, height, width = shape
        self.first = nn.Conv2d(channels, 16, kernel_size=3, padding=1)
        self.second = nn.Conv2d(16, self.filters, kernel_size=3, padding=1)
        self.of_rows = nn.Conv2d(16, self.filters, kernel_size=1)
        self.of_columns = nn.Conv2d(16, self.filters, kernel_size=1)
        self.third = nn.Linear(self.filters * height * width, self.features)
        self.norm = nn.LayerNorm(self.features)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Encode (batch, channels, height, width) states as (batch, features) float32."""
        return self.encode(states)[0]

    def encode(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return features of the boards, (batch, features), and of the cells, (batch, filters, height, width)."""
        boards = states.movedim(1, -1).contiguous().float()
        normal = ((boards - self.mean) * self.scale).permute(0, 3, 1, 2)
        first = F.relu(self.first(normal))
        lines = self.of_rows(first.mean(3, keepdim=True)) + self.of_columns(first.mean(2, keepdim=True))
        cells = F.relu(self.second(first) + lines)
        return F.relu(self.norm(self.third(cells.permute(0, 2, 3, 1).flatten(1)))), cells


class VectorEncoder(NormalisingEncoder):
    """Multilayer perceptron with two layers of 64 units.

    Every entry is shifted and scaled by its mean and standard deviation over the states that `normalise_by` was given,
    and then clipped. This is done in float64, because float32 holds a Unix time in steps of 128 seconds.

    Attributes:
        mean, scale: of each entry, (n,) float64.
        variance: of each entry, (n,) float64.
        count: number of states, () float64.
    """

    running = True
    features = 64
    variance: torch.Tensor
    count: torch.Tensor

    def __init__(self, shape: tuple[int, ...]):
        size = math.prod(shape)
        super().__init__((size,), torch.float64)
        self.scale = torch.ones(size, dtype=torch.float64)
        self.register_buffer("variance", torch.zeros_like(self.mean))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.first = nn.Linear(size, self.features)
        self.second = nn.Linear(self.features, self.features)

    @property
    def is_fitted(self) -> bool:
        return bool(self.count)

    @torch.no_grad()
    def normalise_by(self, states: torch.Tensor) -> None:
        """Add states to the statistics. See Chan et al. (1979), Updating formulae and a pairwise algorithm."""
        values = states.flatten(1).double()
        share = len(values) / (self.count + len(values))
        gap = values.mean(0) - self.mean
        spread = values.var(0, correction=0)
        self.variance.add_(share * (spread - self.variance + (1.0 - share) * gap**2))
        self.mean.add_(share * gap)
        self.count.add_(len(values))
        self.scale.copy_(torch.where(self.variance > 0.0, self.variance.rsqrt(), 1.0))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        limit = torch.where(self.count > 0.0, LARGEST, math.inf)
        normal = ((states.flatten(1).double() - self.mean) * self.scale).clamp(-limit, limit)
        return torch.tanh(self.second(torch.tanh(self.first(normal.float()))))


class CompositeEncoder(nn.Module):
    """An encoder for each part of composite states; their features are concatenated.

    Args:
        space: space of the states.
        make: function from the shape of a part to its encoder.

    Attributes:
        features: number of output features.
        dtype: data type of the features.
        is_fitted, running: see NormalisingEncoder.
    """

    dtype = torch.float32
    features: int

    def __init__(self, space: CompositeBox, make: Callable[[tuple[int, ...]], nn.Module]):
        super().__init__()
        self.shapes = [part.shape for part in space.parts]
        self.parts = nn.ModuleList(map(make, self.shapes))
        self.features = sum(cast(int, part.features) for part in self.parts)
        self._normalising = [part for part in self.parts if isinstance(part, NormalisingEncoder)]
        self.running = any(part.running for part in self._normalising)

    @property
    def is_fitted(self) -> bool:
        return all(part.is_fitted for part in self._normalising)

    def normalise_by(self, states: torch.Tensor) -> None:
        """Adapt the parts' normalisation to these states; see NormalisingEncoder.normalise_by."""
        for part, states_of_part in zip(self.parts, self._split(states), strict=True):
            if isinstance(part, NormalisingEncoder):
                part.normalise_by(states_of_part)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        columns = zip(self.parts, self._split(states), strict=True)
        return torch.cat([encoder(column) for encoder, column in columns], 1)

    def _split(self, states: torch.Tensor) -> list[torch.Tensor]:
        columns = torch.split(states, [math.prod(shape) for shape in self.shapes], 1)
        return [column.reshape(-1, *shape) for column, shape in zip(columns, self.shapes, strict=True)]


def encoder_of(
    space: spaces.Box | tuple[int, ...], make: Callable[[tuple[int, ...]], Encoder]
) -> Encoder | CompositeEncoder:
    """Return the encoder of states, given a function that makes one for a shape, and a space or shape of states."""
    if isinstance(space, CompositeBox):
        return CompositeEncoder(space, make)
    return make(space.shape if isinstance(space, spaces.Box) else space)


def make_encoder(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> NormalisingEncoder:
    """Make the normalising encoder that fits the shape of a state. An ImageEncoder computes in `dtype`."""
    kind = observation_kind(shape)
    if kind == "image":
        return ImageEncoder(shape, dtype)
    return BoardEncoder(shape) if kind == "board" else VectorEncoder(shape)


@functools.cache
def fast_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 if the device is faster with it. Otherwise return float32, and log a warning once."""
    if has_fast_bfloat16(device):
        return torch.bfloat16
    log.warning("This %s is not faster in bfloat16: float32 is used.", device.type)
    return torch.float32


def initialise(encoder: nn.Module) -> None:
    """Initialise an encoder with orthogonal weights, whose channels are last in memory."""
    for layer in encoder.modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            orthogonal(layer, math.sqrt(2))
        if isinstance(layer, nn.Conv2d):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)


def orthogonal(layer: nn.Conv2d | nn.Linear, gain: float) -> None:
    """Initialise a layer with zero biases and orthogonal weights, multiplied by `gain`."""
    nn.init.orthogonal_(layer.weight, gain)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
