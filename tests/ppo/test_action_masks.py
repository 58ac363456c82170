"""PPO with action masks: invalid actions are never drawn and do not count."""

import numpy as np
import pytest
import torch

from fakes import MASKED, first_states
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.ppo.update import Trainer, Transitions, UpdateSettings
from lib.run.policy import GreedyPolicy


@pytest.mark.parametrize("kind", [Model, FastModel])
@pytest.mark.parametrize("env_id", MASKED)
def test_invalid_actions_have_no_probability(env_id, kind):
    space, states = first_states(env_id)
    probabilities = GreedyPolicy(kind(space, 5)).scores(states)
    assert (probabilities[:, 0] == 0.0).all()
    assert np.allclose(probabilities.sum(1), 1.0)


def test_the_entropy_counts_valid_actions_only():
    space, states = first_states("fakes:Vector-info-v0")
    model = Model(space, 5)
    torch.nn.init.zeros_(model.policy.weight)
    settings = UpdateSettings(minibatch=4, epochs=1, gamma=0.9, lam=0.9, clip=0.2, entropy=0.1)
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), settings)
    transitions = Transitions(
        states=torch.from_numpy(states),
        actions=torch.ones(4, dtype=torch.int64),
        log_probs=torch.full((4,), -np.log(4.0)),
        advantages=torch.rand(4),
        value_targets=torch.rand(4),
    )
    metrics = trainer.learn(transitions)
    assert metrics["entropy"] == pytest.approx(np.log(4.0))
    assert metrics["kl"] == pytest.approx(0.0, abs=1e-6)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
