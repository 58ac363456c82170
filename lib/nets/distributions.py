"""Distributions of actions, a class for each kind of action space.

A network's policy head gives each state's parameters, (batch, parameters) float32: logits, or means and logarithms of
standard deviations. A sample is a function of the parameters and of noise that is drawn beforehand, so that the same
noise gives the same actions wherever they are chosen.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable

import numpy as np
import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib.envs.masks import choices
from lib.envs.observations import UNBOUNDED
from lib.errors import UsageError

Space = spaces.Space[object]


class Distribution(ABC):
    """Distribution of the actions of a space. Its sampled actions are tensors (batch, *shape) of `dtype`.

    Attributes:
        parameters: numbers that describe the distribution in one state.
        noise_size: numbers from which one action is sampled.
        shape, dtype: of a sampled action.
        space_shape: shape of an action of the environment.
    """

    parameters: int
    noise_size: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    space_shape: tuple[int, ...]

    def head(self, features: int) -> nn.Linear:
        """Return a policy head, from features (batch, features) to parameters."""
        return nn.Linear(features, self.parameters)

    @abstractmethod
    def noise(self, generator: np.random.Generator, number: int) -> np.ndarray:
        """Draw the noise of some actions, (number, noise_size) float32."""

    @abstractmethod
    def sample(self, parameters: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return actions and their log-probabilities, (batch,) float32. `noise` is (batch, noise_size)."""

    @abstractmethod
    def evaluate(self, parameters: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probabilities of sampled actions, and the entropies, both (batch,) float32."""

    @abstractmethod
    def mode(self, parameters: torch.Tensor) -> torch.Tensor:
        """Return the most probable actions."""

    def played(self, actions: torch.Tensor) -> torch.Tensor:
        """Convert sampled actions to what the environment is given, (batch, *space_shape)."""
        return actions.reshape(-1, *self.space_shape)


class Categorical(Distribution):
    """Independent choices, each with logits of its own: one for Discrete, and one per entry for MultiDiscrete.

    Sampling uses the Gumbel-max trick: the argmax of logits plus Gumbel noise is a sample from their softmax.

    Args:
        space: Discrete or MultiDiscrete, with all numbers from 0.
    """

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete):
        self.sizes = choices(space)
        self.parameters = self.noise_size = sum(self.sizes)
        self.shape = () if isinstance(space, spaces.Discrete) else (len(self.sizes),)
        self.dtype = torch.int64
        self.space_shape = space.shape or ()

    def noise(self, generator: np.random.Generator, number: int) -> np.ndarray:
        return generator.standard_exponential((number, self.noise_size), np.float32)

    def sample(self, parameters: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        # In rare cases the noise is 0. It is clamped, because the logarithm of 0 would select the action even if it is
        # invalid.
        gumbel = torch.split(noise.clamp(min=1e-30).log(), self.sizes, 1)
        parts = self._log_probs(parameters)
        actions = [(part - each).argmax(1, keepdim=True) for part, each in zip(parts, gumbel, strict=True)]
        log_probs = _total(part.gather(1, each) for part, each in zip(parts, actions, strict=True))
        return self._joined(actions), log_probs

    def evaluate(self, parameters: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        parts = self._log_probs(parameters)
        chosen = torch.split(actions.reshape(len(actions), -1), 1, 1)
        log_probs = _total(part.gather(1, each) for part, each in zip(parts, chosen, strict=True))
        return log_probs, _total(-(part.exp() * part).sum(1, keepdim=True) for part in parts)

    def mode(self, parameters: torch.Tensor) -> torch.Tensor:
        return self._joined([part.argmax(1, keepdim=True) for part in torch.split(parameters, self.sizes, 1)])

    def _log_probs(self, logits: torch.Tensor) -> list[torch.Tensor]:
        return [F.log_softmax(part, 1) for part in torch.split(logits, self.sizes, 1)]

    def _joined(self, actions: list[torch.Tensor]) -> torch.Tensor:
        return torch.cat(actions, 1) if self.shape else actions[0].squeeze(1)


class Bernoulli(Distribution):
    """Independent bits for MultiBinary, each with the logit of a 1."""

    def __init__(self, space: spaces.MultiBinary):
        self.parameters = self.noise_size = math.prod(space.shape)
        self.shape, self.dtype, self.space_shape = (self.parameters,), torch.int8, space.shape

    def noise(self, generator: np.random.Generator, number: int) -> np.ndarray:
        return generator.random((number, self.noise_size), np.float32)

    def sample(self, parameters: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        actions = (noise < parameters.sigmoid()).to(self.dtype)
        return actions, self.evaluate(parameters, actions)[0]

    def evaluate(self, parameters: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        log_probs = -F.binary_cross_entropy_with_logits(parameters, actions.to(parameters.dtype), reduction="none")
        entropies = F.binary_cross_entropy_with_logits(parameters, parameters.sigmoid(), reduction="none")
        return log_probs.sum(1), entropies.sum(1)

    def mode(self, parameters: torch.Tensor) -> torch.Tensor:
        return (parameters > 0).to(self.dtype)


class Gaussian(Distribution):
    """Independent normal distributions for Box. The standard deviations do not depend on the state.

    If an entry has two bounds, they correspond to -1 and 1 in a sampled action; otherwise the number of the space that
    is nearest to 0 corresponds to 0. A sampled action is clipped only for the environment, and log-probabilities are
    those of the unclipped one. See Andrychowicz et al. (2021), What matters in on-policy reinforcement learning,
    https://arxiv.org/abs/2006.05990.

    Raises:
        UsageError: if the space has no numbers, or an entry of width 0.
    """

    def __init__(self, space: spaces.Box):
        if not space.shape or 0 in space.shape or (space.low == space.high).any():
            raise UsageError(
                f"the action space is {space}; every entry needs room between its low and its high. Leave out entries "
                "that cannot change, with gymnasium's TransformAction"
            )
        self.noise_size = math.prod(space.shape)
        self.parameters = 2 * self.noise_size
        self.shape, self.dtype, self.space_shape = (self.noise_size,), torch.float32, space.shape
        self._played_dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
        self._low = torch.from_numpy(space.low.astype(np.float64).ravel())
        self._high = torch.from_numpy(space.high.astype(np.float64).ravel())
        bounded = torch.maximum(self._low.abs(), self._high.abs()) < UNBOUNDED
        nearest_to_0 = torch.zeros_like(self._low).clamp(self._low, self._high)
        self._centre = torch.where(bounded, (self._low + self._high) / 2, nearest_to_0)
        self._unit = torch.where(bounded, (self._high - self._low) / 2, 1.0)

    def head(self, features: int) -> nn.Linear:
        return GaussianHead(features, self.noise_size)

    def noise(self, generator: np.random.Generator, number: int) -> np.ndarray:
        return generator.standard_normal((number, self.noise_size), np.float32)

    def sample(self, parameters: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = torch.split(parameters, self.noise_size, 1)  # an error if their number is wrong
        actions = mean + log_std.exp() * noise
        return actions, self.evaluate(parameters, actions)[0]

    def evaluate(self, parameters: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = torch.split(parameters, self.noise_size, 1)
        log_probs = -0.5 * (((actions - mean) / log_std.exp()) ** 2 + math.log(2 * math.pi)) - log_std
        return log_probs.sum(1), (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(1)

    def mode(self, parameters: torch.Tensor) -> torch.Tensor:
        return torch.split(parameters, self.noise_size, 1)[0]

    def played(self, actions: torch.Tensor) -> torch.Tensor:
        values = torch.minimum(torch.maximum(self._centre + self._unit * actions.double(), self._low), self._high)
        is_float = self._played_dtype.is_floating_point
        return super().played((values if is_float else values.round()).to(self._played_dtype))


class GaussianHead(nn.Linear):
    """Policy head for Gaussian: linear means, and logarithms of standard deviations that are weights of their own."""

    def __init__(self, features: int, size: int):
        super().__init__(features, size)
        self.log_std = nn.Parameter(torch.zeros(size))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return (batch, 2 * size): the means, then the logarithms."""
        mean = super().forward(features)
        return torch.cat([mean, self.log_std.expand_as(mean)], 1)


def distribution_of(actions: int | Space) -> Distribution:
    """Return the distribution for an action space of masks.NUMERIC, or for a number of actions."""
    space = actions if isinstance(actions, spaces.Space) else spaces.Discrete(actions)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        return Categorical(space)
    if isinstance(space, spaces.MultiBinary):
        return Bernoulli(space)
    assert isinstance(space, spaces.Box)
    return Gaussian(space)


def _total(columns: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the sum of columns (batch, 1) of independent choices, (batch,)."""
    return torch.cat(list(columns), 1).sum(1)
