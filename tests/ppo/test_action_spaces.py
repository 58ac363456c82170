"""PPO in every action space: from the environment to a checkpoint, an evaluation, and an export."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fakes import ACTION_SPACES
from lib.analysis.trained_agent import TrainedAgent
from lib.envs.vector_env import make_vector_env
from lib.ppo.fast import FastModel
from lib.ppo.rollout import Sampler
from lib.run.episode_player import EpisodePlayer, play_together
from lib.run.policy import SampledPolicy
from ppo_setup import trainer_of
from running import assert_equal_runs, assignments, episodes_of, run_in_parts

IDS = [f"fakes:Match-{name}-v0" for name in [*ACTION_SPACES, "masked"]]
SMALL = assignments("envs=4", "rollout=16", "minibatch=32", "checkpoint_every=64")


@pytest.mark.parametrize("env_id", IDS)
def test_ppo_learns_the_right_action(env_id):
    torch.manual_seed(1)
    envs = make_vector_env(env_id, 8, any_actions=True)
    model = FastModel(envs.single_observation_space, envs.single_action_space)
    sampler = Sampler(envs, model, 16, seed=1)
    trainer = trainer_of(model, torch.optim.Adam(model.parameters(), 1e-2), minibatch=32, gamma=0.5, epochs=4)
    rewards = []
    for _, rollout in zip(range(16), sampler, strict=False):
        rewards.append(rollout.rewards.mean().item())
        trainer.update(rollout)
    assert np.mean(rewards[-3:]) > 0.7
    assert np.mean(rewards[-3:]) > rewards[0] + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("env_id", [*(pytest.param(env_id, marks=pytest.mark.long) for env_id in IDS[:2]), *IDS[2:]])
def test_a_run_is_resumed_bit_for_bit_and_its_policy_acts_alike_everywhere(answer, tmp_path, env_id):
    script, options = Path("distributed/02_ppo_fast.py"), ("--env-id", env_id, *SMALL)
    one = run_in_parts(script, options, tmp_path / "one", [512])
    two = run_in_parts(script, options, tmp_path / "two", [320, 512])
    assert_equal_runs(one, two)
    actors = Path("distributed/03_ppo_actors.py")
    three = run_in_parts(actors, (*options, "--actors", 2), tmp_path / "three", [320, 512])
    assert [row[:3] for row in episodes_of(three)] == [row[:3] for row in episodes_of(one)]

    for more in ((), ("--sample",), ("--epsilon", 0.5)):
        answer(Path("tools/evaluate.py"), one, "--env-id", env_id, "--episodes", 12, *more)
    agent = TrainedAgent(one, env_id=env_id)
    env = agent.make_env()
    states = np.stack([env.reset(seed=seed)[0] for seed in range(50)])
    match: Any = env.unwrapped
    model = agent.policy.net
    with torch.no_grad():
        parameters = model(torch.from_numpy(states))[0]
    assert np.array_equal(agent.policy(states), model.distribution.played(model.distribution.mode(parameters)).numpy())
    player = EpisodePlayer(env)  # its environment asserts that every action is in its space
    for number, policy in enumerate((agent.policy, SampledPolicy(agent.policy.net), agent.random)):
        play_together(policy, [player], 1, [number], lambda result: None)
    assert all(match.action_space.contains(action) for action in match.played)
    pytest.importorskip("onnxruntime")
    assert "same actions in 1,000 states" in answer(Path("tools/export.py"), one, "--env-id", env_id)
