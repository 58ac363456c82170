"""The network of Mnih et al. (2015), "Human-level control through deep reinforcement learning"."""

import math

import torch
from torch import nn

HIDDEN = 512  # units between what is seen and the values


def trunk(input_shape: tuple[int, ...]) -> tuple[nn.Sequential, int]:
    """The layers that see: the paper's three convolutions for images, one of 128 units for all else.

    Args:
        input_shape: of a state: (channels, height, width), height and width of at least 36; or of numbers, (n,).

    Returns:
        The layers, and how many numbers come out of them.

    Raises:
        ValueError: the shape is neither.
    """
    if len(input_shape) == 1:
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), 128), nn.ReLU()), 128
    if len(input_shape) != 3 or min(input_shape[1:]) < 36:
        raise ValueError(f"input_shape is {input_shape}; it has to be (channels, >= 36, >= 36), or (numbers,)")
    layers = nn.Sequential(
        nn.Conv2d(input_shape[0], 32, kernel_size=8, stride=4),
        nn.ReLU(),
        nn.Conv2d(32, 64, kernel_size=4, stride=2),
        nn.ReLU(),
        nn.Conv2d(64, 64, kernel_size=3, stride=1),
        nn.ReLU(),
        nn.Flatten(),
    )
    with torch.no_grad():
        return layers, layers(torch.zeros(1, *input_shape)).shape[1]


class DQN(nn.Module):
    """Three convolutions and two fully connected layers, from stacked frames to one value an action.

    Args:
        input_shape: of a state, see trunk.
        n_actions: how many actions there are.
        dtype: what it calculates in where states are images; its weights are float32.
    """

    def __init__(self, input_shape: tuple[int, ...], n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        images = len(input_shape) == 3
        self.dtype = dtype if images else torch.float32
        self.scale = 255.0 if images else 1.0
        self.conv, features = trunk(input_shape)
        self.fc = nn.Sequential(nn.Linear(features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_actions))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Action values.

        Args:
            states: (batch, *input_shape); of images uint8 0 .. 255, or any float type of the same range.

        Returns:
            (batch, n_actions) float32.
        """
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return self.fc(self.conv(states.to(self.dtype) / self.scale)).float()
