"""The network of Mnih et al. (2015), "Human-level control through deep reinforcement learning"."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from gymnasium import spaces
from torch import nn

from lib.envs.observations import MIN_IMAGE_SIDE, ObservationKind, observation_kind
from lib.nets.encoders import channels_last, initialise, make_encoder, nature_convolutions
from lib.nets.masking import MaskSplitter, mask_invalid

HIDDEN = 512  # units between the features and the action values


class Trunk(nn.Sequential):
    """Layers from states, scaled by `scaled`, to features (batch, features).

    Images get the paper's three convolutions, boards two convolutions of 3 x 3, and vectors one layer of 128 units.

    Args:
        input_shape: shape of a state, (channels, height, width) or (n,), without the action mask.
        dtype: data type in which images are processed; weights are float32.

    Attributes:
        features: number of output features.

    Raises:
        ValueError: if the shape is not (channels, height, width) or (n,), or is that of an image with channels last.
    """

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        kind = observation_kind(input_shape)
        if kind is ObservationKind.BOARD and min(input_shape[:2]) >= MIN_IMAGE_SIDE and input_shape[2] <= 4:
            raise ValueError(
                f"the shape {input_shape} has its channels last; they have to come first, as with pytorch_img=True or "
                "frame_stack=True of wrap_deepmind"
            )
        if kind is ObservationKind.IMAGE:
            super().__init__(*nature_convolutions(input_shape[0]))
        elif kind is ObservationKind.BOARD:
            super().__init__(
                nn.Conv2d(input_shape[0], 32, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.Conv2d(32, 64, kernel_size=3, padding=1),
                nn.ReLU(),
                nn.Flatten(),
            )
        else:
            super().__init__(nn.Flatten(), nn.Linear(math.prod(input_shape), 128), nn.ReLU())
        with torch.no_grad():
            self.features: int = self(torch.zeros(1, *input_shape)).shape[1]
        self.dtype, self.scale = (dtype, 255.0) if kind is ObservationKind.IMAGE else (torch.float32, 1.0)

    def scaled(self, states: torch.Tensor) -> torch.Tensor:
        """Convert states to `dtype`, and images to numbers from 0 to 1.

        It is a step of its own because the book's networks scale states before they call their convolutions.

        Args:
            states: (batch, *input_shape); images in any type from 0 to 255.
        """
        return states.to(self.dtype) / self.scale

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Return a context in which this trunk and the layers after it compute in `dtype`."""
        return torch.autocast(device.type, self.dtype, enabled=self.dtype != torch.float32)


class NormalisingTrunk(nn.Module):
    """Replacement for Trunk: PPO's encoder, which normalises its input and takes a third of the time.

    Most of a screen never changes. If that part is subtracted, the network needs far fewer steps to learn from what
    does change, such as the ball in Pong. A high learning rate then no longer kills all units of the first layer.

    Args:
        input_shape: see Trunk.
        dtype: see Trunk.

    Attributes:
        features: number of output features.
        seen: whether `normalise_by` has been called, () bool.
    """

    seen: torch.Tensor

    def __init__(self, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32):
        super().__init__()
        self.body = make_encoder(input_shape, dtype)
        initialise(self.body)
        self.features = self.body.features
        self.register_buffer("seen", torch.zeros((), dtype=torch.bool))

    def normalise_by(self, states: torch.Tensor) -> None:
        """Set the mean and the scale of the normalisation from states, (batch, *input_shape)."""
        self.body.normalise_by(channels_last(states))
        self.seen.fill_(True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the features (batch, features) float32 of states (batch, *input_shape)."""
        features: torch.Tensor = self.body(channels_last(states).contiguous())
        return features

    def scaled(self, states: torch.Tensor) -> torch.Tensor:
        """Return the states as they are, because the encoder normalises them."""
        return states

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        """Return an empty context: the encoder casts its input itself, and the layers after it use float32."""
        return nullcontext()


def make_trunk(input_shape: tuple[int, ...], dtype: torch.dtype, normalise: bool) -> Trunk | NormalisingTrunk:
    """Make the layers from states to features; see Trunk and NormalisingTrunk."""
    return NormalisingTrunk(input_shape, dtype) if normalise else Trunk(input_shape, dtype)


class DQN(nn.Module):
    """Deep Q-network: a trunk and two fully connected layers, from states to action values.

    Args:
        input_shape: shape of a state, or its space, which may be a masks.MaskedBox.
        n_actions: number of actions.
        dtype: see Trunk.
        normalise: use NormalisingTrunk instead of Trunk.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...] | spaces.Box,
        n_actions: int,
        dtype: torch.dtype = torch.float32,
        normalise: bool = False,
    ):
        super().__init__()
        self.split = MaskSplitter(input_shape)
        self.conv = make_trunk(self.split.shape, dtype, normalise)
        self.fc = nn.Sequential(nn.Linear(self.conv.features, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, n_actions))

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Compute action values.

        Args:
            states: (batch, ...), with the action mask if there is one.

        Returns:
            (batch, n_actions) float32; masking.INVALID for actions that the state's mask does not allow.
        """
        states, allowed = self.split(states)
        with self.conv.autocast(states.device):
            values = self.fc(self.conv(self.conv.scaled(states))).float()
        return mask_invalid(values, allowed)
