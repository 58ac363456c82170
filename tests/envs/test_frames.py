"""Frame stacks: shared frames, and states that are views."""

import numpy as np
import pytest
import torch

import fakes  # noqa: F401
from lib.envs.single_env import make_env


def test_successive_states_share_their_frames():
    env = make_env("fakes:Catch-v0")
    first, _ = env.reset(seed=0)
    second = env.step(0)[0]
    assert second.frames[0] is first.frames[1]
    assert np.asarray(second).shape == (4, 84, 84)
    assert np.asarray(second, dtype=np.float32).dtype == np.float32


@pytest.mark.parametrize("tweaked", [False, True])
def test_a_state_can_be_used_like_an_array(tweaked):
    state, _ = make_env("fakes:Catch-v0", tweaked=tweaked).reset(seed=0)
    array = np.asarray(state)
    assert (state.shape, state.dtype, len(state)) == (array.shape, array.dtype, len(array))
    assert np.array_equal(state[1:, 3], array[1:, 3])
    assert np.array_equal(torch.as_tensor(state), array)


def test_contiguous_states_equal_stacked_ones_and_are_views():
    contiguous, plain = (make_env("fakes:Catch-v0", tweaked=choice) for choice in (True, False))
    states = []
    for episode in range(100):  # 700 frames, more than two strips of memory hold
        states.append((contiguous.reset(seed=episode)[0], plain.reset(seed=episode)[0]))
        for step in range(6):
            states.append((contiguous.step(step % 3)[0], plain.step(step % 3)[0]))
    for state, expected in states:  # later states have overwritten none of them
        assert np.array_equal(state, expected)
    first, second = np.asarray(states[1][0]), np.asarray(states[2][0])
    assert np.shares_memory(first[1:], second[:-1])
    assert np.shares_memory(first, np.asarray(states[1][0]))
    assert not np.shares_memory(first, np.array(states[1][0], copy=True))


def test_an_array_of_a_state_cannot_change_other_states_and_is_not_copied_silently():
    contiguous, plain = (make_env("fakes:Catch-v0", tweaked=choice).reset(seed=0)[0] for choice in (True, False))
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(contiguous)[:] = 0
    np.array(contiguous)[:] = 0
    assert np.array(contiguous, copy=False).any()
    for state, dtype in ((plain, np.uint8), (contiguous, np.float32)):
        with pytest.raises(ValueError, match="copy"):
            np.array(state, dtype, copy=False)
