"""Blocks: placing, clearing, legal actions, the end of the game and what is shown."""

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from examples import blocks
from examples.blocks import Blocks
from lib.analysis.trained_agent import TrainedAgent
from lib.ppo.fast import CellPolicy
from oracles import boards
from running import assignments, folder


def board(*rows):
    """Build a board from rows of "#" and "."; missing rows at the bottom are empty."""
    return np.array([[cell == "#" for cell in row] for row in rows] + [[False] * 9] * (9 - len(rows)))


def at(piece, row, column):
    return 81 * piece + 9 * row + column


def cells(plane):
    return [tuple(cell) for cell in np.argwhere(plane).tolist()]


def test_an_illegal_action_is_refused_and_changes_nothing():
    env = Blocks()
    env.reset(seed=1, options={"board": board(".#......."), "pieces": ["##/##", "#", "#"]})
    before = env.action_masks()
    for action in (at(0, 0, 0), at(0, 0, 8), 243, -1):
        with pytest.raises(ValueError, match=rf"action {action}, .* illegal.* \[62, 80, 80\] legal"):
            env.step(action)
    assert np.array_equal(env.action_masks(), before)


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
    return next(piece for piece in blocks.PIECES if boards.cells(piece) == cells(plane))


def test_the_rendered_frame_shows_the_board_and_the_pieces():
    env = gym.make("Blocks-v0", render_mode="rgb_array")
    env.reset(seed=1, options={"board": board("..#......"), "pieces": ["#", "##/#.", "##"]})
    frame = np.asarray(env.render())
    assert (frame.shape, frame.dtype) == ((192, 144, 3), np.uint8)
    assert cells((frame[8:144:16, 8:144:16] == blocks.PLACED).all(axis=-1)) == [(0, 2)]
    shelf = frame[144 + 4 :: 8, 4::8]
    assert cells((shelf == blocks.PIECE).all(axis=-1)) == [(1, 1), (1, 7), (1, 8), (1, 13), (1, 14), (2, 7)]
    env.step(at(0, 8, 8))
    assert (np.asarray(env.render())[8 * 16 + 8, 8 * 16 + 8] == blocks.PLACED).all()


@pytest.mark.slow
def test_a_trained_agent_is_loaded_with_its_head_for_all_cells(ends, tmp_path):
    size = assignments("envs=2", "rollout=8", "minibatch=16")
    options = ("--env-id", "examples.blocks:Blocks-v0", *size, "--stop-after", 16, "--quiet", "--runs-dir", tmp_path)
    assert ends(Path("distributed/02_ppo_fast.py"), *options)[0] == 0
    agent = TrainedAgent(folder(tmp_path), env_id="examples.blocks:Blocks-v0")
    assert isinstance(agent.policy.net.policy, CellPolicy)
