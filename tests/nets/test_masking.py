"""Action masks in networks, targets and action selection: invalid actions are never chosen."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from fakes import MASKED, first_states
from lib import dqn_model
from lib.envs.masks import MaskedBox, append_mask
from lib.envs.single_env import make_env
from lib.nets import noisy
from lib.nets.masking import INVALID, MaskSplitter


@pytest.mark.parametrize("env_id", MASKED)
def test_states_with_a_mask_are_split_into_the_plain_state_and_the_mask(env_id):
    plain = make_env(env_id.replace("-info", "").replace("-method", ""))
    env = make_env(env_id)
    split = MaskSplitter(env.observation_space)
    state, expected = (np.asarray(each.reset(seed=5)[0]) for each in (env, plain))
    for step in range(5):
        observations, allowed = split(torch.from_numpy(state)[None])
        assert observations.shape[1:] == split.shape == plain.observation_space.shape
        assert np.array_equal(observations[0].numpy(), expected)
        assert allowed.tolist() == [[action != step for action in range(5)]]
        action = (step + 1) % 5
        state, expected = (np.asarray(each.step(action)[0]) for each in (env, plain))


@pytest.mark.parametrize(("actions", "channels"), [(11, 1), (12, 1), (13, 2), (61, 6)])
def test_the_mask_of_a_board_fills_as_many_channels_as_it_needs(actions, channels):
    """Chess has 111 channels and 4,672 actions; 73 channels hold its mask."""
    state, mask = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4), np.arange(actions) % 3 == 0
    space = MaskedBox(spaces.Box(0.0, 24.0, (2, 3, 4)), actions)
    masked = append_mask(state, mask)
    assert masked.shape == space.shape == (2 + channels, 3, 4)
    assert space.contains(masked)
    states = torch.from_numpy(np.stack([masked, masked]))
    observations, allowed = MaskSplitter(space)(states)
    assert np.array_equal(observations.numpy(), np.stack([state, state]))
    assert np.array_equal(allowed.numpy(), np.stack([mask, mask]))


@pytest.mark.parametrize("env_id", MASKED)
def test_invalid_actions_have_no_value_in_any_dqn(env_id):
    space, states = first_states(env_id)
    support = (-1.0, 1.0, 11)
    nets = [dqn_model.DQN(space, 5), dqn_model.DQN(space, 5, dueling=True)]
    nets += [dqn_model.DQN(space, 5, noise=noisy.FACTORISED, support=support)]
    nets += [dqn_model.DQN(space, 5, normalise=True)]
    for net in nets:
        values = net(torch.from_numpy(states))
        assert (values[:, 0] == INVALID).all()
        assert (values[:, 1:].abs() < 100).all()
        assert values[:, 1:].std() > 0
    assert (nets[2].predict_best(torch.from_numpy(states)).exp().sum(1) - 1.0).abs().max() < 1e-5
