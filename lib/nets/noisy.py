"""Linear layers with noisy weights, for exploration."""

import math

import torch
from torch import nn
from torch.nn import functional as F

FACTORISED, PER_STATE, INDEPENDENT = "factorised", "per-state", "independent"

# Initial sigma of each kind of noise, Fortunato et al. (2018), section 3.2. Noise per state takes that of factorised.
SIGMAS = {FACTORISED: 0.5, PER_STATE: 0.5, INDEPENDENT: 0.017}


class NoisyLinear(nn.Module):
    """Linear layer with noisy weights, Fortunato et al. (2018), https://arxiv.org/abs/1706.10295, equation 9.

    Each weight is a learnt mean plus a learnt sigma times noise. In training mode every forward pass draws new noise;
    evaluation mode uses the means only.

    Args:
        inputs: number of input features.
        outputs: number of output features.
        noise: kind of noise. "factorised" draws one number per input and one per output, and multiplies them (equations
            10 and 11). "per-state" does so separately for each row of a batch. "independent" draws one number per
            weight. The means are initialised as in section 3.2.
        sigma: initial sigma; unless the noise is independent, it is divided by the square root of `inputs`. None for
            the paper's value.
    """

    def __init__(self, inputs: int, outputs: int, noise: str = FACTORISED, sigma: float | None = None):
        super().__init__()
        sigma = SIGMAS[noise] if sigma is None else sigma
        self.noise = noise
        if noise == INDEPENDENT:
            bound = math.sqrt(3.0 / inputs)
        else:
            bound = 1.0 / math.sqrt(inputs)
            sigma /= math.sqrt(inputs)
        self.weight_mean = nn.Parameter(torch.empty(outputs, inputs).uniform_(-bound, bound))
        self.bias_mean = nn.Parameter(torch.empty(outputs).uniform_(-bound, bound))
        self.weight_sigma = nn.Parameter(torch.full((outputs, inputs), sigma))
        self.bias_sigma = nn.Parameter(torch.full((outputs,), sigma))

    def draw(self, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Draw the noise of a forward pass.

        Args:
            rows: number of rows in the batch. Only "per-state" noise differs between rows.

        Returns:
            The noise of the weights, (outputs, inputs), and of the biases, (outputs,), if it is independent. Otherwise
            the noise of the inputs, (rows or 1, inputs), and of the outputs, (rows or 1, outputs).
        """
        outputs, inputs = self.weight_mean.shape
        new = self.weight_mean.new_empty
        if self.noise == INDEPENDENT:
            return new(outputs, inputs).normal_(), new(outputs).normal_()
        rows = rows if self.noise == PER_STATE else 1
        return _signed_sqrt(new(rows, inputs).normal_()), _signed_sqrt(new(rows, outputs).normal_())

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Map (batch, inputs) to (batch, outputs)."""
        if not self.training:
            return F.linear(features, self.weight_mean, self.bias_mean)
        noise, output_noise = self.draw(len(features))
        if self.noise == INDEPENDENT:
            bias = self.bias_mean + self.bias_sigma * output_noise
            return F.linear(features, self.weight_mean + self.weight_sigma * noise, bias)
        # The noise of a weight is the noise of its input times the noise of its output, so the layer does not have to
        # compute a matrix of noisy weights.
        noisy = F.linear(features * noise, self.weight_sigma, self.bias_sigma)
        return F.linear(features, self.weight_mean, self.bias_mean) + noisy * output_noise

    def signal_to_noise(self) -> float:
        """Return the root mean square of the weights' means, divided by that of the sigmas."""
        return math.sqrt(self.weight_mean.square().mean().item() / self.weight_sigma.square().mean().item())


def _signed_sqrt(noise: torch.Tensor) -> torch.Tensor:
    """Return sgn(x) sqrt(|x|), the function f of equations 10 and 11."""
    return torch.copysign(noise.abs().sqrt_(), noise)
