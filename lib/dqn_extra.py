"""Chapter 8's extensions of the network, alone or combined: noisy, dueling, distributional.

This project's scripts use ExtendedDQN. The other classes are the book's, for its readers' scripts.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib import dqn_model
from lib.experience.prio_replay_buffer import BETA_FRAMES, BETA_START, PrioReplayBuffer
from lib.nets import losses, noisy
from lib.nets.masking import INVALID, MaskSplitter, mask_invalid

__all__ = [
    "BETA_FRAMES",
    "BETA_START",
    "DELTA_Z",
    "N_ATOMS",
    "DistributionalDQN",
    "DuelingDQN",
    "ExtendedDQN",
    "NoisyDQN",
    "NoisyFactorizedLinear",
    "NoisyLinear",
    "PrioReplayBuffer",
    "RainbowDQN",
    "Vmax",
    "Vmin",
    "distr_projection",
]

# Support of the book's distributional network.
Vmax = 10
Vmin = -10
N_ATOMS = 51
DELTA_Z = (Vmax - Vmin) / (N_ATOMS - 1)

STD_INIT = 0.1  # the third edition's initial sigma of factorised noise


class ExtendedDQN(nn.Module):
    """The network of Mnih et al. (2015) with any combination of chapter 8's extensions.

    Args:
        space: space of a state, which may be a masks.MaskedBox, or the shape of a state.
        n_actions: number of actions.
        dueling: use separate streams for a state's value and its actions' advantages, Wang et al. (2016),
            https://arxiv.org/abs/1511.06581, equation 9.
        hidden: hidden units per stream. None for dqn_model.HIDDEN units in total, so that a dueling network has about
            as many weights as a plain one.
        sigma: initial sigma of noisy linear layers, see noisy.NoisyLinear; None for ordinary linear layers.
        noise: kind of noise, see noisy.NoisyLinear.
        support: (atoms,) support of the return distributions, see losses.support; None to predict values only.
        dtype: see dqn_model.Trunk.
        normalise: use dqn_model.NormalisingTrunk instead of dqn_model.Trunk.

    Attributes:
        support: support of the return distributions on the device of the weights; None if only values are predicted.

    Raises:
        UsageError: if the noise is unknown or sigma is out of range.
        ValueError: if the shape is not (channels, height, width) or (n,).
    """

    support: torch.Tensor | None

    def __init__(
        self,
        space: spaces.Box | tuple[int, ...],
        n_actions: int,
        *,
        dueling: bool = False,
        hidden: int | None = None,
        sigma: float | None = None,
        noise: str = noisy.PER_STATE,
        support: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        normalise: bool = False,
    ):
        super().__init__()
        self.n_actions = int(n_actions)  # Discrete.n is a numpy integer, which torch.compile does not support
        self.atoms = 1 if support is None else len(support)
        self.register_buffer("support", support)
        self.split = MaskSplitter(space)
        self.conv = dqn_model.make_trunk(self.split.shape, dtype, normalise)
        if hidden is None:
            hidden = dqn_model.HIDDEN // (2 if dueling else 1)
        linear = nn.Linear if sigma is None else partial(noisy.NoisyLinear, noise=noise, sigma=sigma)

        def make_stream(outputs: int) -> nn.Sequential:
            return nn.Sequential(linear(self.conv.features, hidden), nn.ReLU(), linear(hidden, outputs))

        self.advantage = make_stream(n_actions * self.atoms)
        self.value = make_stream(self.atoms) if dueling else None
        self._noisy_layers = [layer for layer in self.modules() if isinstance(layer, noisy.NoisyLinear)]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Compute action values.

        Args:
            states: (batch, ...) states of the space.

        Returns:
            (batch, n_actions) float32; masking.INVALID for actions that the state's mask does not allow.
        """
        return self.values(self.predict(states))

    def predict(self, states: torch.Tensor) -> torch.Tensor:
        """Compute the network's prediction: action values or return distributions.

        Args:
            states: (batch, ...) states of the space.

        Returns:
            (batch, n_actions) values without a support, otherwise (batch, n_actions, atoms) log-probabilities. All
            numbers of an invalid action are masking.INVALID.
        """
        states, allowed = self.split(states)
        outputs = self._outputs(states)
        predicted = outputs.squeeze(-1) if self.support is None else F.log_softmax(outputs, dim=-1)
        return mask_invalid(predicted, allowed)

    def values(self, predicted: torch.Tensor) -> torch.Tensor:
        """Convert the output of `predict` to values (batch, n_actions): the means of return distributions."""
        if self.support is None:
            return predicted
        means = (predicted.exp() * self.support).sum(dim=-1)
        return mask_invalid(means, predicted[..., 0] != INVALID)

    def predict_best(self, states: torch.Tensor, selector: nn.Module | None = None) -> torch.Tensor:
        """Return the prediction for the best action of each state.

        Args:
            states: (batch, ...) states of the space.
            selector: network whose values select the best action, as in double Q-learning; None for this network.

        Returns:
            (batch,) values or (batch, atoms) log-probabilities.
        """
        predicted = self.predict(states)
        if selector is None:
            values = self.values(predicted)
        elif isinstance(selector, ExtendedDQN):  # the output of a DistributionalDQN is logits
            values = selector.values(selector.predict(states))
        else:
            values = selector(states)
        return losses.select_actions(predicted, values.argmax(1))

    def _outputs(self, states: torch.Tensor) -> torch.Tensor:
        """Compute values or logits, (batch, n_actions, atoms) float32."""
        advantages, value = self._streams(states)
        if value is None:
            return advantages
        return _dueling_sum(advantages, value[:, None])

    def _streams(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the advantages (batch, n_actions, atoms) and the value (batch, atoms), or None, in float32."""
        with self.conv.autocast(states.device):
            features = self.conv(self.conv.scaled(states))
            advantages: torch.Tensor = self.advantage(features).unflatten(1, (self.n_actions, self.atoms))
            value = None if self.value is None else self.value(features)
        # The streams are added in float32, because bfloat16 would lose small differences between actions.
        return advantages.float(), None if value is None else value.float()

    def adv_val(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the outputs of a dueling network's two streams.

        Args:
            states: (batch, ...) states of the space.

        Returns:
            The advantages (batch, n_actions), whose mean is not subtracted, and the values (batch, 1).

        Raises:
            ValueError: if the network is not dueling, or it predicts return distributions.
        """
        advantages, value = self._streams(self.split(states)[0])
        if value is None or self.support is not None:
            raise ValueError("only a dueling network without a support has advantages and a value")
        return advantages.squeeze(-1), value

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """Return an optimizer's parameter groups, in which sigmas have a tenth of the learning rate.

        Adam changes each weight by about its learning rate, even if the gradient is small. At the full rate, sigmas
        would soon grow large, however small they were at first.
        """
        sigmas = [weights for name, weights in self.named_parameters() if name.endswith("_sigma")]
        others = [weights for name, weights in self.named_parameters() if not name.endswith("_sigma")]
        groups = [{"params": others, "lr": learning_rate}]
        if sigmas:
            groups.append({"params": sigmas, "lr": 0.1 * learning_rate})
        return groups

    def snr_metrics(self) -> dict[str, Callable[[], float]]:
        """Return functions that compute the signal-to-noise ratio of each noisy layer.

        They run only when they are logged. Their names are snr_1, snr_2, ..., with the advantage stream first.
        """
        return {f"snr_{number}": layer.signal_to_noise for number, layer in enumerate(self._noisy_layers, 1)}


def _dueling_sum(advantages: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Add advantages (batch, n_actions, ...), less their mean, to the value (batch, 1, ...); see ExtendedDQN."""
    return value + advantages - advantages.mean(dim=1, keepdim=True)


class NoisyLinear(noisy.NoisyLinear):
    """The book's noisy layer.

    Args:
        in_features: number of input features.
        out_features: number of output features.
        sigma_init: initial sigma of independent noise, as in the second edition; None for factorised noise with
            STD_INIT, as in the third.
        bias: add a noisy bias.
    """

    def __init__(self, in_features: int, out_features: int, sigma_init: float | None = None, bias: bool = True):
        noise, sigma = (noisy.FACTORISED, STD_INIT) if sigma_init is None else (noisy.INDEPENDENT, sigma_init)
        super().__init__(in_features, out_features, noise, sigma, bias)


class NoisyFactorizedLinear(noisy.NoisyLinear):
    """The second edition's layer with factorised noise; see NoisyLinear. `sigma_zero` is the initial sigma."""

    def __init__(self, in_features: int, out_features: int, sigma_zero: float = 0.4, bias: bool = True):
        super().__init__(in_features, out_features, noisy.FACTORISED, sigma_zero, bias)


class NoisyDQN(ExtendedDQN):
    """The book's noisy network, with factorised noise; see ExtendedDQN for the arguments."""

    def __init__(self, input_shape: tuple[int, ...], n_actions: int, dueling: bool = False):
        super().__init__(input_shape, n_actions, dueling=dueling, sigma=STD_INIT, noise=noisy.FACTORISED)

    def reset_noise(self) -> None:
        """Do nothing, because every forward pass draws new noise."""

    def noisy_layers_sigma_snr(self) -> list[float]:
        """Return the signal-to-noise ratio of each noisy layer; see noisy.NoisyLinear.signal_to_noise."""
        return [layer.signal_to_noise() for layer in self._noisy_layers]


class DuelingDQN(ExtendedDQN):
    """The book's dueling network, with 256 hidden units in each stream; see ExtendedDQN for the arguments."""

    def __init__(self, input_shape: tuple[int, ...], n_actions: int):
        super().__init__(input_shape, n_actions, dueling=True)


class RainbowDQN(NoisyDQN):
    """The book's Rainbow network: dueling, with noisy layers in both streams as in Hessel et al. (2018)."""

    def __init__(self, input_shape: tuple[int, ...], n_actions: int):
        super().__init__(input_shape, n_actions, dueling=True)


class DistributionalDQN(ExtendedDQN):
    """The book's distributional network, with N_ATOMS atoms from Vmin to Vmax. Its output is logits, not values."""

    def __init__(self, input_shape: tuple[int, ...], n_actions: int):
        super().__init__(input_shape, n_actions, support=losses.support(Vmin, Vmax, N_ATOMS))

    @property
    def supports(self) -> torch.Tensor:
        """Support of the return distributions, (N_ATOMS,)."""
        assert self.support is not None
        return self.support

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the logits (batch, n_actions, N_ATOMS) of states (batch, *input_shape)."""
        return self._outputs(x)

    def both(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits (batch, n_actions, N_ATOMS) and the action values (batch, n_actions)."""
        logits = self(x)
        return logits, (self.apply_softmax(logits) * self.supports).sum(dim=2)

    def qvals(self, x: torch.Tensor) -> torch.Tensor:
        """Return the action values (batch, n_actions)."""
        return self.both(x)[1]

    def apply_softmax(self, t: torch.Tensor) -> torch.Tensor:
        """Convert logits (..., N_ATOMS) to probabilities."""
        return t.softmax(dim=-1)


def distr_projection(next_distr: np.ndarray, rewards: np.ndarray, dones: np.ndarray, gamma: float) -> np.ndarray:
    """Project the distribution of rewards + gamma * Z onto the support of Z; see losses.project_distribution.

    Args:
        next_distr: (batch, N_ATOMS) probabilities of Z.
        rewards: (batch,) rewards.
        dones: (batch,) whether the episode terminated, bool or uint8.
        gamma: discount factor.

    Returns:
        (batch, N_ATOMS) float32 probabilities.
    """
    projected = losses.project_distribution(
        torch.as_tensor(next_distr, dtype=torch.float32),
        torch.as_tensor(rewards, dtype=torch.float32),
        gamma * (1.0 - torch.as_tensor(dones).float()),
        losses.support(Vmin, Vmax, N_ATOMS),
    )
    probs: np.ndarray = projected.numpy()
    return probs
