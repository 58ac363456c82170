"""Proximal policy optimisation, Schulman et al. (2017), https://arxiv.org/abs/1707.06347, in four parts:

    Model     from states to action logits and values
    Agent     acts: from the states of all environments to their actions
    Sampler   steps the environments with the agent, and gives rollouts
    Trainer   learns from a rollout

Shapes: T steps of N environments are (T, N, ...), a minibatch is (batch, ...).
"""

import dataclasses
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv
from torch import nn
from torch.nn import functional as F

from lib.ppo_model import Model
from lib.stream import Step, Stream

__all__ = ["Agent", "Model", "Rollout", "Sampler", "Trainer", "advantages", "policy_loss", "rollouts"]


@dataclasses.dataclass
class Rollout:
    """T steps of N environments.

    Attributes:
        states: (T, N, ...) as the model wants them.
        actions: (T, N) int64; log_probs: (T, N) float32, of the actions when they were chosen.
        values: (T, N) float32, of the states; next_values: of the states that followed, those that ended an episode
            included.
        rewards: (T, N) float32.
        terminated: (T, N) bool, whether nothing follows; ended: whether the episode ended, be it by truncation.
    """

    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    ended: torch.Tensor

    def __len__(self) -> int:
        return self.actions.numel()


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


class Agent:
    """Draws actions from the model's policy.

    Args:
        model: of which one copy acts here.
        device: where it is.
    """

    def __init__(self, model: Model, device: torch.device | str = "cpu"):
        self.model = model
        self.device = device

    @torch.no_grad()
    def __call__(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose.

        Args:
            states: (N, ...) as the model wants them.

        Returns:
            actions (N,) int64, their log_probs and the states' values (N,) float32, on the CPU.
        """
        logits, values = self.model(states.to(self.device))
        log_probs = F.log_softmax(logits, dim=1)
        # The largest of the logits, each with Gumbel noise, is a draw from their softmax.
        actions = (log_probs - torch.empty_like(log_probs).exponential_().log()).argmax(1)
        return actions.cpu(), log_probs.gather(1, actions[:, None]).squeeze(1).cpu(), values.cpu()

    @torch.no_grad()
    def best(self, states: np.ndarray) -> np.ndarray:
        """The most likely actions (N,), in states (N, ...) as environments give them."""
        return self.model(_laid_out(states).to(self.device))[0].argmax(1).cpu().numpy()

    @torch.no_grad()
    def values(self, states: torch.Tensor) -> torch.Tensor:
        """The states' values (N,) float32, on the CPU."""
        return self.model(states.to(self.device))[1].cpu()


class Sampler(Stream):
    """Steps environments with an agent.

    Args:
        envs: of lib.vector_env.
        agent: an Agent, or another callable like it, with a device.
        steps: of each environment in a rollout.
        seed: what the environments' seeds are derived from.

    Attributes:
        recent: the returns of the last num_envs episodes; first_mean: the mean of the first so many, or None.
        clock: seconds spent in "act", "environment" and "store".
    """

    PARTS = ("act", "environment", "store")

    def __init__(self, envs: VectorEnv, agent: Agent, steps: int, seed: int = 0):
        super().__init__(envs, seed)
        self.agent = agent
        self.steps = steps
        self.recent: deque[float] = deque(maxlen=envs.num_envs)
        self.first_mean: float | None = None

    def step(self, actions: np.ndarray) -> Step:
        before = len(self._episodes)
        step = super().step(actions)
        for episode in self._episodes[before:]:
            self.recent.append(episode.total)
            if self.first_mean is None and len(self.recent) == self.recent.maxlen:
                self.first_mean = sum(self.recent) / len(self.recent)
        return step

    def progress(self, goal: float | None) -> float:
        """How far the mean return of the last num_envs episodes has come, from that of the first ones to a goal.

        Returns:
            0 to 1; 0 while there are no num_envs episodes, or no goal, or one that the first ones were beyond.
        """
        if self.first_mean is None or goal is None:
            return 0.0
        mean = sum(self.recent) / len(self.recent)
        if mean >= goal:
            return 1.0
        return max(0.0, (mean - self.first_mean) / (goal - self.first_mean)) if self.first_mean < goal else 0.0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"recent": list(self.recent), "first_mean": self.first_mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.recent.extend(state["recent"])
        self.first_mean = state["first_mean"]

    def __iter__(self) -> Iterator[Rollout]:
        """Rollouts without end; the tensors of one are used again for the next."""
        self.begin()
        rollout = self._empty()
        while True:
            self._sample(rollout)
            yield rollout

    def _empty(self) -> Rollout:
        size = (self.steps, self.envs.num_envs)
        state = _laid_out(self.states)
        pinned = torch.device(self.agent.device).type == "cuda"
        return Rollout(
            states=torch.empty(*size, *state.shape[1:], dtype=state.dtype, pin_memory=pinned),
            actions=torch.empty(size, dtype=torch.int64),
            terminated=torch.empty(size, dtype=torch.bool),
            ended=torch.empty(size, dtype=torch.bool),
            **{name: torch.empty(size) for name in ("log_probs", "values", "next_values", "rewards")},
        )

    def _sample(self, rollout: Rollout) -> None:
        # Few states are acted in, and a thread of torch that has done its work spins for a while on an emulator's core.
        with _one_thread():
            self._play(rollout)

    def _play(self, rollout: Rollout) -> None:
        for t in range(self.steps):
            with self.clock("store"):
                rollout.states[t].copy_(_laid_out(self.states))
            with self.clock("act"):
                actions, rollout.log_probs[t], rollout.values[t] = self.agent(rollout.states[t])
            rewards, terminated, truncated, final_states = self.step(actions.numpy())
            with self.clock("store"):
                rollout.actions[t] = actions
                rollout.rewards[t] = torch.from_numpy(rewards)
                rollout.terminated[t] = torch.from_numpy(terminated)
                rollout.ended[t] = torch.from_numpy(terminated | truncated)
            if truncated.any():
                with self.clock("act"):
                    rollout.next_values[t, truncated] = self.agent.values(_laid_out(final_states[truncated]))
        with self.clock("act"):
            last = self.agent.values(_laid_out(self.states))
        # What followed a step is what the next one began with, but for the truncated, whose value is there already.
        after = torch.cat([rollout.values[1:], last[None]])
        truncated_steps = rollout.ended & ~rollout.terminated
        rollout.next_values.copy_(torch.where(truncated_steps, rollout.next_values, after))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _laid_out(states: np.ndarray) -> torch.Tensor:
    """States as the model wants them: images with their channels last."""
    tensor = torch.from_numpy(states)
    return tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor


def rollouts(sampler: Sampler, model: Model) -> Iterator[Rollout]:
    """All rollouts of a run but the first, which the model looks at to normalise the states, and forgets."""
    every = iter(sampler)
    if not sampler.steps_done:
        model.body.look_at(next(every).states.flatten(0, 1))
    yield from every


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

    def update(self, rollout: Rollout, progress: float = 0.0) -> dict[str, float]:
        """Learn from a rollout.

        Args:
            progress: from 0 to 1, how near the goal is; see Sampler.progress. At 1 the policy is only polished, in a
                single epoch, so that what is left to learn costs little time.

        Returns:
            loss, and by name what became of it: policy_loss, value_loss, entropy, kl, clipped (share of the ratios
            beyond the clip), learning_rate, progress.

        Raises:
            ValueError: the minibatch does not divide the rollout.
        """
        if len(rollout) % self.minibatch:
            fitting = [n for n in range(1, len(rollout) + 1) if len(rollout) % n == 0]
            raise ValueError(
                f"a minibatch of {self.minibatch} does not divide the rollout of {len(rollout)}; "
                f"give one of {', '.join(map(str, fitting))}"
            )
        estimates = advantages(rollout, self.gamma, self.lam)
        columns = (rollout.states, rollout.actions, rollout.log_probs, estimates, estimates + rollout.values)
        # All at once, and from page-locked memory without waiting; on the CPU they stay where they are.
        learnt = [column.flatten(0, 1).to(self.device, non_blocking=True) for column in columns]
        self.model.expect(learnt[-1])
        said: dict[str, list[float]] = {}
        for _ in range(self.epochs if progress < 1.0 else 1):
            kls = []
            for batch in torch.randperm(len(rollout)).to(self.device).split(self.minibatch):
                told = self._step(
                    *(column.index_select(0, batch) for column in learnt),
                    entropy_weight=self.entropy * (1.0 - progress),
                )
                kls.append(told["kl"])
                for name, number in told.items():
                    said.setdefault(name, []).append(number)
            self._adapt(sum(kls) / len(kls), progress)
        means = {name: sum(numbers) / len(numbers) for name, numbers in said.items()}
        return means | {"learning_rate": self.optimizer.param_groups[0]["lr"], "progress": progress}

    def _step(
        self,
        states: torch.Tensor,
        actions: torch.Tensor,
        old_log_probs: torch.Tensor,
        estimates: torch.Tensor,
        targets: torch.Tensor,
        *,
        entropy_weight: float,
    ) -> dict[str, float]:
        logits, values = self.model(states)
        every_log_prob = F.log_softmax(logits, dim=1)
        log_probs = every_log_prob.gather(1, actions[:, None]).squeeze(1)
        estimates = (estimates - estimates.mean()) / (estimates.std() + 1e-8)
        of_policy = policy_loss(log_probs, old_log_probs, estimates, self.clip)
        of_values = F.mse_loss(values, targets) / self.model.return_std**2
        entropy = -(every_log_prob.exp() * every_log_prob).sum(1).mean()
        loss = of_policy + self.value * of_values - entropy_weight * entropy
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), self.gradient_norm)
        self.optimizer.step()
        with torch.no_grad():
            moved = log_probs - old_log_probs
            kl = (moved.exp() - 1.0 - moved).mean()  # http://joschu.net/blog/kl-approx.html
            clipped = ((moved.exp() - 1.0).abs() > self.clip).float().mean()
        return {
            "loss": loss.item(),
            "policy_loss": of_policy.item(),
            "value_loss": of_values.item(),
            "entropy": entropy.item(),
            "kl": kl.item(),
            "clipped": clipped.item(),
        }

    def _adapt(self, kl: float, progress: float) -> None:
        if self.kl_target is None or self.kl_final is None or progress >= 1.0:
            return
        target = self.kl_target + progress * (self.kl_final - self.kl_target)
        factor = 1 / 1.5 if kl > 2 * target else 1.5 if kl < target / 2 else 1.0
        for group in self.optimizer.param_groups:
            group["lr"] = min(self.max_rate, group["lr"] * factor)
