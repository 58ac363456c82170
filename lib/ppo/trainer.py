"""Learning from rollouts."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional as F

from lib.errors import divisors
from lib.ppo.learners import Group, Learners
from lib.ppo.model import Model
from lib.ppo.sampler import Rollout


def advantages(rollout: Rollout, gamma: float, lam: float) -> torch.Tensor:
    """Generalised advantage estimates, Schulman et al. (2016), https://arxiv.org/abs/1506.02438, equation 16.

    A truncated episode is bootstrapped from the value of its last state, a terminated one from 0.

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
    """
    ratio = (log_probs - old_log_probs).exp()
    return -torch.min(ratio * estimates, ratio.clamp(1.0 - clip, 1.0 + clip) * estimates).mean()


class Trainer:
    """Learns from rollouts by several epochs of minibatches.

    Args:
        model: what is trained.
        optimizer: of its parameters; its learning rate is changed where there is a kl_target.
        minibatch: transitions in one.
        epochs: how often a rollout is gone through.
        gamma, lam: of the advantages.
        clip: of the policy's ratio.
        entropy: weight of the entropy, which is maximised; it goes down to 0 with the progress.
        value: weight of the value loss.
        gradient_norm: the gradient is scaled down to this norm at most.
        kl_target: the learning rate is divided by 1.5 after an epoch that moved the policy by more than twice this
            Kullback-Leibler divergence, and multiplied after one that moved it by less than half; None for never.
        kl_final: what kl_target has come down to when the goal is reached; None for no change.
        max_rate: where the learning rate stops to grow.
        device: of the model.

    Attributes:
        learners: those that learn beside this one, in processes of their own; None for none.
        group: its place among them.
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
        max_rate: float = 1e-2,
        device: torch.device | str = "cpu",
    ):
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
            progress: from 0 to 1, how near the goal is; see Progress. At 1 the policy is only polished, in a
                single epoch, so that what is left to learn costs little time.

        Returns:
            loss, and by name what became of it: policy_loss, value_loss, entropy, kl, clipped (share of the ratios
            beyond the clip), learning_rate, progress.

        Raises:
            ValueError: the minibatch does not divide the rollout.
        """
        if len(rollout) % self.minibatch:
            raise ValueError(
                f"a minibatch of {self.minibatch} does not divide the rollout of {len(rollout)}; "
                f"give one of {divisors(len(rollout))}"
            )
        estimates = advantages(rollout, self.gamma, self.lam)
        columns = (rollout.states, rollout.actions, rollout.log_probs, estimates, estimates + rollout.values)
        # All at once, and from page-locked memory without waiting; on the CPU they stay where they are.
        learnt = [column.flatten(0, 1).to(self.device, non_blocking=True) for column in columns]
        if self.learners is not None:
            self.learners.begin(learnt, progress)
        return self.learn(learnt, progress)

    def learn(self, columns: Sequence[torch.Tensor], progress: float) -> dict[str, float]:
        """What `update` does once the advantages are known.

        Args:
            columns: (transitions, ...) of states, actions, log_probs, advantages and value targets, where the model is.
            progress: see update.
        """
        size = len(columns[0])
        self.model.expect(columns[-1])
        said: dict[str, list[float]] = {}
        for _ in range(self.epochs if progress < 1.0 else 1):
            kls = []
            order = torch.randperm(size).to(self.device)
            if self.group is not None:
                self.group.shared(order)
            for batch in order.split(self.minibatch):
                told = self._step(columns, batch, self.entropy * (1.0 - progress))
                kls.append(told["kl"])
                for name, number in told.items():
                    said.setdefault(name, []).append(number)
            self._adapt(sum(kls) / len(kls), progress)
        means = {name: sum(numbers) / len(numbers) for name, numbers in said.items()}
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"], "progress": progress}

    def _step(self, columns: Sequence[torch.Tensor], batch: torch.Tensor, entropy_weight: float) -> dict[str, float]:
        normal = columns[3].index_select(0, batch)
        normal = (normal - normal.mean()) / (normal.std() + 1e-8)  # over the whole minibatch, whoever learns from it
        if self.group is not None:
            normal, batch = self.group.part(normal), self.group.part(batch)
        states, actions, old_log_probs, _, targets = (column.index_select(0, batch) for column in columns)
        logits, values = self.model(states)
        every_log_prob = F.log_softmax(logits, dim=1)
        log_probs = every_log_prob.gather(1, actions[:, None]).squeeze(1)
        of_policy = policy_loss(log_probs, old_log_probs, normal, self.clip)
        of_values = F.mse_loss(values, targets) / self.model.return_std**2
        entropy = -(every_log_prob.exp() * every_log_prob).sum(1).mean()
        loss = of_policy + self.value * of_values - entropy_weight * entropy
        self.optimizer.zero_grad()
        loss.backward()
        with torch.no_grad():
            moved = log_probs - old_log_probs
            told = {
                "loss": loss.detach(),
                "policy_loss": of_policy.detach(),
                "value_loss": of_values.detach(),
                "entropy": entropy.detach(),
                "kl": (moved.exp() - 1.0 - moved).mean(),  # http://joschu.net/blog/kl-approx.html
                "clipped": ((moved.exp() - 1.0).abs() > self.clip).float().mean(),
            }
        if self.group is not None:
            gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            self.group.average([*gradients, *told.values()])
        nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_norm)
        self.optimizer.step()
        return {name: number.item() for name, number in told.items()}

    def _adapt(self, kl: float, progress: float) -> None:
        if self.kl_target is None or self.kl_final is None or progress >= 1.0:
            return
        target = self.kl_target + progress * (self.kl_final - self.kl_target)
        factor = 1 / 1.5 if kl > 2 * target else 1.5 if kl < target / 2 else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = min(self.max_rate, group["lr"] * factor)
