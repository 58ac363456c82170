"""Chapter 8's extensions under the book's names, for its readers. This project's scripts use dqn_model.DQN."""

import random
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from ptan.experience import ExperienceFirstLast, PrioritizedReplayBuffer

from lib.dqn_model import DQN
from lib.nets import losses, noisy

# Support of the book's distributional network.
Vmin, Vmax, N_ATOMS = -10, 10, 51
DELTA_Z = (Vmax - Vmin) / (N_ATOMS - 1)

STD_INIT = 0.1  # the third edition's initial sigma of factorised noise

BETA_START, BETA_FRAMES = 0.4, 100_000  # beta at first, and the argument of update_beta at which it reaches 1


class PrioReplayBuffer(PrioritizedReplayBuffer):
    """The book's prioritised replay, Schaul et al. (2016), https://arxiv.org/abs/1511.05952: PTAN's, with a beta.

    `buf_size` is the capacity in transitions, `prob_alpha` the exponent of the priorities, and `beta` that of the
    importance-sampling weights. This project's own scripts use PrioritisedRing, which holds arrays and is faster.
    """

    def __init__(self, exp_source: Iterable[ExperienceFirstLast], buf_size: int, prob_alpha: float = 0.6):
        super().__init__(exp_source, buf_size, prob_alpha)
        self.beta = BETA_START

    def update_beta(self, idx: int) -> float:
        """Set beta to BETA_START + idx * (1 - BETA_START) / BETA_FRAMES, at most 1, and return it."""
        self.beta = min(1.0, BETA_START + idx * (1.0 - BETA_START) / BETA_FRAMES)
        return self.beta

    def sample(self, batch_size: int) -> tuple[list[ExperienceFirstLast], list[int], np.ndarray]:
        """Draw transitions by their priorities, with replacement.

        Return them, their indices for `update_priorities`, and their weights (batch_size,) float32, at most 1.
        """
        return super().sample(batch_size, self.beta)  # type: ignore[no-any-return]

    def _sample_proportional(self, batch_size: int) -> list[int]:
        # ptan 0.8.1 never draws the transition in the last place.
        total = self._it_sum.sum()
        return [self._it_sum.find_prefixsum_idx(random.random() * total) for _ in range(batch_size)]


class NoisyLinear(noisy.NoisyLinear):
    """The book's noisy layer: factorised noise, or in the second edition, with `sigma_init`, independent noise."""

    def __init__(self, in_features: int, out_features: int, sigma_init: float | None = None):
        noise, sigma = (noisy.FACTORISED, STD_INIT) if sigma_init is None else (noisy.INDEPENDENT, sigma_init)
        super().__init__(in_features, out_features, noise, sigma)


class NoisyDQN(DQN):
    """The book's noisy network, with factorised noise; see DQN for the arguments."""

    def __init__(self, input_shape: tuple[int, ...], n_actions: int, dueling: bool = False, **options: Any):
        usual: dict[str, Any] = {"sigma": STD_INIT, "noise": noisy.FACTORISED}
        super().__init__(input_shape, n_actions, dueling=dueling, **usual | options)

    def reset_noise(self) -> None:
        """Do nothing, because every forward pass draws new noise."""

    def noisy_layers_sigma_snr(self) -> list[float]:
        """Return the signal-to-noise ratio of each noisy layer; see noisy.NoisyLinear.signal_to_noise."""
        return [layer.signal_to_noise() for layer in self._noisy_layers]


# The book's other names of these networks and layers. RainbowDQN has noisy layers in both streams, as in Hessel et al.
# (2018); the second edition's factorised layer has an initial sigma of 0.4.
DuelingDQN = partial(DQN, dueling=True)
RainbowDQN = partial(NoisyDQN, dueling=True)
NoisyFactorizedLinear = partial(noisy.NoisyLinear, noise=noisy.FACTORISED, sigma=0.4)


class DistributionalDQN(DQN):
    """The book's distributional network, with N_ATOMS atoms from Vmin to Vmax. Its output is logits, not values."""

    def __init__(self, input_shape: tuple[int, ...], n_actions: int, **options: Any):
        super().__init__(input_shape, n_actions, **{"support": (Vmin, Vmax, N_ATOMS)} | options)

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
        return self.both(x)[1]

    def apply_softmax(self, t: torch.Tensor) -> torch.Tensor:
        return t.softmax(dim=-1)


def distr_projection(next_distr: np.ndarray, rewards: np.ndarray, dones: np.ndarray, gamma: float) -> np.ndarray:
    """Project the distribution of rewards + gamma * Z onto the support of Z; see losses.project_distribution.

    Args:
        next_distr: (batch, N_ATOMS) probabilities of Z. The result has this shape, too.
        dones: (batch,) whether the episode terminated, bool or uint8.
    """
    projected = losses.project_distribution(
        torch.as_tensor(next_distr, dtype=torch.float32),
        torch.as_tensor(rewards, dtype=torch.float32),
        gamma * (1.0 - torch.as_tensor(dones).float()),
        losses.support(Vmin, Vmax, N_ATOMS),
    )
    probs: np.ndarray = projected.numpy()
    return probs
