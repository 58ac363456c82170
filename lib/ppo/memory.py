"""PPO with a memory: a recurrent network between the encoder and the heads.

The memory is a vector for each environment. It is zero at the start of an episode, changes with every observation, and
goes on from one rollout to the next. An update trains on whole sequences: the rollout of some environments, from the
memory with which it began.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import VectorEnv
from torch import nn

from lib.envs.checked_env import CellActions
from lib.errors import UsageError
from lib.experience.interface import State
from lib.experience.stream import Step
from lib.nets.distributions import Space
from lib.nets.masking import mask_invalid
from lib.ppo.fast import FastModel, FastTrainer
from lib.ppo.model import Recurrent
from lib.ppo.rollout import Rollout, Sampler
from lib.system.machine import to_device


class MemoryModel(FastModel, Recurrent):
    """FastModel with gated recurrent units (GRU) after the encoder; Cho et al. (2014), https://arxiv.org/abs/1406.1078.

    Args:
        space, actions, dtype: see FastModel.

    Attributes:
        gru: the recurrent layer; the memory is its state.
    """

    def __init__(self, space: spaces.Box, actions: int | Space, dtype: torch.dtype = torch.float32):
        super().__init__(space, actions.n if isinstance(actions, CellActions) else actions, dtype)
        self.gru = nn.GRUCell(self.body.features, self.body.features)
        for weights in self.gru.parameters():
            nn.init.orthogonal_(weights) if weights.ndim == 2 else nn.init.zeros_(weights)

    def forward(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise an error, because the output also depends on the memory; use `remember`."""
        raise NotImplementedError("a MemoryModel needs the memory; call `remember`")

    def first_memory(self, number: int) -> torch.Tensor:
        return self.value.weight.new_zeros(number, self.gru.hidden_size)

    def remember(
        self, states: torch.Tensor, memory: torch.Tensor, starts: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        observations, allowed = self.split(states)
        remembered = []
        for features, is_start in zip(self.body(observations).view(*starts.shape, -1), starts, strict=True):
            memory = self.gru(features, memory.masked_fill(is_start[:, None], 0.0))
            remembered.append(memory)
        features = torch.cat(remembered)
        return mask_invalid(self.policy(features), allowed), self.values_of(features), memory


@dataclasses.dataclass
class MemoryRollout(Rollout):
    """Rollout of a MemorySampler.

    Attributes:
        memory, starts: those of the sampler before the first step, (N, size) and (N,).
    """

    memory: torch.Tensor
    starts: torch.Tensor


class MemorySampler(Sampler):
    """Sampler of a MemoryModel.

    Attributes:
        memory: (num_envs, size) float32, after the latest states acted on.
        starts: (num_envs,) bool, whether the next states are the first ones of their episodes.
    """

    model: MemoryModel

    def __init__(self, envs: VectorEnv, model: MemoryModel, steps: int, seed: int = 0):
        super().__init__(envs, model, steps, seed)
        self.memory = model.first_memory(envs.num_envs)
        self.starts = torch.ones(envs.num_envs, dtype=torch.bool, device=self.device)

    @torch.no_grad()
    def outputs(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        states = to_device(states, self.device)
        parameters, values, self.memory = self.model.remember(states, self.memory, self.starts[None])
        return parameters, values

    @torch.no_grad()
    def values(self, states: torch.Tensor, truncated: torch.Tensor | None = None) -> torch.Tensor:
        memory, starts = self.memory, self.starts
        if truncated is not None:  # these states are not the first ones of their episodes
            memory = memory[truncated.to(self.device)]
            starts = torch.zeros(len(memory), dtype=torch.bool, device=self.device)
        return self.model.remember(to_device(states, self.device), memory, starts[None])[1].cpu()

    def empty(self) -> MemoryRollout:
        return MemoryRollout(**vars(super().empty()), memory=self.memory, starts=self.starts)

    def sample(self, rollout: Rollout) -> None:
        assert isinstance(rollout, MemoryRollout)
        rollout.memory, rollout.starts = self.memory, self.starts
        super().sample(rollout)

    def step(self, actions: np.ndarray) -> Step:
        step = super().step(actions)
        self.starts = torch.from_numpy(step.terminated | step.truncated).to(self.device)
        return step

    def state_dict(self) -> State:
        return super().state_dict() | {"memory": self.memory.cpu(), "starts": self.starts.cpu()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory, self.starts = (state[name].to(self.device) for name in ("memory", "starts"))
        if self.interrupted_states is not None:  # new episodes have begun
            self.starts = torch.ones_like(self.starts)


class MemoryTrainer(FastTrainer):
    """Trainer of a MemoryModel, whose minibatches are the sequences of some environments.

    Raises:
        UsageError: by `update`, if a minibatch is not a whole number of sequences.
    """

    model: MemoryModel

    def update(self, rollout: Rollout, rhos: torch.Tensor | None = None) -> dict[str, float]:
        assert isinstance(rollout, MemoryRollout)
        if self.settings.minibatch % len(rollout.rewards):
            raise UsageError(
                f"a minibatch of {self.settings.minibatch} steps does not hold whole sequences of "
                f"{len(rollout.rewards)}; --set minibatch has to be a multiple of rollout"
            )
        self._memory = to_device(rollout.memory, self.device)
        self._starts = to_device(torch.cat([rollout.starts.cpu()[None], rollout.ended[:-1]]), self.device)
        return super().update(rollout, rhos)

    def minibatches(self, number: int, shuffled: bool = True) -> Sequence[torch.Tensor]:
        steps, num_envs = self._starts.shape
        order = (torch.randperm(num_envs) if shuffled else torch.arange(num_envs)).to(self.device)
        rows = num_envs * torch.arange(steps, device=self.device)[:, None]
        return [(rows + envs).flatten() for envs in torch.split(order, self.settings.minibatch // steps)]

    def outputs(self, states: torch.Tensor, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        envs = indices[: len(indices) // len(self._starts)]  # of the first step
        parameters, values, _ = self.model.remember(states.movedim(-1, 1), self._memory[envs], self._starts[:, envs])
        return parameters, values
