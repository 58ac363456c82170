"""The network of Mnih et al. (2015), with chapter 8's extensions as options: noisy, dueling, distributional."""

from collections.abc import Callable
from functools import partial

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib.nets import losses, noisy
from lib.nets.encoders import CompositeEncoder, NormalisingEncoder, PlainEncoder, encoder_of, initialise, make_encoder
from lib.nets.masking import INVALID, MaskSplitter, mask_invalid

HIDDEN = 512  # units between the features and the action values, of both streams together


class DQN(nn.Module):
    """The network of Mnih et al. (2015) with any combination of chapter 8's extensions.

    Args:
        space: space of a state, which may be a masks.MaskedBox, or the shape of a state.
        n_actions: number of actions.
        dueling: use separate streams for a state's value and its actions' advantages, Wang et al. (2016),
            https://arxiv.org/abs/1511.06581, equation 9.
        sigma, noise: initial sigma and kind of noise, see noisy.NoisyLinear; sigma is None for ordinary layers.
        support: smallest return, largest return and number of atoms of the return distributions, see losses.support;
            None to predict values only.
        dtype: data type in which images are processed; weights are float32.
        normalise: use fast PPO's smaller encoder, which normalises its input; see encoders.make_encoder.

    Attributes:
        options: the options that are set, as plain values and without `dtype`. `DQN(space, n_actions, **options)`
            builds the same network.
        support: support of the return distributions, (atoms,), on the device of the weights; None without them.

    Raises:
        UsageError: if the support is out of range.
        ValueError: if the shape is not (channels, height, width) or (n,).
    """

    support: torch.Tensor | None

    def __init__(
        self,
        space: spaces.Box | tuple[int, ...],
        n_actions: int,
        *,
        dueling: bool = False,
        sigma: float | None = None,
        noise: str = noisy.PER_STATE,
        support: tuple[float, float, int] | None = None,
        dtype: torch.dtype = torch.float32,
        normalise: bool = False,
    ):
        super().__init__()
        options: dict[str, object] = {"dueling": dueling, "sigma": sigma, "noise": noise if sigma else None}
        options |= {"support": support, "normalise": normalise}
        self.options = {name: value for name, value in options.items() if value}
        atoms = 1 if support is None else support[2]
        self.register_buffer("support", None if support is None else losses.support(*support))
        self.split = MaskSplitter(space)
        encoder = make_encoder if normalise else PlainEncoder
        make: Callable[[tuple[int, ...]], NormalisingEncoder | PlainEncoder] = partial(encoder, dtype=dtype)
        self.conv = encoder_of(self.split.space, make)
        if normalise:
            initialise(self.conv)
        self.dtype = torch.float32 if normalise else self.conv.dtype  # of the layers after the encoder
        hidden = HIDDEN // (2 if dueling else 1)  # so that a dueling network has about as many weights as a plain one
        linear = nn.Linear if sigma is None else partial(noisy.NoisyLinear, noise=noise, sigma=sigma)

        def make_stream(outputs: int) -> nn.Sequential:
            return nn.Sequential(linear(self.conv.features, hidden), nn.ReLU(), linear(hidden, outputs))

        self.advantage = make_stream(n_actions * atoms)
        self.value = make_stream(atoms) if dueling else None
        self._noisy_layers = [layer for layer in self.modules() if isinstance(layer, noisy.NoisyLinear)]

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the action values, (batch, n_actions) float32, of states (batch, ...).

        The value of an action that the state's mask does not allow is masking.INVALID.
        """
        return self.values(self.predict(states))

    def predict(self, states: torch.Tensor) -> torch.Tensor:
        """Return action values, (batch, n_actions), or with a support log-probabilities, (batch, n_actions, atoms).

        All numbers of an invalid action are masking.INVALID.
        """
        states, allowed = self.split(states)
        outputs = self._outputs(states)
        return mask_invalid(outputs if self.support is None else F.log_softmax(outputs, dim=-1), allowed)

    def values(self, predicted: torch.Tensor) -> torch.Tensor:
        """Convert the output of `predict` to values (batch, n_actions): the means of return distributions."""
        if self.support is None:
            return predicted
        means = (predicted.exp() * self.support).sum(dim=-1)
        return mask_invalid(means, predicted[..., 0] != INVALID)

    @torch.no_grad()
    def predict_best(self, states: torch.Tensor, online_net: "DQN | None" = None) -> torch.Tensor:
        """Return the prediction for the best action of each state, (batch,) or (batch, atoms), without gradients.

        The action is the best one by the values of `online_net`, as in double Q-learning, or of this network.
        """
        predicted = self.predict(states)
        values = self.values(predicted) if online_net is None else online_net.values(online_net.predict(states))
        return losses.select_actions(predicted, values.argmax(1))

    def _outputs(self, states: torch.Tensor) -> torch.Tensor:
        """Return values, (batch, n_actions), or logits, (batch, n_actions, atoms), in float32."""
        advantages, value = self._streams(states)
        return advantages if value is None else value + advantages - advantages.mean(dim=1, keepdim=True)

    def _streams(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return the advantages, (batch, n_actions), and the value, (batch, 1) or None, in float32.

        With a support, they are (batch, n_actions, atoms) and (batch, 1, atoms).
        """
        with torch.autocast(states.device.type, self.dtype, enabled=self.dtype != torch.float32):
            features = self.conv(states)
            # The streams are added in float32, because bfloat16 would lose small differences between actions.
            advantages = self.advantage(features).float()
            value = None if self.value is None else self.value(features).float()
        if self.support is None:
            return advantages, value
        return advantages.unflatten(1, (-1, len(self.support))), None if value is None else value[:, None]

    def adv_val(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the advantages (batch, n_actions) of a dueling network, with their mean, and the values (batch, 1)."""
        advantages, value = self._streams(self.split(states)[0])
        assert value is not None
        return advantages, value

    def normalise_by(self, states: torch.Tensor) -> None:
        """Fit the input normalisation, if the network has one that is not fitted yet, to these states."""
        if isinstance(self.conv, NormalisingEncoder | CompositeEncoder) and not self.conv.is_fitted:
            self.conv.normalise_by(self.split(states)[0])

    def parameter_groups(self, learning_rate: float) -> list[dict[str, object]]:
        """Return an optimizer's parameter groups, in which sigmas have a tenth of the learning rate.

        Adam changes each weight by about its learning rate, even if the gradient is small. At the full rate, sigmas
        would soon grow large, however small they were at first.
        """
        sigmas = [weights for name, weights in self.named_parameters() if name.endswith("_sigma")]
        others = [weights for name, weights in self.named_parameters() if not name.endswith("_sigma")]
        groups: list[dict[str, object]] = [{"params": others, "lr": learning_rate}]
        return [*groups, {"params": sigmas, "lr": 0.1 * learning_rate}] if sigmas else groups

    def snr_metrics(self) -> dict[str, Callable[[], float]]:
        """Return functions that compute the signal-to-noise ratio of each noisy layer.

        They run only when they are logged. Their names are snr_1, snr_2, ..., with the advantage stream first.
        """
        return {f"snr_{number}": layer.signal_to_noise for number, layer in enumerate(self._noisy_layers, 1)}
