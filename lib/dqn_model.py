"""The network of Mnih et al. (2015), "Human-level control through deep reinforcement learning"."""

import math
from contextlib import AbstractContextManager
from typing import NamedTuple

import torch
from torch import nn


class Layers(NamedTuple):
    """What a network sees with: filters, their size and their stride, by convolution; and its fully connected units."""

    convolutions: tuple[tuple[int, int, int], ...]
    hidden: int


NETWORKS = {  # by the year of the paper by Mnih et al.
    2013: Layers(((16, 8, 4), (32, 4, 2)), 256),
    2015: Layers(((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
}


class Trunk(nn.Sequential):
    """The layers that see: a paper's convolutions for images, one layer of 128 units for all else.

    Args:
        input_shape: of a state: (channels, height, width), height and width of at least 36; or of numbers, (n,).
        dtype: what is calculated in where states are images; the weights are float32.
        network: the paper, a key of NETWORKS.

    Attributes:
        features: how many numbers come out.
        hidden: units between them and the values.

    Raises:
        ValueError: the shape is neither.
    """

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32, network: int = 2015):
        convolutions, hidden = NETWORKS[network]
        if len(input_shape) == 1:
            super().__init__(nn.Flatten(), nn.Linear(math.prod(input_shape), 128), nn.ReLU())
            self.dtype, self.scale, self.features = torch.float32, 1.0, 128
        elif len(input_shape) == 3 and min(input_shape[1:]) >= 36:
            layers: list[nn.Module] = []
            channels = input_shape[0]
            for filters, size, stride in convolutions:
                layers += [nn.Conv2d(channels, filters, size, stride), nn.ReLU()]
                channels = filters
            super().__init__(*layers, nn.Flatten())
            self.dtype, self.scale = dtype, 255.0
            with torch.no_grad():
                self.features = super().forward(torch.zeros(1, *input_shape)).shape[1]
        else:
            raise ValueError(f"input_shape is {input_shape}; it has to be (channels, >= 36, >= 36), or (numbers,)")
        self.hidden = hidden

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Features.

        Args:
            states: (batch, *input_shape); of images uint8 0 .. 255, or any float type of the same range.

        Returns:
            (batch, features).
        """
        return super().forward(states.to(self.dtype) / self.scale)

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Within it this and the layers after it calculate in dtype."""
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


class DQN(nn.Module):
    """Three convolutions and two fully connected layers, from stacked frames to one value an action.

    Args:
        input_shape, dtype: see Trunk.
        n_actions: how many actions there are.
    """

    def __init__(self, input_shape: tuple[int, ...], n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.conv = Trunk(input_shape, dtype)
        features, hidden = self.conv.features, self.conv.hidden
        self.fc = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, n_actions))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Action values.

        Args:
            states: (batch, *input_shape), see Trunk.

        Returns:
            (batch, n_actions) float32.
        """
        with self.conv.autocast(states.device):
            return self.fc(self.conv(states)).float()
