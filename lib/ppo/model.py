"""The textbook network of PPO: action logits and state values."""

from typing import Any

import torch
from gymnasium import spaces
from torch import nn

from lib.envs.observations import ObservationKind, observation_kind
from lib.nets.encoders import NatureEncoder, initialise, make_encoder, orthogonal
from lib.nets.masking import MaskSplitter, mask_invalid


class ActorCritic(nn.Module):
    """Base of PPO's networks: action logits and values of states.

    Args:
        space: observation space of one environment; it may carry an action mask (`MaskedBox`).

    Attributes:
        options: further arguments that build the same network, as in dqn_model.DQN.
        split: separates the action masks from the states.
    """

    def __init__(self, space: spaces.Box):
        super().__init__()
        self.options: dict[str, Any] = {}
        self.split = MaskSplitter(space)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logits and values.

        Args:
            states: (batch, ...) states of the space.

        Returns:
            Logits, (batch, n_actions) float32, and values, (batch,) float32. The logit of an invalid action is
            masking.INVALID.
        """
        raise NotImplementedError


class Model(ActorCritic):
    """Textbook network: the encoder of Mnih et al. (2015), with a linear policy head and a linear value head.

    For vectors, the policy and the values have two layers of 64 units each and share none. For boards, for which the
    paper has no network, the encoder is a BoardEncoder without normalisation of its input.

    Args:
        space: observation space of one environment; it may carry an action mask (`MaskedBox`).
        n_actions: number of actions.
    """

    def __init__(self, space: spaces.Box, n_actions: int):
        super().__init__(space)
        shape = self.split.shape
        kind = observation_kind(shape)
        self.body = NatureEncoder(shape) if kind is ObservationKind.IMAGE else make_encoder(shape)
        self.value_body = make_encoder(shape) if kind is ObservationKind.VECTOR else None
        self.policy = nn.Linear(self.body.features, n_actions)
        self.value = nn.Linear(self.body.features, 1)
        initialise(self.body)
        if self.value_body is not None:
            initialise(self.value_body)
        orthogonal(self.policy, 0.01)
        orthogonal(self.value, 1.0)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute logits and values; see ActorCritic.forward."""
        observations, allowed = self.split(states)
        features = self.body(observations)
        value_features = features if self.value_body is None else self.value_body(observations)
        return mask_invalid(self.policy(features), allowed), self.value(value_features).squeeze(-1)
