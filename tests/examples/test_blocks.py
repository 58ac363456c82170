"""Blocks: placing, clearing, legal actions, the end of the game and what is shown."""

from functools import partial

import gymnasium as gym
import numpy as np
import pytest

from examples import blocks
from examples.blocks import Blocks
from lib.envs.single_env import make_env
from lib.run.episode_player import EpisodePlayer
from lib.run.policy import RandomPolicy
from oracles import boards


def board(*rows):
    """Build a board from rows of "#" and "."; missing rows at the bottom are empty."""
    return np.array([[cell == "#" for cell in row] for row in rows] + [[False] * 9] * (9 - len(rows)))


CHECKERS = board(*(["#.#.#.#.#", ".#.#.#.#."] * 5)[:9])


def start(full, *pieces):
    env = Blocks()
    env.reset(seed=1, options={"board": full, "pieces": pieces})
    return env


def at(piece, row, column):
    return 81 * piece + 9 * row + column


def cells(plane):
    return [tuple(cell) for cell in np.argwhere(plane).tolist()]


def test_a_piece_is_placed_where_the_action_says():
    env = start(board(), "##/#.", "#", "#")
    state, reward, terminated, truncated, _ = env.step(at(0, 7, 3))
    assert cells(state[0]) == [(7, 3), (7, 4), (8, 3)]
    assert not state[1].any()
    assert cells(state[2]) == [(0, 0)]
    assert (reward, terminated, truncated) == (0.0, False, False)


@pytest.mark.parametrize(
    ("full", "piece", "action", "reward", "left"),
    [
        (["#........", "#######.."], "##", at(0, 1, 7), 1.0, [(0, 0)]),
        ([*["....#...."] * 8, "...#....."], "#", at(0, 8, 4), 1.0, [(8, 3)]),
        (["###......", "###......", "##.######"], "#", at(0, 2, 2), 2.0, []),
    ],
    ids=["row", "column", "row and box"],
)
def test_full_lines_are_cleared_together(full, piece, action, reward, left):
    state, reward_of_step, *_ = start(board(*full), piece, "#", "#").step(action)
    assert reward_of_step == reward
    assert cells(state[0]) == left


def test_nine_cells_that_are_no_line_stay():
    state, reward, *_ = start(board(".###.....", ".###.....", ".##......"), "#", "#", "#").step(at(0, 2, 3))
    assert reward == 0.0
    assert state[0].sum() == 9


def test_new_pieces_are_drawn_when_all_three_are_placed():
    env = start(board(), "#", "#", "#")
    for move, left in enumerate([2, 1, 3]):
        state, *_ = env.step(at(move, 4, 2 * move))
        assert state[1:4].any(axis=(1, 2)).sum() == left


@pytest.mark.parametrize(
    "action",
    [at(0, 0, 0), at(0, 0, 8), at(0, 8, 4), 243, -1],
    ids=["on a full cell", "beyond the right edge", "beyond the lower edge", "no piece", "negative"],
)
def test_an_illegal_action_is_refused_and_changes_nothing(action):
    env = start(board(".#......."), "##/##", "#", "#")
    before = env.action_masks()
    with pytest.raises(ValueError, match=rf"action {action}, .* illegal.* \[62, 80, 80\] legal"):
        env.step(action)
    assert np.array_equal(env.action_masks(), before)


def test_a_piece_can_be_placed_only_once():
    env = start(board(), "#", "##", "#")
    env.step(at(0, 0, 0))
    assert not env.action_masks()[:81].any()
    with pytest.raises(ValueError, match="piece 0 at row 4, column 4, is illegal"):
        env.step(at(0, 4, 4))


def test_the_game_ends_when_no_piece_fits():
    env = start(CHECKERS, "#", "##", "##")
    _, _, terminated, truncated, _ = env.step(at(0, 0, 1))
    assert (terminated, truncated) == (True, False)
    assert not env.action_masks().any()


def test_the_game_goes_on_while_one_piece_fits():
    env = start(CHECKERS, "#", "#", "##")
    assert not env.step(at(0, 0, 1))[2]
    assert env.step(at(1, 0, 3))[2]


def test_the_game_goes_on_if_a_cleared_line_makes_room():
    env = start(np.vstack([[1] * 8 + [0], CHECKERS[1:]]), "#", "##", "##")
    assert env.step(at(0, 0, 8))[1:3] == (1.0, False)
    assert env.action_masks()[81:162].nonzero()[0].tolist() == list(range(8))


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


def test_all_pieces_are_different_and_all_are_drawn():
    env, seen = Blocks(), set()
    for seed in range(100):
        state, _ = env.reset(seed=seed)
        seen.update(tuple(cells(plane)) for plane in state[1:4])
    assert seen == {tuple(boards.cells(piece)) for piece in blocks.PIECES}
    assert len(seen) == len(blocks.PIECES)


def test_an_episode_is_truncated_after_1000_moves():
    assert gym.spec("Blocks-v0").max_episode_steps == 1000


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
    assert gym.make("Blocks-v0").unwrapped.render() is None


def test_ten_times_the_random_player_can_be_reached():
    env = make_env("examples.blocks:Blocks-v0")
    player, policy = EpisodePlayer(env), RandomPolicy(env)
    at_random = [player.play(policy, 0, number).total for number in range(150)]
    assert np.mean([look_ahead(seed) for seed in range(2)]) > 10 * np.mean(at_random)


def look_ahead(seed):
    """Keep the board empty and smooth by looking one move ahead. Return the lines cleared, counted up to 30."""
    env = Blocks()
    (state, _), lines, ended = env.reset(seed=seed), 0.0, False
    while not ended and lines < 30:
        moves = env.action_masks().nonzero()[0].tolist()
        state, reward, ended, *_ = env.step(min(moves, key=partial(untidiness, state)))
        lines += reward
    return lines


def untidiness(state, action):
    """Count the full cells after an action, and the edges between full and empty cells."""
    piece = "/".join("".join(".#"[int(cell)] for cell in row) for row in state[1 + action // 81])
    after, _ = boards.place(state[0], piece, action % 81 // 9, action % 9)
    return 3 * after.sum() + np.abs(np.diff(after, axis=0)).sum() + np.abs(np.diff(after, axis=1)).sum()
