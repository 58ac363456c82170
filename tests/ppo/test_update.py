import numpy as np
import pytest
import torch

from fakes import Chain
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.ppo.rollout import Sampler
from ppo_setup import trainer_of, vectorised


@pytest.mark.parametrize("kind", [Model, FastModel])
def test_the_chain_is_solved_with_its_known_values(kind):
    envs = vectorised(lambda: Chain(4), 8)
    model = kind(envs.single_observation_space, int(envs.single_action_space.n))
    sampler = Sampler(envs, model, 32, seed=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    trainer = trainer_of(model, optimizer, minibatch=64, epochs=4, gamma=0.5, lam=0.95, entropy=0.01)
    for _, rollout in zip(range(20), sampler, strict=False):
        trainer.update(rollout)
    assert np.mean([episode.total for episode in sampler.pop_episodes()][-100:]) > 0.9
    values = model(torch.eye(4))[1]
    assert values.tolist() == pytest.approx([0.125, 0.25, 0.5, 1.0], abs=0.1)
