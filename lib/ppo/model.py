"""The textbook network of PPO: action distributions and state values."""

import torch
from gymnasium import spaces
from torch import nn

from lib.envs.observations import observation_kind
from lib.nets.distributions import Space, distribution_of
from lib.nets.encoders import (
    NatureEncoder,
    NormalisingEncoder,
    VectorEncoder,
    encoder_of,
    initialise,
    make_encoder,
    orthogonal,
)
from lib.nets.masking import MaskSplitter, mask_invalid


class ActorCritic(nn.Module):
    """Base of PPO's networks: distributions of actions and values of states.

    Args:
        space: observation space of one environment; it may carry an action mask (`MaskedBox`).
        actions: action space, or the number of discrete actions.

    Attributes:
        distribution: kind of the actions' distribution.
        options: further arguments that build the same network, as in dqn_model.DQN.
        split: separates the action masks from the states.
    """

    def __init__(self, space: spaces.Box, actions: int | Space):
        super().__init__()
        self.options: dict[str, object] = {}
        self.distribution = distribution_of(actions)
        self.split = MaskSplitter(space)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the parameters of the action distributions, and values.

        Args:
            states: (batch, ...) states of the space.

        Returns:
            Parameters, (batch, distribution.parameters) float32, and values, (batch,) float32. The logit of an invalid
            action is masking.INVALID.
        """
        raise NotImplementedError


class Recurrent(ActorCritic):
    """Base of networks with a memory, a vector for each environment."""

    def first_memory(self, number: int) -> torch.Tensor:
        """Return the memory at the start of episodes, (number, size) float32."""
        raise NotImplementedError

    def remember(
        self, states: torch.Tensor, memory: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Process sequences of T states in n environments.

        Args:
            states: (T * n, ...) states, step by step.
            memory: (n, size) memory before the first step.
            starts: (T, n) bool, whether a state is the first one of its episode.

        Returns:
            Parameters, (T * n, parameters), values, (T * n,), and the memory after the last step, (n, size).
        """
        raise NotImplementedError


def textbook_encoder(shape: tuple[int, ...]) -> NatureEncoder | NormalisingEncoder:
    """Return the encoder of Mnih et al. (2015) for images, and an encoder that is never fitted for others."""
    return NatureEncoder(shape) if observation_kind(shape) == "image" else make_encoder(shape)


class Model(ActorCritic):
    """Textbook network: the encoder of Mnih et al. (2015), with a linear policy head and a linear value head.

    For vectors, the policy and the values have two layers of 64 units each and share none. For boards, for which the
    paper has no network, the encoder is a BoardEncoder without normalisation of its input.

    Args:
        space, actions: see ActorCritic.
    """

    def __init__(self, space: spaces.Box, actions: int | Space):
        super().__init__(space, actions)
        self.body = encoder_of(self.split.space, textbook_encoder)
        self.value_body = make_encoder(self.split.shape) if isinstance(self.body, VectorEncoder) else None
        self.policy = self.distribution.head(self.body.features)
        self.value = nn.Linear(self.body.features, 1)
        initialise(self.body)
        if self.value_body is not None:
            initialise(self.value_body)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        observations, allowed = self.split(states)
        features = self.body(observations)
        value_features = features if self.value_body is None else self.value_body(observations)
        return mask_invalid(self.policy(features), allowed), self.value(value_features).squeeze(-1)
