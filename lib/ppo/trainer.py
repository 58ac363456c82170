"""Learning from rollouts."""

from collections.abc import Iterator, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from lib.errors import divisors
from lib.losses import require_batch
from lib.ppo.learners import Group, Learners
from lib.ppo.model import Model
from lib.ppo.sampler import Rollout


def advantages(rollout: Rollout, gamma: float, lam: float) -> torch.Tensor:
    """Generalised advantage estimates, Schulman et al. (2016), https://arxiv.org/abs/1506.02438, equation 16.

    A truncated episode is bootstrapped from the value of its last state, a terminated one from 0.

    Args:
        rollout: of T steps of N environments.
        gamma, lam: the discount factor and the paper's lambda, 0 to 1.

    Returns:
        (T, N) float32.
    """
    deltas = rollout.rewards + gamma * rollout.next_values.masked_fill(rollout.terminated, 0.0) - rollout.values
    follows = gamma * lam * (~rollout.ended).float()
    estimates = torch.empty_like(deltas)
    after = torch.zeros_like(deltas[0])
    for step in reversed(range(len(deltas))):
        after = deltas[step] + follows[step] * after
        estimates[step] = after
    return estimates


def policy_loss(
    log_probs: torch.Tensor, old_log_probs: torch.Tensor, estimates: torch.Tensor, clip: float
) -> torch.Tensor:
    """The clipped surrogate objective, Schulman et al. (2017), equation 7, to be minimised.

    Args:
        log_probs, old_log_probs: (batch,) of the actions taken, now and when they were chosen.
        estimates: (batch,) advantages.
        clip: the paper's epsilon.

    Raises:
        ValueError: the shapes differ, or are not (batch,).
    """
    require_batch(log_probs=log_probs, old_log_probs=old_log_probs, estimates=estimates)
    ratio = (log_probs - old_log_probs).exp()
    return -torch.min(ratio * estimates, ratio.clamp(1.0 - clip, 1.0 + clip) * estimates).mean()


def value_loss(values: torch.Tensor, targets: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """The mean squared error of values (batch,) in a unit (), such as the standard deviation of all returns.

    Raises:
        ValueError: the shapes differ, or are not (batch,).
    """
    require_batch(values=values, targets=targets)
    return F.mse_loss(values, targets) / unit**2


def normalised(estimates: torch.Tensor) -> torch.Tensor:
    """Advantages (batch,) with a mean of 0 and a standard deviation of 1; there have to be two of them at least."""
    return (estimates - estimates.mean()) / (estimates.std() + 1e-8)


def divergence(log_probs: torch.Tensor, old_log_probs: torch.Tensor) -> torch.Tensor:
    """The Kullback-Leibler divergence of the old policy from the new one, estimated from the log-probabilities (batch,)
    of actions that the old one chose: mean of r - 1 - log r, http://joschu.net/blog/kl-approx.html.
    """
    moved = log_probs - old_log_probs
    return (moved.exp() - 1.0 - moved).mean()


class Trainer:
    """Learns from rollouts by several epochs of minibatches.

    Args:
        model: what is trained.
        optimizer: of its parameters; its learning rate is changed where there is a kl_target.
        minibatch: transitions in one, at least 2.
        epochs: how often a rollout is gone through.
        gamma, lam: of the advantages.
        clip: of the policy's ratio.
        entropy: weight of the entropy, which is maximised; it goes down with the progress, and would be 0 at the goal.
        value: weight of the value loss.
        gradient_norm: the gradient is scaled down to this norm at most.
        kl_target: the learning rate is divided by 1.5 after an epoch in which the policy was further than twice this
            Kullback-Leibler divergence from the one that acted, by the mean of its minibatches, and multiplied after
            one in which it was nearer than half; None for never.
        kl_final: what kl_target would have come down to at the goal; None for no change.
        trial_temperature: the model's temperature while the policy is on trial, and 1 otherwise: chance is what is
            learnt from, and a game that is nearly won is lost by its slips.
        max_rate: where the learning rate stops growing; one that begins above it stays, or falls.
        device: of the model.

    Attributes:
        averaged: the mean of the model's weights over the last updates, exponentially weighted; what is on trial.
        learners: those that learn beside this one, in processes of their own; None for none.
        group: its place among them.

    Raises:
        ValueError: a minibatch has fewer than 2, of which no advantage is normalised.
    """

    def __init__(
        self,
        model: Model,
        optimizer: torch.optim.Optimizer,
        *,
        minibatch: int,
        epochs: int,
        gamma: float,
        lam: float,
        clip: float,
        entropy: float,
        value: float = 0.5,
        gradient_norm: float = 1.0,
        kl_target: float | None = None,
        kl_final: float | None = None,
        trial_temperature: float = 1.0,
        max_rate: float = 1e-2,
        device: torch.device | str = "cpu",
    ):
        if minibatch < 2:
            raise ValueError(f"minibatch is {minibatch}; it has to be at least 2")
        self.model = model
        self.optimizer = optimizer
        self.minibatch = minibatch
        self.epochs = epochs
        self.gamma = gamma
        self.lam = lam
        self.clip = clip
        self.entropy = entropy
        self.value = value
        self.gradient_norm = gradient_norm
        self.kl_target = kl_target
        self.kl_final = kl_target if kl_final is None else kl_final
        self.trial_temperature = trial_temperature
        self.max_rate = max_rate
        self.device = device
        self.averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self._mean = cast(Model, self.averaged.module)
        self.group: Group | None = None
        self.learners: Learners | None = None

    def move_to(self, device: torch.device) -> None:
        """Go on there, with the model and what the optimizer knows."""
        self.device = device
        self.model.to(device)
        self.averaged.to(device)
        self.optimizer.load_state_dict(self.optimizer.state_dict())  # which takes it to where its parameters are

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """Learn from a rollout.

        Args:
            rollout: (T, N), all of which is learnt from.
            progress: from 0 to 1, how near the goal is; see Progress. At 1 the policy is on trial: the model has the
                averaged weights, nothing is learnt, and what is told is of the first minibatch alone.

        Returns:
            loss, and by name what became of it: policy_loss, value_loss, entropy, kl, clipped (share of the ratios
            beyond the clip), learning_rate, progress.

        Raises:
            ValueError: the minibatch does not divide the rollout.
        """
        if len(rollout) % self.minibatch:
            raise ValueError(
                f"a minibatch of {self.minibatch} does not divide the rollout of {len(rollout)}; "
                f"give one of {divisors(len(rollout), least=2)}"
            )
        estimates = advantages(rollout, self.gamma, self.lam)
        columns = (rollout.states, rollout.actions, rollout.log_probs, estimates, estimates + rollout.values)
        # All at once, and from page-locked memory, such as a Sampler's, without waiting; on the CPU they stay.
        learnt = [column.flatten(0, 1).to(self.device, non_blocking=True) for column in columns]
        if self.learners is not None:
            self.learners.begin(learnt, progress)
        return self.learn(learnt, progress)

    def learn(self, columns: Sequence[torch.Tensor], progress: float) -> dict[str, float]:
        """What `update` does once the advantages are known.

        Args:
            columns: (transitions, ...) of states, actions, log_probs, advantages and value targets, where the model is.
            progress: see update.

        Returns:
            What update does.
        """
        if progress >= 1.0:
            said = [self._look(columns)]
            if self.averaged.n_averaged:  # else nothing has been learnt yet
                self.model.load_state_dict(self._mean.state_dict())
            self.model.temperature.fill_(self.trial_temperature)
        else:
            said = list(self._steps(columns, progress))
            # Of what acts next: what was learnt from has been played at the one that there was.
            self.model.temperature.fill_(1.0)
            self.averaged.update_parameters(self.model)
        means = {name: sum(told[name] for told in said) / len(said) for name in said[0]}
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"], "progress": progress}

    def _look(self, columns: Sequence[torch.Tensor]) -> dict[str, float]:
        batch = torch.arange(self.minibatch, device=self.device)
        with torch.no_grad():
            _, told = self._losses(columns, batch, 0.0)
        if self.group is not None:
            self.group.average(list(told.values()))
        return {name: number.item() for name, number in told.items()}

    def _steps(self, columns: Sequence[torch.Tensor], progress: float) -> Iterator[dict[str, float]]:
        for model in (self.model, self._mean):
            model.normalise_values(columns[-1])
        for _ in range(self.epochs):
            kls = []
            order = torch.randperm(len(columns[0])).to(self.device)
            if self.group is not None:
                self.group.shared(order)
            for batch in order.split(self.minibatch):
                told = self._step(columns, batch, self.entropy * (1.0 - progress))
                kls.append(told["kl"])
                yield told
            self._adapt(sum(kls) / len(kls), progress)

    def _losses(
        self, columns: Sequence[torch.Tensor], batch: torch.Tensor, entropy_weight: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        normal = normalised(columns[3].index_select(0, batch))  # over the whole minibatch, whoever learns from it
        if self.group is not None:
            normal, batch = self.group.part(normal), self.group.part(batch)
        states, actions, old_log_probs, _, targets = (column.index_select(0, batch) for column in columns)
        logits, values = self.model(states)
        every_log_prob = F.log_softmax(logits, dim=1)
        log_probs = every_log_prob.gather(1, actions[:, None]).squeeze(1)
        of_policy = policy_loss(log_probs, old_log_probs, normal, self.clip)
        of_values = value_loss(values, targets, self.model.return_std)
        entropy = -(every_log_prob.exp() * every_log_prob).sum(1).mean()
        loss = of_policy + self.value * of_values - entropy_weight * entropy
        with torch.no_grad():
            told = {
                "loss": loss.detach(),
                "policy_loss": of_policy.detach(),
                "value_loss": of_values.detach(),
                "entropy": entropy.detach(),
                "kl": divergence(log_probs, old_log_probs),
                "clipped": (((log_probs - old_log_probs).exp() - 1.0).abs() > self.clip).float().mean(),
            }
        return loss, told

    def _step(self, columns: Sequence[torch.Tensor], batch: torch.Tensor, entropy_weight: float) -> dict[str, float]:
        loss, told = self._losses(columns, batch, entropy_weight)
        self.optimizer.zero_grad()
        loss.backward()
        if self.group is not None:
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            self.group.average([*gradients, *told.values()])
        nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_norm)
        self.optimizer.step()
        return {name: number.item() for name, number in told.items()}

    def _adapt(self, kl: float, progress: float) -> None:
        if self.kl_target is None or self.kl_final is None:
            return
        target = self.kl_target + progress * (self.kl_final - self.kl_target)
        factor = 1 / 1.5 if kl > 2 * target else 1.5 if kl < target / 2 else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = min(group["lr"] * factor, max(group["lr"], self.max_rate))
