import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes import Catch, Counting
from lib.envs import vector_env
from lib.ppo.fast import FastModel
from lib.ppo.model import Model
from lib.ppo.rollout import Sampler
from lib.system.seeds import hashed_seed
from ppo_setup import Fixed, random_rollout, vectorised

IMAGES = spaces.Box(0, 255, (4, 84, 84), np.uint8)


@pytest.mark.parametrize("truncates", [True, False])
def test_a_rollout_holds_the_steps_and_the_values_of_the_next_states(truncates):
    sampler = Sampler(vectorised(lambda: Counting(3, truncates), 2), Fixed(), steps=4)
    reported_steps = []
    sampler.on_step = reported_steps.append
    played = iter(sampler)
    for states, values, next_values, rewards, ended in (
        ([0, 1, 2, 0], [0, 10, 20, 0], [10, 20, 30, 10], [1, 2, 3, 1], [0, 0, 1, 0]),
        ([1, 2, 0, 1], [10, 20, 0, 10], [20, 30, 10, 20], [2, 3, 1, 2], [0, 1, 0, 0]),
    ):
        rollout = next(played)
        for index in range(2):
            assert rollout.states[:, index, 0].tolist() == states
            assert rollout.values[:, index].tolist() == values
            assert rollout.rewards[:, index].tolist() == rewards
            assert rollout.ended[:, index].tolist() == [bool(end) for end in ended]
            assert rollout.terminated[:, index].tolist() == [bool(end) and not truncates for end in ended]
            follows = ~rollout.terminated[:, index]
            assert rollout.next_values[follows, index].tolist() == [
                value for value, follow in zip(next_values, follows, strict=True) if follow
            ]
        assert rollout.log_probs.tolist() == [[0.0] * 2] * 4
    assert sampler.steps_done == 16
    assert reported_steps == [2] * 8
    assert [(episode.total, episode.length, episode.step) for episode in sampler.pop_episodes()] == [
        *[(6.0, 3, 6)] * 2,
        *[(6.0, 3, 12)] * 2,
    ]
    assert sampler.pop_episodes() == []


def test_images_have_their_channels_last():
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", 2)
    sampler = Sampler(envs, Model(envs.single_observation_space, 6), steps=3, seed=4)
    assert sampler.frame_skip == 4
    rollout = next(iter(sampler))
    assert rollout.states.shape == (3, 2, 84, 84, 4)
    assert rollout.states.dtype == torch.uint8
    twin = vector_env.make_vector_env("PongNoFrameskip-v4", 2)
    states, _ = twin.reset(seed=[hashed_seed(4, 0, 0, index) for index in range(2)])
    for t in range(3):
        assert np.array_equal(rollout.states[t].numpy(), states.transpose(0, 2, 3, 1))
        states, *_ = twin.step(rollout.actions[t].numpy())


def test_noise_differs_between_seeds_environments_and_rollouts():
    def noise_of(seed, rollout_index):
        sampler = Sampler(vectorised(Catch, 2), Fixed(), steps=4, seed=seed)
        sampler.steps_done = rollout_index * 4 * 2
        return sampler._noise()

    drawn = [noise_of(seed, index)[:, env] for seed in (1, 2) for index in (0, 1) for env in (0, 1)]
    for number, noise in enumerate(drawn):
        assert noise.shape == (4, 3)
        assert not any(torch.equal(noise, other) for other in drawn[:number])
    assert torch.equal(noise_of(1, 1), noise_of(1, 1))


def test_values_are_those_of_the_newest_weights_which_are_cast_once_per_rollout():
    envs = vector_env.make_vector_env("fakes:Catch-v0", 2)
    model = FastModel(envs.single_observation_space, 3, torch.bfloat16)
    for _, rollout in zip(range(2), Sampler(envs, model, steps=3, seed=4), strict=False):
        with torch.no_grad():
            for states, values in zip(rollout.states, rollout.values, strict=True):
                assert torch.equal(model(states.movedim(-1, 1))[1], values)
            model.body.third.weight.mul_(-1.5)  # in place, like an optimizer


@pytest.mark.parametrize(("number", "steps"), [(100, range(8)), (23, (0, 2, 4, 6)), (2, (0,))])
def test_some_states_are_those_of_all_environments_at_evenly_spaced_steps(number, steps):
    rollout = random_rollout(8, 3)
    assert torch.equal(rollout.some_states(number), rollout.states[list(steps)].flatten(0, 1))
