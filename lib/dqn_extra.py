"""Chapter 8's extensions of the network, alone or combined: noisy, dueling, distributional."""

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

# Initial sigma of each kind of noise, Fortunato et al. (2018), section 3.2.
SIGMAS = {FACTORISED: 0.5, PER_STATE: 0.5, INDEPENDENT: 0.017}


class NoisyLinear(nn.Module):
    """Linear layer with noisy weights, Fortunato et al. (2018), https://arxiv.org/abs/1706.10295, equation 9.

    Each weight is a learnt mean plus a learnt sigma times noise. In training mode the layer uses the noise of the last
    `resample`, in evaluation mode the means only.

    Args:
        inputs: number of input features.
        outputs: number of output features.
        noise: kind of noise. "factorised" draws one number per input and one per output, and multiplies them (equations
            10 and 11). "per-state" does so separately for each row of a batch. "independent" draws one number per
            weight. The means are initialised as in section 3.2.
        sigma: initial sigma; unless the noise is independent, it is divided by the square root of `inputs`. None for
            the paper's value.

    Raises:
        UsageError: if the noise is unknown or sigma is out of range.
    """

    _noise: torch.Tensor  # (rows, inputs), or (outputs, inputs) if the noise is independent
    _bias_noise: torch.Tensor  # (rows, outputs)

    def __init__(self, inputs: int, outputs: int, noise: str = FACTORISED, sigma: float | None = None):
        super().__init__()
        if noise not in SIGMAS:
            raise UsageError(f"noise is {noise!r}; it has to be one of {', '.join(SIGMAS)}")
        if sigma is None:
            sigma = SIGMAS[noise]
        if not 1e-6 <= sigma <= 1000.0:
            raise UsageError(f"sigma is {sigma:g}; it has to be between 1e-06 and 1000")
        self.noise = noise
        if noise == INDEPENDENT:
            bound = math.sqrt(3.0 / inputs)
        else:
            bound = 1.0 / math.sqrt(inputs)
            sigma = sigma / math.sqrt(inputs)
        self.weight_mean = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mean = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma))
        # Buffers move to a device together with the weights. They are not saved, because they are drawn again.
        self.register_buffer("_noise", torch.empty(outputs if noise == INDEPENDENT else 1, inputs), persistent=False)
        self.register_buffer("_bias_noise", torch.empty(1, outputs), persistent=False)
        self.resample()

    @torch.no_grad()
    def resample(self, rows: int = 1) -> None:
        """Draw new noise.

        Args:
            rows: number of rows in the following batches; 1 for the same noise in all rows. Only "per-state" noise
                differs between rows.

        Raises:
            ValueError: if rows is below 1.
        """
        if rows < 1:
            raise ValueError(f"rows is {rows}; it has to be at least 1")
        # The old tensors are not overwritten, because a gradient may still need them.
        if self.noise == INDEPENDENT:
            self._noise = torch.randn_like(self._noise)
            self._bias_noise = torch.randn_like(self._bias_noise)
            return
        if self.noise != PER_STATE:
            rows = 1
        self._noise = _signed_sqrt(self._noise.new_empty(rows, self._noise.shape[1]).normal_())
        self._bias_noise = _signed_sqrt(self._bias_noise.new_empty(rows, self._bias_noise.shape[1]).normal_())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map (batch, inputs) to (batch, outputs).

        Raises:
            ValueError: if the noise was drawn for another number of rows.
        """
        if not self.training:
            return F.linear(features, self.weight_mean, self.bias_mean)
        if len(self._bias_noise) not in (1, len(features)):
            raise ValueError(
                f"there is noise for {len(self._bias_noise)} rows, but the batch has {len(features)} rows; "
                f"call resample({len(features)}) or resample() first"
            )
        if self.noise == INDEPENDENT:
            bias = self.bias_mean + self.bias_sigma * self._bias_noise[0]
            return F.linear(features, self.weight_mean + self.weight_sigma * self._noise, bias)
        # The noise of a weight is the noise of its input times the noise of its output, so the layer does not have to
        # compute a matrix of noisy weights.
        noisy = F.linear(features * self._noise, self.weight_sigma, self.bias_sigma)
        return F.linear(features, self.weight_mean, self.bias_mean) + noisy * self._bias_noise

    def signal_to_noise(self) -> float:
        """Return the root mean square of the weights' means, divided by that of their sigmas."""
        return math.sqrt(self.weight_mean.square().mean().item() / self.weight_sigma.square().mean().item())


def _signed_sqrt(noise: torch.Tensor) -> torch.Tensor:
    """Return sgn(x) sqrt(|x|), the function f of equations 10 and 11."""
    return torch.copysign(noise.abs().sqrt_(), noise)


class ExtendedDQN(nn.Module):
    """The network of Mnih et al. (2015) with any combination of chapter 8's extensions.

    Args:
        space: space of a state, which may be a masks.MaskedBox, or the shape of a state.
        n_actions: number of actions.
        dueling: use separate streams for a state's value and its actions' advantages, Wang et al. (2016),
            https://arxiv.org/abs/1511.06581, equation 9.
        hidden: hidden units per stream. None for dqn_model.HIDDEN units in total, so that a dueling network has about
            as many weights as a plain one.
        sigma: initial sigma of noisy linear layers, see NoisyLinear; None for ordinary linear layers. In training mode
            every forward pass draws new noise.
        noise: kind of noise, see NoisyLinear.
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
        noise: str = PER_STATE,
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
        linear = nn.Linear if sigma is None else partial(NoisyLinear, noise=noise, sigma=sigma)

        def make_stream(outputs: int) -> nn.Sequential:
            return nn.Sequential(linear(self.conv.features, hidden), nn.ReLU(), linear(hidden, outputs))

        self.advantage = make_stream(n_actions * self.atoms)
        self.value = make_stream(self.atoms) if dueling else None
        self._noisy_layers = [layer for layer in self.modules() if isinstance(layer, NoisyLinear)]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Compute action values.

        Args:
            states: (batch, ...) states of the space.

        Returns:
            (batch, n_actions) float32; masking.INVALID for actions that the state's mask does not allow.
        """
        return self.values(self.predict(states))

    def predict(self, states: torch.Tensor) -> torch.Tensor:
        """Compute what the network learns: action values or return distributions.

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
        values = self.values(predicted) if selector is None else selector(states)
        return losses.select_actions(predicted, values.argmax(1))

    def _outputs(self, states: torch.Tensor) -> torch.Tensor:
        """Compute values or logits, (batch, n_actions, atoms) float32."""
        if self.training:
            for layer in self._noisy_layers:
                layer.resample(len(states))
        with self.conv.autocast(states.device):
            features = self.conv(states)
            advantages: torch.Tensor = self.advantage(features).unflatten(1, (self.n_actions, self.atoms))
            value = None if self.value is None else self.value(features)
        # The streams are added in float32, because bfloat16 would lose small differences between actions.
        advantages = advantages.float()
        if value is None:
            return advantages
        outputs: torch.Tensor = value.float()[:, None] + advantages - advantages.mean(dim=1, keepdim=True)
        return outputs

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
