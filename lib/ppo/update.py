"""PPO's update: learn from a rollout in minibatches."""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import torch
from torch import nn
from torch.nn import functional as F

from lib.hyperparameters import PPOHyperparameters
from lib.ppo.losses import approximate_kl, estimate_advantages, normalised, policy_loss
from lib.ppo.model import ActorCritic
from lib.ppo.rollout import Rollout
from lib.system.machine import to_device

VALUE_WEIGHT = 0.5  # weight of the value loss

METRICS = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clipped")  # metrics of a minibatch
KL = METRICS.index("kl")

T = TypeVar("T")


class Transitions(NamedTuple):
    """Transitions to learn from, on the model's device.

    Attributes:
        states: (batch, ...), images and boards with the channels last, as in a Rollout.
        actions: (batch, ...) sampled actions; see Distribution.
        log_probs: log-probabilities of the actions when they were chosen, (batch,) float32.
        advantages: (batch,) float32.
        value_targets: (batch,) float32.
    """

    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    value_targets: torch.Tensor


class LearnerGroup:
    """Learners that make every update together, each from transitions of its own. This base class is a group of one.

    Attributes:
        rank: number of this learner; the first one is 0.
        size: number of learners.
        device: device of this learner.
    """

    rank, size = 0, 1

    def __init__(self, device: torch.device | str = "cpu"):
        self.device = torch.device(device)

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite each tensor with its mean over all learners, in one exchange."""

    def gathered(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensors (n, ...) of all learners, (size * n, ...)."""
        return tensor

    def share(self, thing: T, rank: int = 0) -> T:
        """Return the object that learner `rank` passes."""
        return thing


class Trainer:
    """Learn from rollouts by several epochs of minibatches.

    Args:
        model: model to train.
        optimizer: optimizer of the model's parameters.
        settings: hyperparameters of the next update: minibatch, epochs, gamma, lam, clip, entropy and gradient_norm.
        group: learners that make every update with this one; None if it is alone.
    """

    def __init__(
        self,
        model: ActorCritic,
        optimizer: torch.optim.Optimizer,
        settings: PPOHyperparameters,
        group: LearnerGroup | None = None,
    ):
        self.model = model
        self.optimizer = optimizer
        self.settings = settings
        self.device = next(model.parameters()).device
        self.group = group or LearnerGroup(self.device)

    def update(self, rollout: Rollout, rhos: torch.Tensor | None = None) -> dict[str, float]:
        """Learn from a rollout of (T, N) transitions.

        Args:
            rollout: T steps of N environments.
            rhos: see estimate_advantages.

        Returns:
            loss, policy_loss, value_loss, entropy, kl and clipped (share of clipped ratios) as means over all
            minibatches. learning_rate is the rate after the update.
        """
        return self.learn(self.transitions(rollout, rhos))

    def transitions(self, rollout: Rollout, rhos: torch.Tensor | None = None) -> Transitions:
        """Flatten a rollout to (T * N, ...) on the model's device, with its advantages and value targets."""
        estimates = estimate_advantages(rollout, self.settings.gamma, self.settings.lam, rhos)
        targets = (estimates if rhos is None else rhos * estimates) + rollout.values
        columns = (rollout.states, rollout.actions, rollout.log_probs, estimates, targets)
        return Transitions(*(to_device(column.flatten(0, 1), self.device) for column in columns))

    def learn(self, transitions: Transitions) -> dict[str, float]:
        """Learn from the transitions of a rollout; see `update`."""
        metrics: list[torch.Tensor] = []
        for _ in range(self.settings.epochs):
            minibatches = self.minibatches(len(transitions.actions))
            metrics.append(torch.stack([self._minibatch_step(transitions, indices) for indices in minibatches]))
            self.after_epoch(metrics[-1], transitions)
        columns = torch.cat(metrics).T.tolist()
        means = {name: sum(column) / len(column) for name, column in zip(METRICS, columns, strict=True)}
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"]}

    def minibatches(self, number: int, shuffled: bool = True) -> Sequence[torch.Tensor]:
        """Divide transitions into minibatches; return the indices of each, given the number of transitions."""
        order = torch.randperm(number, device=self.device) if shuffled else torch.arange(number, device=self.device)
        return torch.split(order, self.settings.minibatch // self.group.size)

    def outputs(self, states: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's parameters and values for the states of one of `minibatches`."""
        outputs: tuple[torch.Tensor, torch.Tensor] = self.model(states.movedim(-1, 1))
        return outputs

    def after_epoch(self, metrics: torch.Tensor, transitions: Transitions) -> None:
        """Called after each epoch with METRICS, (minibatches, 6) on the device, and the transitions of the update."""

    def _minibatch_step(self, transitions: Transitions, indices: torch.Tensor) -> torch.Tensor:
        """Make one optimizer step on the transitions at `indices`, and return METRICS, (6,) on the device."""
        batch = Transitions(*(column.index_select(0, indices) for column in transitions))
        # Advantages are normalised over the minibatch of all learners.
        advantages = normalised(self.group.gathered(batch.advantages)).view(self.group.size, -1)[self.group.rank]
        loss, metrics = self._loss(batch._replace(advantages=advantages), indices)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        self.group.average([*gradients, metrics])
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_norm)
        self.optimizer.step()
        return metrics

    def _loss(self, batch: Transitions, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the loss of the batch at `indices`, with normalised advantages, and METRICS without gradients."""
        clip = self.settings.clip
        parameters, values = self.outputs(batch.states, indices)
        log_probs, entropies = self.model.distribution.evaluate(parameters, batch.actions)
        surrogate = policy_loss(log_probs, batch.log_probs, batch.advantages, clip)
        value_error = self.value_loss(values, batch.value_targets)
        entropy = entropies.mean()
        loss = surrogate + VALUE_WEIGHT * value_error - self.settings.entropy * entropy
        with torch.no_grad():
            ratio = (log_probs - batch.log_probs).exp()
            kl, clipped = approximate_kl(log_probs, batch.log_probs), ((ratio - 1.0).abs() > clip).float().mean()
            metrics = torch.stack([loss, surrogate, value_error, entropy, kl, clipped])
        return loss, metrics

    def value_loss(self, values: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean squared error of the values, (batch,), a scalar."""
        assert values.shape == targets.shape  # otherwise torch would broadcast them
        return F.mse_loss(values, targets)
