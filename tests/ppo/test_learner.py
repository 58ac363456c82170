import numpy as np
import torch
from gymnasium import spaces

from lib.ppo.actor import ActorSettings, PPOActor
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner, join_segments
from ppo_setup import trainer_of


def learner_and_segments():
    """A learner, and a segment of each of two actors with two environments of CartPole each."""
    acting = ActorSettings("CartPole-v1", envs=4, actors=2, rollout=8, seed=5)
    torch.manual_seed(0)
    learner = PPOLearner(trainer_of(FastModel(acting.space, acting.n_actions), minibatch=16))
    return learner, [PPOActor(acting, number).get_trajectory_segment() for number in range(2)]


def test_segments_are_joined_along_their_environments():
    _, segments = learner_and_segments()
    rollout = join_segments(segments)
    assert rollout.states.shape == (8, 4, 4)
    assert rollout.actions.shape == (8, 4)
    for name, tensor in vars(rollout).items():
        for number, segment in enumerate(segments):
            assert np.array_equal(tensor[:, 2 * number : 2 * number + 2].numpy(), segment.arrays[name])


def test_every_change_of_the_weights_raises_the_version():
    learner, segments = learner_and_segments()
    assert learner.get_model().version == 0
    learner.normalise_by(segments)
    states = join_segments(segments).states.flatten(0, 1)
    assert torch.allclose(learner.trainer.model.body.mean, states.mean(0))
    assert learner.get_model().version == 1
    before = {name: tensor.clone() for name, tensor in learner.get_model().tensors.items()}
    learner.train(segments)
    weights = learner.get_model()
    assert weights.version == 2
    assert not torch.equal(weights.tensors["policy.weight"], before["policy.weight"])
    restored = PPOLearner(trainer_of(FastModel(spaces.Box(-1.0, 1.0, (4,)), 2)))
    restored.load_state_dict(learner.state_dict())
    assert restored.version == 2
