"""Blocks: placing, clearing, legal actions and the end of the game."""

from pathlib import Path

import numpy as np
import pytest

from examples import blocks
from examples.blocks import Blocks
from lib.analysis.trained_agent import TrainedAgent
from lib.ppo.fast import CellPolicy
from oracles import boards
from running import assignments, folder


def test_whole_games_equal_those_of_the_slow_twin():
    rng, env = np.random.default_rng(3), Blocks()
    lines = 0
    for episode in range(30):
        state, _ = env.reset(seed=episode)
        slow, pieces, terminated = np.zeros((9, 9)), [None] * 3, False
        while not terminated:
            if not any(pieces):
                pieces = [picture_of(plane) for plane in state[1:4]]
            expected = boards.legal(slow, pieces)
            assert np.array_equal(env.action_masks(), expected)
            with pytest.raises(ValueError, match="illegal"):
                env.step(int(expected.argmin()))  # which changes nothing
            action = int(rng.choice(expected.nonzero()[0]))
            piece, row, column = action // 81, action % 81 // 9, action % 9
            slow, cleared = boards.place(slow, pieces[piece], row, column)
            pieces[piece] = None
            state, reward, terminated, *_ = env.step(action)
            assert np.array_equal(state[0], slow)
            row, column = rng.integers(9, size=2)
            box = slow[row // 3 * 3 :, column // 3 * 3 :][:3, :3]
            assert np.allclose(state[4:, row, column], [slow[row].mean(), slow[:, column].mean(), box.mean()])
            assert reward == cleared
            lines += cleared
        assert not env.action_masks().any()
    assert lines > 20


def picture_of(plane):
    return next(piece for piece in blocks.PIECES if boards.cells(piece) == boards.occupied(plane))


@pytest.mark.slow
def test_a_trained_agent_is_loaded_with_its_head_for_all_cells(answer, tmp_path):
    size = assignments("envs=2", "rollout=8", "minibatch=16")
    options = ("--env-id", "examples.blocks:Blocks-v0", *size, "--stop-after", 16, "--quiet", "--runs-dir", tmp_path)
    answer(Path("distributed/02_ppo_fast.py"), *options)
    agent = TrainedAgent(folder(tmp_path), env_id="examples.blocks:Blocks-v0")
    assert isinstance(agent.policy.net.policy, CellPolicy)
