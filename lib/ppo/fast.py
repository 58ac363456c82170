"""Fast PPO for any game: a small network, normalised states and values, and an adaptive learning rate."""

import dataclasses
import functools
import math

import torch
from gymnasium import spaces
from torch import nn
from torch.nn import functional as F

from lib.envs.checked_env import CellActions
from lib.errors import UsageError
from lib.hyperparameters import FastPPOHyperparameters
from lib.nets.distributions import Space
from lib.nets.encoders import BoardEncoder, encoder_of, initialise, make_encoder, orthogonal
from lib.nets.masking import mask_invalid
from lib.ppo.model import ActorCritic
from lib.ppo.rollout import STATES, Rollout
from lib.ppo.update import KL, Trainer, Transitions
from lib.system.machine import to_device

RETURN_RATE = 1e-4  # smallest weight of a new return in the statistics of the returns
RATE_FACTOR = 1.5  # factor by which one epoch changes an adaptive learning rate


class CellPolicy(nn.Module):
    """Policy head for boards on which every action belongs to one cell.

    All cells share the same weights, so what the head learns for one cell applies to the others. If the actions are not
    cells, it learns hardly anything.

    Args:
        features: number of features of the whole board.
        filters: number of features of each cell.
        planes: number of actions per cell. Actions are numbered `plane * height * width + row * width + column`.
    """

    def __init__(self, features: int, filters: int, planes: int):
        super().__init__()
        self.board = nn.Linear(features, 64)
        self.cell = nn.Conv2d(filters, 64, kernel_size=1)
        self.last = nn.Conv2d(64, planes, kernel_size=1)
        orthogonal(self.board, math.sqrt(2))
        orthogonal(self.cell, math.sqrt(2))
        orthogonal(self.last, 0.01)

    def forward(self, board: torch.Tensor, cells: torch.Tensor) -> torch.Tensor:
        """Return the logits, (batch, planes * height * width) float32.

        Args:
            board: features of the whole board, (batch, features).
            cells: features of each cell, (batch, filters, height, width).
        """
        hidden = F.relu(self.cell(cells) + self.board(board)[:, :, None, None])
        logits: torch.Tensor = self.last(hidden)
        return logits.flatten(1)


class FastModel(ActorCritic):
    """Small network that normalises its input, and predicts values in units of the returns' standard deviation.

    `make_encoder` chooses the encoder from the observation space. The policy head for CellActions is a CellPolicy.

    Args:
        space, actions: see ActorCritic.
        dtype: dtype in which an image encoder computes.

    Attributes:
        return_mean: mean of the returns, an exponential average, a scalar tensor.
        return_std: standard deviation of the returns, a scalar tensor.
        returns_seen: number of returns so far, a scalar tensor.
    """

    return_mean: torch.Tensor
    return_std: torch.Tensor
    returns_seen: torch.Tensor

    def __init__(self, space: spaces.Box, actions: int | Space, dtype: torch.dtype = torch.float32):
        super().__init__(space, actions)
        self.body = encoder_of(self.split.space, functools.partial(make_encoder, dtype=dtype))
        self.policy = self._policy_head(actions)
        self.value = nn.Linear(self.body.features, 1)
        self.register_buffer("return_mean", torch.zeros(()))
        self.register_buffer("return_std", torch.ones(()))
        self.register_buffer("returns_seen", torch.zeros(()))
        initialise(self.body)
        # The first returns are small, so the errors of large initial values would dominate the loss.
        orthogonal(self.value, 0.01)

    def _policy_head(self, actions: int | Space) -> nn.Linear | CellPolicy:
        if not isinstance(actions, CellActions):
            head = self.distribution.head(self.body.features)
            orthogonal(head, 0.01)
            return head
        planes, remainder = divmod(actions.n, math.prod(self.split.shape[1:]))
        if remainder or not isinstance(self.body, BoardEncoder):
            raise UsageError(
                f'metadata["cell_actions"] needs a board and as many actions for each cell; there are {actions.n} '
                f"actions, and a state has the shape {self.split.shape}"
            )
        return CellPolicy(self.body.features, BoardEncoder.filters, planes)

    def normalise_by(self, states: torch.Tensor) -> None:
        """Adapt the input normalisation to these states; see NormalisingEncoder.normalise_by."""
        self.body.normalise_by(self.split(states)[0])

    @torch.no_grad()
    def normalise_values(self, returns: torch.Tensor) -> None:
        """Pop-Art: update the mean and standard deviation of the returns, and rescale the value head to them.

        The head predicts normalised values. Its weights change so that the predicted values stay the same; see van
        Hasselt et al. (2016), https://arxiv.org/abs/1602.07714, equation 9. The first call does not change the weights,
        so the values start near the mean of the first returns.

        At first, the statistics are means over all returns. After about 1 / RETURN_RATE returns, they become
        exponential averages, so that they follow returns that grow or narrow.

        Args:
            returns: new returns, of any shape.
        """
        old_mean, old_std, old_count = self.return_mean.clone(), self.return_std.clone(), self.returns_seen.clone()
        new_count = returns.numel()
        total = old_count + new_count
        share = (new_count / total).clamp(min=1.0 - (1.0 - RETURN_RATE) ** new_count)
        gap = returns.mean() - old_mean
        variance = (1.0 - share) * old_std**2 + share * returns.var(correction=0) + share * (1.0 - share) * gap**2
        self.returns_seen.copy_(total)
        self.return_mean.add_(gap * share)
        self.return_std.copy_(variance.sqrt().clamp(min=1e-3))
        # A branch on `old_count` would make the CPU wait for the device, so use torch.where.
        known = old_count > 0
        bias = (self.value.bias * old_std + (old_mean - self.return_mean)) / self.return_std
        self.value.weight.mul_(torch.where(known, old_std / self.return_std, 1.0))
        self.value.bias.copy_(torch.where(known, bias, self.value.bias))

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        observations, allowed = self.split(states)
        if isinstance(self.body, BoardEncoder) and isinstance(self.policy, CellPolicy):
            features, cells = self.body.encode(observations)
            parameters = self.policy(features, cells)
        else:
            features = self.body(observations)
            parameters = self.policy(features)
        return mask_invalid(parameters, allowed), self.values_of(features)

    def values_of(self, features: torch.Tensor) -> torch.Tensor:
        """Return the values, (batch,) float32, of states with these features, (batch, features)."""
        values: torch.Tensor = self.value(features).squeeze(-1) * self.return_std + self.return_mean
        return values


class FastTrainer(Trainer):
    """Trainer of a FastModel that normalises states and values, and adapts the learning rate to the KL divergence.

    The states of a rollout are added to the statistics of vectors after the update. The first rollout was played
    without normalisation, so it is learnt from as steps of another policy; see `reevaluated`.
    """

    model: FastModel
    settings: FastPPOHyperparameters

    def update(self, rollout: Rollout, rhos: torch.Tensor | None = None) -> dict[str, float]:
        is_first = not self.model.body.is_fitted
        if is_first or self.model.body.running:
            states = self.group.gathered(to_device(rollout.some_states(STATES // self.group.size), self.device))
        if is_first:
            self.model.normalise_by(states)
            rollout, rhos = self.reevaluated(rollout)
        metrics = super().update(rollout, rhos)
        if self.model.body.running and not is_first:
            self.model.normalise_by(states)
        return metrics

    @torch.no_grad()
    def reevaluated(self, rollout: Rollout) -> tuple[Rollout, torch.Tensor]:
        """Compute values and probability ratios of another policy's steps with the current model.

        The values of the states after the last step and after truncations are not known to the learner; those of the
        actor are kept.

        Args:
            rollout: T steps of N environments.

        Returns:
            The rollout with the current values, and the ratios (T, N) of the current probabilities of its actions to
            those under the behaviour policy, at most 1.
        """
        states, actions = rollout.states.flatten(0, 1), rollout.actions.flatten(0, 1)
        log_probs, values = torch.empty(len(states)), torch.empty(len(states))
        for indices in self.minibatches(len(states), shuffled=False):
            at = indices.cpu()
            parameters, value = self.outputs(to_device(states[at], self.device), indices)
            log_prob, _ = self.model.distribution.evaluate(parameters, to_device(actions[at], self.device))
            log_probs[at], values[at] = log_prob.cpu(), value.cpu()
        shape = rollout.rewards.shape
        current = dataclasses.replace(rollout, values=values.view(shape), next_values=rollout.next_values.clone())
        current.fill_next_values(rollout.next_values[-1])
        return current, (log_probs.view(shape) - rollout.log_probs).exp().clamp(max=1.0)

    def learn(self, transitions: Transitions) -> dict[str, float]:
        """Rescale the value head to the new returns, and learn; see Trainer.learn."""
        self.model.normalise_values(self.group.gathered(transitions.value_targets))
        return super().learn(transitions)

    def value_loss(self, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error of the values, divided by the returns' variance, a scalar."""
        return super().value_loss(values, targets) / self.model.return_std**2

    def after_epoch(self, metrics: torch.Tensor, transitions: Transitions) -> None:
        """Lower the learning rate if the epoch moved the policy too far; raise it if the policy moved too little.

        The measure is the mean divergence of the epoch's minibatches, each before its optimizer step. If the epoch has
        only one minibatch, the divergence is measured again afterwards. That of a nearly deterministic policy is near 0
        at any rate; `learning_rate_max` keeps the rate from growing until such a policy collapses.
        """
        target = self.settings.kl_target
        if target is None:
            return
        if len(metrics) == 1:
            metrics = self._measured(transitions)
        divergences = metrics[:, KL].tolist()  # the CPU sets the rate, so it has to wait for the epoch
        kl = sum(divergences) / len(divergences)
        factor = 1.0
        if kl > 2 * target:
            factor = 1 / RATE_FACTOR
        # A single epoch hardly moves the policy, so its low divergence must not raise the rate.
        elif kl < target / 2 and self.settings.epochs > 1:
            factor = RATE_FACTOR
        for group in self.optimizer.param_groups:
            group["lr"] = min(group["lr"] * factor, self.settings.learning_rate_max)

    @torch.no_grad()
    def _measured(self, transitions: Transitions) -> torch.Tensor:
        """Return METRICS of the present policy over all transitions, (1, 6)."""
        [indices] = self.minibatches(len(transitions.actions), shuffled=False)  # all of them, in their order
        _, metrics = self._loss(transitions, indices)
        self.group.average([metrics])
        return metrics[None]
