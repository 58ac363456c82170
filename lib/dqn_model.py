"""The network of Mnih et al. (2015), "Human-level control through deep reinforcement learning"."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from gymnasium import spaces
from torch import nn

from lib.envs import observations
from lib.nets.encoders import initialise, make_encoder
from lib.nets.masking import MaskSplitter, mask_invalid

HIDDEN = 512  # units between what is seen and the values


class Trunk(nn.Sequential):
    """The layers that see: the paper's three convolutions for images, two of 3 x 3 for boards, 128 units for vectors.

    Args:
        input_shape: of a state: (channels, height, width), an image where both are at least 36, or else a board; or of
            a vector, (n,).
        dtype: what is calculated in where states are images; the weights are float32.

    Attributes:
        features: how many numbers come out.

    Raises:
        ValueError: the shape is neither.
    """

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        self.dtype, self.scale = torch.float32, 1.0
        if len(input_shape) == 1:
            super().__init__(nn.Flatten(), nn.Linear(math.prod(input_shape), 128), nn.ReLU())
            self.features = 128
        elif len(input_shape) == 3 and not observations.is_large(input_shape[1:]):
            super().__init__(
                *(nn.Conv2d(input_shape[0], 32, kernel_size=3, padding=1), nn.ReLU()),
                *(nn.Conv2d(32, 64, kernel_size=3, padding=1), nn.ReLU()),
                nn.Flatten(),
            )
            self.features = 64 * math.prod(input_shape[1:])
        elif len(input_shape) == 3:
            super().__init__(
                *(nn.Conv2d(input_shape[0], 32, kernel_size=8, stride=4), nn.ReLU()),
                *(nn.Conv2d(32, 64, kernel_size=4, stride=2), nn.ReLU()),
                *(nn.Conv2d(64, 64, kernel_size=3, stride=1), nn.ReLU()),
                nn.Flatten(),
            )
            self.dtype, self.scale = dtype, 255.0
            with torch.no_grad():
                self.features = super().forward(torch.zeros(1, *input_shape)).shape[1]
        else:
            raise ValueError(f"input_shape is {input_shape}; it has to be (channels, height, width), or (numbers,)")

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Features.

        Args:
            states: (batch, *input_shape); of images uint8 0 .. 255, or any float type of the same range; else float32.

        Returns:
            (batch, features).
        """
        return super().forward(states.to(self.dtype) / self.scale)

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Within it this and the layers after it calculate in dtype."""
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


class Normalising(nn.Module):
    """In a Trunk's place, one of PPO's bodies, a third of its work, which normalises what it sees.

    Most of a screen is always the same. What changes in it, such as the ball in Pong, is learnt from many fewer steps
    once that is subtracted, and a high learning rate no longer kills all units of the first layer.

    Args:
        input_shape, dtype: see Trunk.

    Attributes:
        features: how many numbers come out.
        seen: whether it has looked at states.
    """

    seen: torch.Tensor

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.body = make_encoder(input_shape, dtype)
        initialise(self.body)
        self.features = self.body.features
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def normalise_by(self, states: torch.Tensor) -> None:
        """Normalise from now on by these states, (batch, *input_shape)."""
        self.body.normalise_by(_channels_last(states))
        self.seen.fill_(True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Features (batch, features) float32 of states (batch, *input_shape)."""
        return self.body(_channels_last(states))

    def autocast(self, device: torch.device) -> AbstractContextManager:
        """Nothing: the body sees to itself, and the layers after it calculate in float32."""
        return nullcontext()


def trunk(input_shape: tuple[int, ...], dtype: torch.dtype, normalise: bool) -> Trunk | Normalising:
    """The layers that see."""
    return Normalising(input_shape, dtype) if normalise else Trunk(input_shape, dtype)


def _channels_last(states: torch.Tensor) -> torch.Tensor:
    return states.movedim(1, -1) if states.ndim == 4 else states


class DQN(nn.Module):
    """What sees, a Trunk or Normalising, and two fully connected layers: from states to one value an action.

    Args:
        space: of a state, or its shape; see Trunk, and masks.MaskedBox.
        n_actions: how many actions there are.
        dtype: see Trunk.
        normalise: whether Normalising sees, and not Trunk.
    """

    def __init__(
        self,
        space: spaces.Box | tuple[int, ...],
        n_actions: int,
        dtype: torch.dtype = torch.float32,
        normalise: bool = False,
    ):
        super().__init__()
        self.split = MaskSplitter(space)
        self.conv = trunk(self.split.shape, dtype, normalise)
        self.fc = nn.Sequential(nn.Linear(self.conv.features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_actions))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Action values.

        Args:
            states: (batch, *shape of the space).

        Returns:
            (batch, n_actions) float32; masks.INVALID where the state says that an action is not allowed.
        """
        states, allowed = self.split(states)
        with self.conv.autocast(states.device):
            values = self.fc(self.conv(states)).float()
        return mask_invalid(values, allowed)
