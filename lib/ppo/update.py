"""Learning from rollouts."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from lib.errors import divisors
from lib.nets import losses
from lib.ppo.data_parallel import Group, Learners
from lib.ppo.model import Model
from lib.ppo.rollout import Rollout


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
    losses.require_batch(log_probs=log_probs, old_log_probs=old_log_probs, estimates=estimates)
    ratio = (log_probs - old_log_probs).exp()
    return -torch.min(ratio * estimates, ratio.clamp(1.0 - clip, 1.0 + clip) * estimates).mean()


def value_loss(values: torch.Tensor, targets: torch.Tensor, unit: torch.Tensor) -> torch.Tensor:
    """The mean squared error of values (batch,) in a unit (), such as the standard deviation of all returns.

    Raises:
        ValueError: the shapes differ, or are not (batch,).
    """
    losses.require_batch(values=values, targets=targets)
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
        epochs: how often a rollout is gone through; once where the goal is AT_HAND.
        gamma, lam: of the advantages.
        clip: of the policy's ratio.
        entropy: weight of the entropy, which is maximised; it goes down to 0 with the progress.
        value: weight of the value loss.
        gradient_norm: the gradient is scaled down to this norm at most.
        kl_target: the learning rate is divided by 1.5 after an epoch in which the policy was further than twice this
            Kullback-Leibler divergence from the one that acted, by the mean of its minibatches, and multiplied after
            one in which it was nearer than half, but where the goal is AT_HAND; None for never.
        kl_final: what kl_target has come down to when the goal is reached; None for no change.
        final_temperature: the model's temperature once the goal has been NEAR, for good: chance is what is learnt from,
            and a game that is nearly won is lost by its slips.
        max_rate: where the learning rate stops growing; one that begins above it stays, or falls.
        device: of the model.

    Attributes:
        NEAR, AT_HAND: the progress from which on the goal is.
        learners: those that learn beside this one, in processes of their own; None for none.
        group: its place among them.

    Raises:
        ValueError: a minibatch has fewer than 2, of which no advantage is normalised.
    """

    NEAR, AT_HAND = 0.85, 0.95

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
        final_temperature: float = 1.0,
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
        self.final_temperature = final_temperature
        self.max_rate = max_rate
        self.device = device
        self.group: Group | None = None
        self.learners: Learners | None = None

    def move_to(self, device: torch.device) -> None:
        """Go on there, with the model and what the optimizer knows."""
        self.device = device
        self.model.to(device)
        self.optimizer.load_state_dict(self.optimizer.state_dict())  # which takes it to where its parameters are

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """Learn from a rollout.

        Args:
            rollout: (T, N), all of which is learnt from.
            progress: from 0 to 1, how near the goal is; see Progress. Once it is NEAR what acts next does so at the
                final temperature. While it is AT_HAND there is a single epoch, after which the learning rate does not
                grow: the games that are still to be played are played sooner, by a policy that holds still.

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
        self.model.normalise_values(columns[-1])
        entropy_weight = self.entropy * (1.0 - progress)
        said: list[dict[str, float]] = []
        for _ in range(self.epochs if progress < self.AT_HAND else 1):
            order = torch.randperm(len(columns[0])).to(self.device)
            if self.group is not None:
                self.group.shared(order)
            epoch = [self._step(columns, batch, entropy_weight) for batch in order.split(self.minibatch)]
            self._adapt(sum(told["kl"] for told in epoch) / len(epoch), progress)
            said += epoch
        if progress >= self.NEAR:  # of what acts next; what was learnt from was played at the one that there was
            self.model.temperature.fill_(self.final_temperature)
        means = {name: sum(told[name] for told in said) / len(said) for name in said[0]}
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"], "progress": progress}

    def _step(self, columns: Sequence[torch.Tensor], batch: torch.Tensor, entropy_weight: float) -> dict[str, float]:
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
        self.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            told = {
                "loss": loss.detach(),
                "policy_loss": of_policy.detach(),
                "value_loss": of_values.detach(),
                "entropy": entropy.detach(),
                "kl": divergence(log_probs, old_log_probs),
                "clipped": (((log_probs - old_log_probs).exp() - 1.0).abs() > self.clip).float().mean(),
            }
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
        # A first epoch is always near, and after a single one the rate would only ever grow.
        grow = 1.5 if progress < self.AT_HAND else 1.0
        factor = 1 / 1.5 if kl > 2 * target else grow if kl < target / 2 else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = min(group["lr"] * factor, max(group["lr"], self.max_rate))
