"""PPO's update: learn from a rollout in minibatches."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, Self

import torch
from torch import nn
from torch.nn import functional as F

from lib.errors import divisors
from lib.ppo.losses import divergence, estimate_advantages, normalised, policy_loss, value_loss
from lib.ppo.model import Model
from lib.ppo.rollout import Rollout
from lib.system.transfer import to_device

VALUE_WEIGHT = 0.5  # weight of the value loss
RATE_FACTOR = 1.5  # factor by which one epoch changes an adaptive learning rate
MAX_RATE = 1e-2  # largest value to which an adaptive learning rate grows

METRICS = ("loss", "policy_loss", "value_loss", "entropy", "kl", "clipped")  # of a minibatch
KL = METRICS.index("kl")


@dataclasses.dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """Hyperparameters of an update.

    Attributes:
        minibatch: transitions per optimizer step, at least 2. It has to divide the number of transitions in
            a rollout.
        epochs: passes over a rollout; 1 while the progress is at least `Trainer.SINGLE_EPOCH_FROM`.
        gamma: discount factor.
        lam: lambda of the advantage estimates, 0 to 1.
        clip: the paper's epsilon. The probability ratio is clipped to [1 - clip, 1 + clip].
        entropy: weight of the entropy bonus at progress 0. It falls linearly to 0 at progress 1.
        gradient_norm: largest norm of the gradient. Larger gradients are scaled down to it.
        kl_target: Kullback-Leibler divergence per epoch to which the learning rate adapts; None for a fixed rate.
        kl_final: value of `kl_target` at progress 1. The target moves there linearly. None for a constant target.
        final_temperature: temperature of the policy after the progress has reached
            `Trainer.FINAL_TEMPERATURE_FROM`.

    Raises:
        ValueError: if the minibatch is too small to normalise its advantages.
    """

    minibatch: int
    epochs: int
    gamma: float
    lam: float
    clip: float
    entropy: float
    gradient_norm: float = 1.0
    kl_target: float | None = None
    kl_final: float | None = None
    final_temperature: float = 1.0

    def __post_init__(self) -> None:
        if self.minibatch < 2:
            raise ValueError(f"minibatch is {self.minibatch}; it has to be at least 2")

    @classmethod
    def of(cls, params: object) -> Self:
        """Copy the settings from a run's hyperparameters, which have fields of the same names."""
        return cls(**{field.name: getattr(params, field.name) for field in dataclasses.fields(cls)})

    def kl_target_at(self, progress: float) -> float | None:
        """Return the target divergence for a given progress, or None for a fixed learning rate."""
        if self.kl_target is None or self.kl_final is None:
            return self.kl_target
        return self.kl_target + progress * (self.kl_final - self.kl_target)


class Transitions(NamedTuple):
    """Transitions to learn from, on the model's device.

    Attributes:
        states: (batch, ...), in the model's layout.
        actions: (batch,) int64.
        log_probs: log-probabilities of the actions when they were chosen, (batch,) float32.
        advantages: (batch,) float32.
        value_targets: (batch,) float32.
    """

    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    advantages: torch.Tensor
    value_targets: torch.Tensor


class LearnerGroup(Protocol):
    """One trainer's view of the learners that share every minibatch."""

    def broadcast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Overwrite the tensor with that of the first learner, and return it."""
        ...

    def part(self, batch: torch.Tensor) -> torch.Tensor:
        """Return this learner's part of a minibatch."""
        ...

    def average(self, tensors: Sequence[torch.Tensor]) -> None:
        """Overwrite each tensor with its mean over all learners."""
        ...


class Trainer:
    """Learn from rollouts by several epochs of minibatches.

    The progress toward the goal changes four things:

    - The entropy weight falls linearly to 0.
    - The target of the divergence moves linearly to `kl_final`.
    - At FINAL_TEMPERATURE_FROM, the policy switches permanently to its final temperature. With less random actions, it
      loses fewer games that are nearly won.
    - While the progress is at least SINGLE_EPOCH_FROM, an update is a single epoch and the learning rate does not
      grow. The last games are played sooner, and by a policy that hardly changes.

    Args:
        model: model to train.
        optimizer: optimizer of the model's parameters.
        settings: hyperparameters of an update.
        device: device of the model.

    Attributes:
        FINAL_TEMPERATURE_FROM: progress at which the policy switches to its final temperature.
        SINGLE_EPOCH_FROM: progress from which an update is a single epoch.
        group: learners that share every minibatch with this one, or None.
    """

    FINAL_TEMPERATURE_FROM = 0.85
    SINGLE_EPOCH_FROM = 0.95

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        settings: UpdateSettings,
        device: torch.device | str = "cpu",
    ):
        self.model = model
        self.optimizer = optimizer
        self.settings = settings
        self.device = device
        self.group: LearnerGroup | None = None

    def move_to(self, device: torch.device) -> None:
        """Move the model and the optimizer's state to a device."""
        self.device = device
        self.model.to(device)
        # An optimizer that loads a state moves it to the device of the parameters.
        self.optimizer.load_state_dict(self.optimizer.state_dict())

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """Learn from a rollout.

        Args:
            rollout: (T, N) transitions.
            progress: progress toward the goal, 0 to 1; see Progress.

        Returns:
            loss, policy_loss, value_loss, entropy, kl and clipped (share of clipped ratios) as means over all
            minibatches. learning_rate is the rate after the update. progress is the argument.

        Raises:
            ValueError: if the minibatch does not divide the rollout.
        """
        return self.learn(self.transitions(rollout), progress)

    def transitions(self, rollout: Rollout) -> Transitions:
        """Flatten a rollout to (T * N, ...) on the model's device, with its advantages and value targets.

        Raises:
            ValueError: if the minibatch does not divide the rollout.
        """
        if len(rollout) % self.settings.minibatch:
            raise ValueError(
                f"a minibatch of {self.settings.minibatch} does not divide the rollout of {len(rollout)}; "
                f"use one of {divisors(len(rollout), least=2)}"
            )
        estimates = estimate_advantages(rollout, self.settings.gamma, self.settings.lam)
        columns = (rollout.states, rollout.actions, rollout.log_probs, estimates, estimates + rollout.values)
        return Transitions(*(to_device(column.flatten(0, 1), self.device) for column in columns))

    def learn(self, transitions: Transitions, progress: float) -> dict[str, float]:
        """Learn from the transitions of a rollout.

        Args:
            transitions: all transitions of the rollout.
            progress: progress toward the goal, 0 to 1.

        Returns:
            The same as `update`.
        """
        self.model.normalise_values(transitions.value_targets)
        entropy_weight = self.settings.entropy * (1.0 - progress)
        epochs = self.settings.epochs if progress < self.SINGLE_EPOCH_FROM else 1
        metrics: list[torch.Tensor] = []
        for _ in range(epochs):
            minibatches = self._shuffled(len(transitions.actions))
            epoch = [self._minibatch_step(transitions, indices, entropy_weight) for indices in minibatches]
            if (
                self.settings.kl_target is not None
            ):  # the learning rate is set by the CPU, which has to wait for the epoch
                divergences = [row[KL] for row in fetched(epoch)]
                self._adapt_learning_rate(sum(divergences) / len(divergences), progress)
            metrics += epoch
        # This comes after learning, because the rollout was played at the old temperature.
        if progress >= self.FINAL_TEMPERATURE_FROM:
            self.model.temperature.fill_(self.settings.final_temperature)
        columns = zip(*fetched(metrics), strict=True)
        means = {name: sum(column) / len(metrics) for name, column in zip(METRICS, columns, strict=True)}
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"], "progress": progress}

    def _shuffled(self, size: int) -> Iterator[torch.Tensor]:
        """Yield the minibatches of one epoch: indices (minibatch,) of a random permutation, equal on all learners."""
        order = torch.randperm(size, device=self.device)
        if self.group is not None:
            self.group.broadcast(order)
        for start in range(0, size, self.settings.minibatch):
            yield order[start : start + self.settings.minibatch]

    def _minibatch_step(self, transitions: Transitions, indices: torch.Tensor, entropy_weight: float) -> torch.Tensor:
        """Make one optimizer step on the transitions at `indices`, and return METRICS, on the device."""
        # Advantages are normalised over the whole minibatch, even if other learners take parts of it.
        advantages = normalised(transitions.advantages.index_select(0, indices))
        if self.group is not None:
            advantages, indices = self.group.part(advantages), self.group.part(indices)
        batch = Transitions(*(column.index_select(0, indices) for column in transitions))
        loss, metrics = self._loss(batch, advantages, entropy_weight)
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        if self.group is not None:
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            self.group.average([*gradients, *metrics.values()])
        nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.gradient_norm)
        self.optimizer.step()
        return torch.stack(list(metrics.values()))

    def _loss(
        self, batch: Transitions, advantages: torch.Tensor, entropy_weight: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Compute the loss and its metrics, all scalars, with normalised `advantages` in place of the batch's own."""
        clip = self.settings.clip
        logits, values = self.model(batch.states)
        all_log_probs = F.log_softmax(logits, dim=1)
        log_probs = all_log_probs.gather(1, batch.actions[:, None]).squeeze(1)
        surrogate = policy_loss(log_probs, batch.log_probs, advantages, clip)
        value_error = value_loss(values, batch.value_targets, self.model.return_std)
        entropy = -(all_log_probs.exp() * all_log_probs).sum(1).mean()
        loss = surrogate + VALUE_WEIGHT * value_error - entropy_weight * entropy
        with torch.no_grad():
            ratio = (log_probs - batch.log_probs).exp()
            metrics = {
                "loss": loss.detach(),
                "policy_loss": surrogate.detach(),
                "value_loss": value_error.detach(),
                "entropy": entropy.detach(),
                "kl": divergence(log_probs, batch.log_probs),
                "clipped": ((ratio - 1.0).abs() > clip).float().mean(),
            }
        return loss, metrics

    def _adapt_learning_rate(self, kl: float, progress: float) -> None:
        """Lower the learning rate if an epoch moved the policy too far, and raise it if not far enough.

        Args:
            kl: mean of `divergence` over the epoch's minibatches.
            progress: progress toward the goal, 0 to 1.
        """
        target = self.settings.kl_target_at(progress)
        if target is None:
            return
        factor = 1.0
        if kl > 2 * target:
            factor = 1 / RATE_FACTOR
        elif kl < target / 2 and progress < self.SINGLE_EPOCH_FROM:
            # The first epoch hardly moves the policy. If it is the only one, the rate would grow without end.
            factor = RATE_FACTOR
        for group in self.optimizer.param_groups:
            # A rate that starts above MAX_RATE may stay or fall.
            group["lr"] = min(group["lr"] * factor, max(group["lr"], MAX_RATE))


def fetched(rows: Sequence[torch.Tensor]) -> list[list[float]]:
    """Return the numbers of tensors of equal shape (n,), in one copy to the CPU."""
    numbers: list[list[float]] = torch.stack(list(rows)).tolist()
    return numbers
