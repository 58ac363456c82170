"""Steps that older weights have played."""

import torch

from lib.ppo.actor import ActorSettings, PPOActor
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner, join_segments
from ppo_setup import trainer_of


def test_steps_of_older_weights_get_present_values_and_truncated_ratios():
    acting = ActorSettings("CartPole-v1", envs=4, actors=2, rollout=8, seed=5)
    torch.manual_seed(0)
    learner = PPOLearner(
        trainer_of(FastModel(acting.env.single_observation_space, acting.env.single_action_space), minibatch=16)
    )
    actors = [PPOActor(acting, index) for index in range(2)]
    for actor in actors:
        actor.set_model(learner.get_model())
    rollout = join_segments([actor.get_trajectory_segment() for actor in actors])
    played = {name: tensor.clone() for name, tensor in vars(rollout).items()}
    same, ones = learner.trainer.reevaluated(rollout)
    assert torch.allclose(ones, torch.ones(8, 4), atol=1e-5)
    assert torch.allclose(same.next_values, rollout.next_values, atol=1e-5)
    with torch.no_grad():
        learner.trainer.model.policy.weight.mul_(20.0)
        learner.trainer.model.value.bias.add_(3.0)
    present, ratios = learner.trainer.reevaluated(rollout)
    log_probs = learner.trainer.model(rollout.states.flatten(0, 1))[0].log_softmax(1)
    expected = (log_probs.gather(1, rollout.actions.flatten()[:, None]).view(8, 4) - rollout.log_probs).exp()
    assert (expected > 1.0).any()
    assert torch.allclose(ratios, expected.clamp(max=1.0), atol=1e-5)
    assert torch.allclose(present.values, rollout.values + 3.0, atol=1e-5)
    assert torch.allclose(present.next_values[:-1], present.values[1:], atol=1e-5)
    assert torch.equal(present.next_values[-1], rollout.next_values[-1])  # the learner does not know these states
    assert all(torch.equal(tensor, played[name]) for name, tensor in vars(rollout).items())  # nothing was overwritten
