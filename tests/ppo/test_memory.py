"""PPO with a memory: what it remembers, and that nothing else changes with it."""

from pathlib import Path

import numpy as np
import pytest
import torch

from lib.envs.single_env import make_env
from lib.envs.vector_env import make_vector_env
from lib.errors import UsageError
from lib.ppo.memory import MemoryModel, MemorySampler, MemoryTrainer
from lib.run.episode_player import EpisodePlayer, play_together
from lib.run.policy import GreedyPolicy
from ppo_setup import settings_of
from running import assert_equal_runs, assignments, run_in_parts

SCRIPT = Path("distributed/04_ppo_memory.py")


def parts(env_id="fakes:Recall-v0", num_envs=8, steps=8, **settings):
    torch.manual_seed(2)
    envs = make_vector_env(env_id, num_envs, any_actions=True)
    model = MemoryModel(envs.single_observation_space, envs.single_action_space)
    sampler = MemorySampler(envs, model, steps, seed=3)
    options = {"minibatch": 2 * steps, "gamma": 0.9, "epochs": 4, "entropy": 0.01} | settings
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    return model, sampler, MemoryTrainer(model, optimizer, settings_of(**options))


def test_what_was_shown_at_the_start_of_an_episode_decides_the_right_action_at_its_end():
    """The best return without a memory is 0.5."""
    _, sampler, trainer = parts(num_envs=16, steps=4, minibatch=32, kl_target=0.01, learning_rate_max=5e-3)
    for _, rollout in zip(range(30), sampler, strict=False):
        trainer.update(rollout)
    assert np.mean([episode.total for episode in sampler.pop_episodes()][-100:]) > 0.9


def test_an_update_sees_what_the_agent_saw():
    """Log-probabilities and values of a rollout that begins and ends within episodes are those of acting."""
    model, sampler, trainer = parts("fakes:Recall-v0", steps=6)
    model.normalise_by(torch.rand(16, 2))
    rollouts = iter(sampler)
    next(rollouts)
    rollout = next(rollouts)
    assert rollout.ended.any()
    assert not rollout.starts.all()
    model.body.running = False
    trainer.learn = lambda transitions: {}  # type: ignore[method-assign]
    trainer.update(rollout)
    with torch.no_grad():
        for indices in trainer.minibatches(len(rollout), shuffled=True):
            parameters, values = trainer.outputs(rollout.states.flatten(0, 1)[indices], indices)
            actions = rollout.actions.flatten(0, 1)[indices]
            log_probs, _ = model.distribution.evaluate(parameters, actions)
            assert torch.allclose(log_probs, rollout.log_probs.flatten()[indices], atol=1e-5)
            assert torch.allclose(values, rollout.values.flatten()[indices], atol=1e-5)
    assert torch.cat(list(trainer.minibatches(len(rollout)))).sort().values.tolist() == list(range(len(rollout)))


def test_a_truncated_episode_is_bootstrapped_with_its_memory_and_the_next_one_starts_without():
    model, sampler, _ = parts("fakes:Match-Bits-v0", num_envs=2, steps=8)  # truncated after 8 steps
    model.normalise_by(torch.rand(16, 2))
    seen = []
    values = sampler.values

    def watched(states, truncated=None):
        seen.append((states.clone(), sampler.memory.clone()))
        return values(states, truncated)

    sampler.values = watched  # type: ignore[method-assign]
    rollout = next(iter(sampler))
    (last_states, memory), _ = seen
    expected = model.remember(last_states, memory, torch.zeros(1, 2, dtype=torch.bool))[1]
    assert torch.allclose(rollout.next_values[-1], expected)
    assert sampler.starts.all()


def test_gradients_flow_through_the_sequence_up_to_the_start_of_an_episode():
    model, _, _ = parts()
    states = torch.rand(5, 2, requires_grad=True)
    starts = torch.tensor([[True], [False], [True], [False], [False]])
    _, values, _ = model.remember(states, model.first_memory(1), starts)
    values[4].backward()
    assert [bool(each) for each in states.grad.abs().sum(1)] == [False, False, True, True, True]  # type: ignore[union-attr]


def test_episodes_that_are_played_together_have_memories_of_their_own():
    model, _, _ = parts()
    torch.nn.init.normal_(model.policy.weight)
    alone, together = [], []
    play_together(GreedyPolicy(model), [EpisodePlayer(make_env("fakes:Recall-v0"))], 1, range(5), alone.append)
    players = [EpisodePlayer(make_env("fakes:Recall-v0")) for _ in range(5)]
    play_together(GreedyPolicy(model), players, 1, range(5), together.append)
    assert sorted(together) == alone


def test_a_minibatch_has_to_hold_whole_sequences():
    _, sampler, trainer = parts(minibatch=12)
    with pytest.raises(UsageError, match="does not hold whole sequences of 8; --set minibatch has to be a multiple"):
        trainer.update(next(iter(sampler)))


@pytest.mark.slow
def test_a_stopped_and_resumed_run_equals_an_uninterrupted_one(answer, refused, tmp_path):
    env_id = "fakes:Match-masked-v0"
    options = ("--env-id", env_id, *assignments("envs=4", "rollout=10", "minibatch=20", "checkpoint_every=40"))
    one = run_in_parts(SCRIPT, options, tmp_path / "one", [400])
    two = run_in_parts(SCRIPT, options, tmp_path / "two", [240, 400])
    assert_equal_runs(one, two)
    answer(Path("tools/evaluate.py"), one, "--env-id", env_id, "--episodes", 4)
    assert "memory cannot be exported" in refused(Path("tools/export.py"), one, "--env-id", env_id)
