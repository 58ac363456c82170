"""Frame stacks: equal to gymnasium's, with frames that successive states share."""

import gymnasium as gym
import numpy as np
import pytest
import torch

import fakes
from lib.envs.frames import FrameStack
from lib.envs.single_env import make_env


def test_stacks_equal_gymnasiums_and_share_their_frames():
    ours, theirs = FrameStack(fakes.Catch(9)), gym.wrappers.FrameStackObservation(fakes.Catch(9), 4)
    states = []
    for episode in range(100):  # 700 frames, more than two strips of memory hold
        states.append((ours.reset(seed=episode)[0], theirs.reset(seed=episode)[0]))
        for step in range(6):
            states.append((ours.step(step % 3)[0], theirs.step(step % 3)[0]))
    for state, expected in states:  # later states have overwritten none of them
        assert np.array_equal(state, expected)
    first, second = np.asarray(states[1][0]), np.asarray(states[2][0])
    assert np.shares_memory(first[1:], second[:-1])
    assert not np.shares_memory(first, np.array(states[1][0], copy=True))


def test_an_array_of_a_state_cannot_change_other_states_and_is_not_copied_silently():
    state, _ = make_env("fakes:Catch-v0").reset(seed=0)
    array = np.asarray(state)
    assert (state.shape, state.dtype, len(state)) == (array.shape, array.dtype, 4) == ((4, 84, 84), np.uint8, 4)
    assert np.asarray(state, dtype=np.float32).dtype == np.float32
    assert np.array_equal(state[1:, 3], array[1:, 3])
    assert np.array_equal(torch.as_tensor(state), array)
    with pytest.raises(ValueError, match="read-only"):
        array[:] = 0
    np.array(state)[:] = 0
    assert np.array(state, copy=False).any()
    with pytest.raises(ValueError, match="copy"):
        np.array(state, np.float32, copy=False)
