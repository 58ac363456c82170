"""The network of Mnih et al. (2015), "Human-level control through deep reinforcement learning"."""

import torch
from torch import nn


class DQN(nn.Module):
    """Three convolutions and two fully connected layers, from stacked frames to one value an action.

    Args:
        input_shape: (channels, height, width) of a state; height and width of at least 36.
        n_actions: how many actions there are.
        dtype: what it calculates in; its weights are float32.
    """

    def __init__(self, input_shape: tuple[int, int, int], n_actions: int, dtype: torch.dtype = torch.float32):
        super().__init__()
        self.dtype = dtype
        if len(input_shape) != 3 or min(input_shape[1:]) < 36:
            raise ValueError(f"input_shape is {input_shape}; it has to be (channels, >= 36, >= 36)")
        self.conv = nn.Sequential(
            nn.Conv2d(input_shape[0], 32, kernel_size=8, stride=4),
            nn.ReLU(),
            nn.Conv2d(32, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.Conv2d(64, 64, kernel_size=3, stride=1),
            nn.ReLU(),
            nn.Flatten(),
        )
        with torch.no_grad():
            features = self.conv(torch.zeros(1, *input_shape)).shape[1]
        self.fc = nn.Sequential(nn.Linear(features, 512), nn.ReLU(), nn.Linear(512, n_actions))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Action values.

        Args:
            states: (batch, channels, height, width), uint8 0 .. 255 or any float type of the same range.

        Returns:
            (batch, n_actions) float32.
        """
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return self.fc(self.conv(states.to(self.dtype) / 255.0)).float()
