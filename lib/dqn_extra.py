"""Chapter 8's extensions of the network, each by itself or together: noisy, dueling, distributional."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib import dqn_model
from lib.errors import UsageError
from lib.nets import losses
from lib.nets.masking import INVALID, MaskSplitter, mask_invalid

FACTORISED, PER_STATE, INDEPENDENT = "factorised", "per-state", "independent"


SIGMAS = {FACTORISED: 0.5, PER_STATE: 0.5, INDEPENDENT: 0.017}  # Fortunato et al. (2018), section 3.2


class NoisyLinear(nn.Module):
    """A linear layer whose weights are drawn anew, about a mean that is learnt, with a spread that is learnt, Fortunato
    et al. (2018), https://arxiv.org/abs/1706.10295, equation 9.

    While training it calculates with the noise of the last `resample`; in evaluation, with the means alone.

    Args:
        inputs, outputs: how many.
        noise: "factorised", one number an input and one an output, multiplied (equations 10 and 11); "per-state", the
            same for each row of a batch by itself; or "independent", one number a weight. The first values are the
            paper's, section 3.2.
        sigma: spreads begin at it, divided by the square root of inputs unless independent; None for the paper's.

    Raises:
        UsageError: there is no such noise, or sigma is out of range.
    """

    _noise: torch.Tensor  # of each input, or of each weight where it is independent
    _bias_noise: torch.Tensor

    def __init__(self, inputs: int, outputs: int, noise: str = FACTORISED, sigma: float | None = None):
        super().__init__()
        if noise not in SIGMAS:
            raise UsageError(f"noise is {noise!r}; it has to be one of {', '.join(SIGMAS)}")
        sigma = SIGMAS[noise] if sigma is None else sigma
        if not 1e-6 <= sigma <= 1000.0:
            raise UsageError(f"sigma is {sigma:g}; it has to be between 1e-06 and 1000")
        self.noise = noise
        if noise == INDEPENDENT:
            bound, spread = math.sqrt(3.0 / inputs), sigma
        else:
            bound, spread = 1.0 / math.sqrt(inputs), sigma / math.sqrt(inputs)
        self.weight_mean = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mean = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), spread))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), spread))
        # Buffers, so that they go where the weights go; not in the state_dict, as they are drawn anew.
        self.register_buffer("_noise", torch.empty(outputs if noise == INDEPENDENT else 1, inputs), persistent=False)
        self.register_buffer("_bias_noise", torch.empty(1, outputs), persistent=False)
        self.resample()

    @torch.no_grad()
    def resample(self, rows: int = 1) -> None:
        """Draw new noise.

        Args:
            rows: of the batches that follow, where noise is per state; 1 for the same noise for all, however many.
                Other noise is always the same for all.

        Raises:
            ValueError: there are no rows.
        """
        if rows < 1:
            raise ValueError(f"rows is {rows}; it has to be at least 1")
        # New tensors: the last ones may still be needed for a gradient.
        if self.noise == INDEPENDENT:
            self._noise, self._bias_noise = map(torch.randn_like, (self._noise, self._bias_noise))
            return
        rows = rows if self.noise == PER_STATE else 1
        drawn = [noise.new_empty(rows, noise.shape[1]).normal_() for noise in (self._noise, self._bias_noise)]
        self._noise, self._bias_noise = (torch.copysign(noise.abs().sqrt_(), noise) for noise in drawn)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """(batch, inputs) to (batch, outputs).

        Raises:
            ValueError: there is noise for another number of rows.
        """
        if not self.training:
            return F.linear(features, self.weight_mean, self.bias_mean)
        if len(self._bias_noise) not in (1, len(features)):
            raise ValueError(
                f"{len(features)} rows, and noise for {len(self._bias_noise)}; resample it for as many, or 1"
            )
        if self.noise == INDEPENDENT:
            bias = self.bias_mean + self.bias_sigma * self._bias_noise[0]
            return F.linear(features, self.weight_mean + self.weight_sigma * self._noise, bias)
        # The noise of a weight is its input's times its output's, so that the weights need not be put together.
        noisy = F.linear(features * self._noise, self.weight_sigma, self.bias_sigma)
        return F.linear(features, self.weight_mean, self.bias_mean) + noisy * self._bias_noise

    def signal_to_noise(self) -> float:
        """Root mean square of the weights' means, divided by that of their spreads."""
        return math.sqrt(self.weight_mean.square().mean().item() / self.weight_sigma.square().mean().item())


class ExtendedDQN(nn.Module):
    """The network of Mnih et al. (2015), any of the extensions on top of it.

    Args:
        space: of a state, or its shape; see dqn_model.Trunk, and masks.MaskedBox.
        n_actions: how many actions there are.
        dueling: whether a state's value and its actions' advantages come from streams of their own, Wang et al.
            (2016), https://arxiv.org/abs/1511.06581, equation 9.
        hidden: units between what is seen and the outputs, a stream; None for dqn_model.HIDDEN, which two streams
            share, so that dueling adds hardly any weights, and hardly any time.
        sigma: how much noise the linear layers begin with, see NoisyLinear; None for none. While training, every
            forward pass draws it anew.
        noise: which.
        support: (atoms,) of the distributions of returns, see losses.support; None for values alone.
        dtype: see dqn_model.Trunk.
        normalise: whether dqn_model.Normalising sees, and not Trunk.

    Attributes:
        support: as given, on the device of the weights.

    Raises:
        UsageError: as NoisyLinear says.
        ValueError: as dqn_model.Trunk says.
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
        noise: str = PER_STATE,
        support: torch.Tensor | None = None,
        dtype: torch.dtype = torch.float32,
        normalise: bool = False,
    ):
        super().__init__()
        self.n_actions = int(n_actions)  # Discrete.n is numpy's, over which torch.compile gives up
        self.atoms = 1 if support is None else len(support)
        self.register_buffer("support", support)
        self.split = MaskSplitter(space)
        self.conv = dqn_model.trunk(self.split.shape, dtype, normalise)
        units = dqn_model.HIDDEN // (2 if dueling else 1) if hidden is None else hidden
        linear = nn.Linear if sigma is None else partial(NoisyLinear, noise=noise, sigma=sigma)

        def stream(outputs: int) -> nn.Sequential:
            return nn.Sequential(linear(self.conv.features, units), nn.ReLU(), linear(units, outputs))

        self.advantage = stream(n_actions * self.atoms)
        self.value = stream(self.atoms) if dueling else None
        self._noisy = [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Action values.

        Args:
            states: (batch, *shape of the space).

        Returns:
            (batch, n_actions) float32; masks.INVALID where the state says that an action is not allowed.
        """
        return self.values(self.predict(states))

    def predict(self, states: torch.Tensor) -> torch.Tensor:
        """What is learnt: (batch, n_actions) values, or (batch, n_actions, atoms) log-probabilities.

        Where an action is not allowed all of them are masks.INVALID.
        """
        states, allowed = self.split(states)
        outputs = self._outputs(states)
        predicted = outputs.squeeze(-1) if self.support is None else F.log_softmax(outputs, dim=-1)
        return mask_invalid(predicted, allowed)

    def values(self, predicted: torch.Tensor) -> torch.Tensor:
        """The values of what `predict` gave: themselves, or the means of the distributions."""
        if self.support is None:
            return predicted
        means = (predicted.exp() * self.support).sum(dim=-1)
        return mask_invalid(means, predicted[..., 0] != INVALID)

    def best(self, states: torch.Tensor, by: nn.Module | None = None) -> torch.Tensor:
        """What is predicted of each state's best action: (batch,) values, or (batch, atoms) log-probabilities.

        Args:
            states: (batch, *shape of the space).
            by: by whose values the action is the best, as in double Q-learning; by those predicted here if None.
        """
        predicted = self.predict(states)
        values = self.values(predicted) if by is None else by(states)
        return losses.select_actions(predicted, values.argmax(1))

    def _outputs(self, states: torch.Tensor) -> torch.Tensor:
        if self.training:
            for layer in self._noisy:
                layer.resample(len(states))
        with self.conv.autocast(states.device):
            features = self.conv(states)
            outputs = self.advantage(features).unflatten(1, (self.n_actions, self.atoms))
            value = None if self.value is None else self.value(features)
        outputs = outputs.float()  # small differences between actions are lost if they are added up in less
        return outputs if value is None else value.float()[:, None] + outputs - outputs.mean(dim=1, keepdim=True)

    def parameter_groups(self, rate: float) -> list[dict[str, Any]]:
        """All weights for an optimizer that learns at a rate, spreads of noise at a tenth of it.

        Adam moves each number by about its rate, however small its gradient is; at the same rate as the means, spreads
        that begin small would soon be as large as those that do not.
        """
        spreads = {name: weights for name, weights in self.named_parameters() if name.endswith("_sigma")}
        others = [weights for name, weights in self.named_parameters() if name not in spreads]
        groups = [{"params": others, "lr": rate}, {"params": list(spreads.values()), "lr": 0.1 * rate}]
        return [group for group in groups if group["params"]]

    def snr_metrics(self) -> dict[str, Callable[[], float]]:
        """Each noisy layer's signal_to_noise, to be called when it is logged: snr_1, snr_2, ..., advantages first."""
        return {f"snr_{number}": layer.signal_to_noise for number, layer in enumerate(self._noisy, 1)}
