"""Builders for the tests of lib.ppo: vector environments, rollouts and trainers."""

from types import SimpleNamespace

import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics

from lib.envs import vector_env
from lib.ppo.fast import FastModel, FastTrainer
from lib.ppo.rollout import Rollout
from lib.ppo.update import Trainer


def vectorised(make, n):
    """Build a vector environment of n environments; `make` creates one."""
    env_fns = [lambda: vector_env.Pausable(RecordEpisodeStatistics(make()))] * n
    return SyncVectorEnv(env_fns, autoreset_mode=AutoresetMode.SAME_STEP)


class Fixed(torch.nn.Linear):
    """Model that always takes the first of two actions; the value of a state is ten times its first number."""

    def __init__(self):
        super().__init__(1, 1)

    def forward(self, states):
        return torch.tensor([[100.0, 0.0]]).expand(len(states), 2), 10.0 * states[:, 0].float()


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


def settings_of(**changes):
    """Hyperparameters of an update for small tests."""
    values = {"minibatch": 4, "epochs": 2, "gamma": 0.9, "lam": 0.9, "clip": 0.2, "entropy": 0.0, "gradient_norm": 1.0}
    return SimpleNamespace(**values | {"kl_target": None, "learning_rate_max": 1e-3} | changes)


def trainer_of(model, optimizer=None, group=None, **changes):
    """The model's trainer with `settings_of(**changes)`, and Adam with a learning rate of 0.001 by default."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-3)
    trainer = FastTrainer if isinstance(model, FastModel) else Trainer
    return trainer(model, optimizer, settings_of(**changes), group)
