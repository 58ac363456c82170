"""Builders for the tests of lib.ppo: vector environments, rollouts and trainers."""

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from lib.envs import vector_env
from lib.ppo.fast import FastModel, FastSettings, FastTrainer
from lib.ppo.rollout import Rollout
from lib.ppo.update import Trainer, UpdateSettings


def vectorised(make, n):
    """Build a vector environment of n environments; `make` creates one."""
    env_fns = [lambda: vector_env.Pausable(RecordEpisodeStatistics(make()))] * n
    return SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)


class Fixed:
    """Agent that always takes action 0; the value of a state is ten times its first number."""

    device = torch.device("cpu")

    def __call__(self, states, noise):
        n = len(states)
        return torch.zeros(n, dtype=torch.int64), torch.full((n,), -0.5), self.values(states)

    def values(self, states, truncated=None):
        return 10.0 * states[:, 0].float()


def random_rollout(steps, envs, state_size=5, n_actions=4):
    """A rollout of random numbers, with random ends of episodes."""
    ended = torch.rand(steps, envs) < 0.25
    return Rollout(
        states=torch.randn(steps, envs, state_size),
        actions=torch.randint(n_actions, (steps, envs)),
        log_probs=-2 * torch.rand(steps, envs),
        values=torch.randn(steps, envs),
        next_values=torch.randn(steps, envs),
        rewards=torch.randn(steps, envs),
        terminated=ended & (torch.rand(steps, envs) < 0.5),
        ended=ended,
    )


def settings_of(kind=UpdateSettings, **changes):
    """Settings for small tests."""
    values = {"minibatch": 4, "epochs": 2, "gamma": 0.9, "lam": 0.9, "clip": 0.2, "entropy": 0.0, "gradient_norm": 1.0}
    return kind(**values | changes)


def trainer_of(model, optimizer=None, group=None, **changes):
    """The model's trainer with `settings_of(**changes)`, and Adam with a learning rate of 0.001 by default."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    if isinstance(model, FastModel):
        return FastTrainer(model, optimizer, settings_of(FastSettings, **changes), group)
    return Trainer(model, optimizer, settings_of(**changes), group)
