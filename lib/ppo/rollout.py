"""Acting: from a model and environments to rollouts."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch.nn import functional as F

from lib.experience.stream import Part, Step, Stream
from lib.ppo.model import Model
from lib.ppo.progress import Progress
from lib.system import memory


@dataclasses.dataclass
class Rollout:
    """T steps of N environments.

    Attributes:
        states: (T, N, ...) as the model wants them.
        actions: (T, N) int64; log_probs: (T, N) float32, of the actions when they were chosen.
        values: (T, N) float32, of the states; next_values: (T, N) float32, of the states that followed, where an
            episode was truncated of its last one. Where one terminated nothing follows, and it means nothing.
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

    BESIDES: ClassVar[int] = 26  # bytes of a step besides its state: action, four numbers, two ends

    def __len__(self) -> int:
        return self.actions.numel()

    @classmethod
    def forecast(cls, space: spaces.Box, steps: int) -> int:
        """Bytes of so many steps of an environment with states of that space."""
        return steps * (math.prod(space.shape) * space.dtype.itemsize + cls.BESIDES)


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
    def __call__(self, states: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Choose.

        Args:
            states: (N, ...) as the model wants them.
            noise: (N, n_actions) float32, exponentially distributed: all the chance that there is in the choice.

        Returns:
            actions (N,) int64, their log_probs and the states' values (N,) float32, on the CPU.
        """
        logits, values = self.model(states.to(self.device))
        log_probs = F.log_softmax(logits, dim=1)
        # The largest of the logits, each with Gumbel noise, is a draw from their softmax. One number in 16 million is
        # drawn as 0, whose logarithm would choose even an action that is not allowed.
        actions = (log_probs - noise.to(self.device).clamp(min=1e-30).log()).argmax(1)
        return actions.cpu(), log_probs.gather(1, actions[:, None]).squeeze(1).cpu(), values.cpu()

    @torch.no_grad()
    def probabilities(self, states: np.ndarray) -> np.ndarray:
        """The actions' (N, n_actions) float32, in states (N, ...) as environments give them."""
        return self.model(channels_last(states).to(self.device))[0].softmax(1).cpu().numpy()

    @torch.no_grad()
    def values(self, states: torch.Tensor) -> torch.Tensor:
        """The states' values (N,) float32, on the CPU."""
        return self.model(states.to(self.device))[1].cpu()


class Sampler(Stream):
    """Steps environments with an agent.

    What is drawn depends on the seed, the environment's number and the number of the rollout, and on nothing else: the
    same environments dealt out to several samplers are played in the same way.

    Args:
        envs: of lib.vector_env.
        agent: an Agent, or another that is called like it and has its `device` and `values`.
        steps: of each environment in a rollout.
        seed: what the environments' seeds are derived from.
        part: see Stream.

    Attributes:
        progress: of the last num_envs episodes.
        clock: seconds spent in "act", "environment" and "store".

    Raises:
        UsageError: a rollout would not fit into the memory that is free.
    """

    PARTS = ("act", "environment", "store")

    def __init__(self, envs: VectorEnv, agent: Agent, steps: int, seed: int = 0, part: Part | None = None):
        super().__init__(envs, seed, part)
        state = envs.single_observation_space
        assert isinstance(state, spaces.Box)
        require_memory(state, envs.num_envs, steps)
        self.agent = agent
        self.steps = steps
        self.progress = Progress(envs.num_envs)

    def step(self, actions: np.ndarray) -> Step:
        before = len(self._episodes)
        step = super().step(actions)
        for episode in self._episodes[before:]:
            self.progress.add(episode.total)
        return step

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"progress": self.progress.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.progress.load_state_dict(state["progress"])

    def __iter__(self) -> Iterator[Rollout]:
        """Rollouts without end; the tensors of one are used again for the next."""
        rollout = self.empty()
        while True:
            self.sample(rollout)
            yield rollout

    def empty(self) -> Rollout:
        """Room for a rollout, to be filled by `sample`."""
        self.begin()
        size = (self.steps, self.envs.num_envs)
        state = channels_last(self.states)
        pinned = torch.device(self.agent.device).type == "cuda"
        return Rollout(
            states=torch.empty(*size, *state.shape[1:], dtype=state.dtype, pin_memory=pinned),
            actions=torch.empty(size, dtype=torch.int64),
            terminated=torch.empty(size, dtype=torch.bool),
            ended=torch.empty(size, dtype=torch.bool),
            **{name: torch.empty(size) for name in ("log_probs", "values", "next_values", "rewards")},
        )

    def sample(self, rollout: Rollout) -> None:
        """Play the next rollout, in the place of what is in this one."""
        # Few states are acted in, and a thread of torch that has done its work spins for a while on an emulator's core.
        # The model's weights are cast once: what its autocast makes of them is kept until the outermost one ends.
        with _one_thread(), torch.autocast(torch.device(self.agent.device).type, enabled=False):
            self._play(rollout)

    def _noise(self) -> torch.Tensor:
        """What the next rollout's actions are drawn with: (steps, num_envs, n_actions)."""
        space = self.envs.single_action_space
        assert isinstance(space, spaces.Discrete)
        size, number = (self.steps, int(space.n)), self.steps_done // (self.steps * self.envs.num_envs)
        generators = [np.random.default_rng([self.seed, env, number]) for env in self.part.numbers]
        drawn = [generator.standard_exponential(size, np.float32) for generator in generators]
        return torch.from_numpy(np.stack(drawn, axis=1))

    def _play(self, rollout: Rollout) -> None:
        noise = self._noise()
        for t in range(self.steps):
            with self.clock("store"):
                rollout.states[t].copy_(channels_last(self.states))
            with self.clock("act"):
                actions, rollout.log_probs[t], rollout.values[t] = self.agent(rollout.states[t], noise[t])
            rewards, terminated, truncated, final_states = self.step(actions.numpy())
            with self.clock("store"):
                rollout.actions[t] = actions
                rollout.rewards[t] = torch.from_numpy(rewards)
                rollout.terminated[t] = torch.from_numpy(terminated)
                rollout.ended[t] = torch.from_numpy(terminated | truncated)
            if truncated.any():
                with self.clock("act"):
                    rollout.next_values[t, truncated] = self.agent.values(channels_last(final_states[truncated]))
        with self.clock("act"):
            last = self.agent.values(channels_last(self.states))
        # What followed a step is what the next one began with, but for the truncated, whose value is there already.
        after = torch.cat([rollout.values[1:], last[None]])
        truncated_steps = rollout.ended & ~rollout.terminated
        rollout.next_values.copy_(torch.where(truncated_steps, rollout.next_values, after))


def require_memory(space: spaces.Box, num_envs: int, steps: int, copies: int = 1) -> None:
    """See that rollouts fit.

    Args:
        space: of a state.
        num_envs, steps: of a rollout.
        copies: how many there are at a time.

    Raises:
        UsageError: they would not fit into the memory that is free.
    """
    times = f", {copies} times," if copies > 1 else ""
    memory.require(
        f"a rollout of {steps:,} steps of {num_envs} environments{times} needs",
        steps,
        copies * num_envs * Rollout.forecast(space, steps),
        lambda most: f"take --set rollout={most} at most",
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def channels_last(states: np.ndarray) -> torch.Tensor:
    """States (N, ...) as the model wants them, without a copy: (N, C, H, W) as (N, H, W, C), all else as it is."""
    tensor = torch.from_numpy(states)
    return tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor


def channels_first(state: np.ndarray) -> np.ndarray:
    """A rollout's state as its environment gave it, without a copy: (H, W, C) as (C, H, W), all else as it is."""
    return state.transpose(2, 0, 1) if state.ndim == 3 else state


def rollouts(sampler: Sampler, model: Model) -> Iterator[Rollout]:
    """All rollouts of a run but the first, which the model looks at to normalise the states, and forgets."""
    every = iter(sampler)
    if not sampler.steps_done:
        model.normalise_by(next(every).states.flatten(0, 1))
    yield from every
