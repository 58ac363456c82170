"""Connect Four: where discs fall, who wins, which columns are legal, and what is shown."""

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.connect_four import CELL_BITS, COLUMNS, OTHER, OWN, ROWS, ConnectFour, has_four
from lib.envs.single_env import make_env
from lib.run.episode_player import EpisodePlayer
from lib.run.policy import RandomPolicy


def start(columns=(), opponent=()):
    """Return an environment in which the players have dropped these discs in turn, the agent first, and the outcome."""
    env = ConnectFour()
    env.reset(seed=1)
    env._discs = [0, 0]
    replies = iter(opponent)
    env._reply = lambda: env._drop(1, next(replies))
    outcome = None
    for column in columns:
        outcome = env.step(column)
    return env, outcome


def slow_has_four(board):
    return any(
        all(
            0 <= row + n * down < ROWS
            and 0 <= column + n * right < COLUMNS
            and board[row + n * down, column + n * right]
            for n in range(4)
        )
        for row, column in np.ndindex(ROWS, COLUMNS)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
    )


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=ROWS * COLUMNS, max_size=ROWS * COLUMNS))
def test_four_in_a_line_are_found_as_by_looking_at_every_line(cells):
    board = np.reshape(cells, (ROWS, COLUMNS))
    assert has_four(sum(1 << int(bit) for bit in CELL_BITS[board])) == slow_has_four(board)


@pytest.mark.parametrize(
    ("own", "other", "reward"),
    [([0, 0, 0, 0], [1, 1, 1], 1.0), ([0, 1, 2, 3], [0, 1, 2], 1.0), ([0, 0, 1, 6], [2, 3, 4, 5], -1.0)],
    ids=["a column", "a row", "the opponent's row"],
)
def test_four_in_a_line_win(own, other, reward):
    _, outcome = start(own, other)
    assert outcome[1:4] == (reward, True, False)


def test_a_full_column_is_illegal():
    env, _ = start([2, 2, 2], opponent=[2, 2, 2])
    assert env.action_masks().tolist() == [True, True, False, True, True, True, True]
    with pytest.raises(ValueError, match="column 2 is full"):
        env.step(2)


def test_a_full_board_without_a_line_is_a_draw():
    env, _ = start()
    order = [0, 2, 1, 3, 4, 6]  # pairs of columns, whose discs alternate in twos
    for left, right in zip(order[::2], order[1::2], strict=True):
        for _ in range(ROWS // 2):
            for player, column in ((0, left), (1, right), (1, left), (0, right)):
                assert not env._drop(player, column)
    for _ in range(ROWS // 2):
        for player in (0, 1):
            assert not env._drop(player, 5)
    assert env._full()
    assert not env.action_masks().any()


def test_gymnasium_accepts_it_and_random_play_is_even():
    check_env(ConnectFour(), skip_render_check=True)
    env = make_env("ConnectFour-v0")
    player, policy = EpisodePlayer(env), RandomPolicy(env)
    returns = [player.play(policy, 0, number).total for number in range(1000)]
    assert set(returns) <= {-1.0, 0.0, 1.0}
    assert abs(np.mean(returns)) < 0.1


def test_the_picture_shows_both_players_discs():
    env = ConnectFour(render_mode="rgb_array")
    env.reset(seed=1)
    state, *_ = env.step(0)
    frame = env.render()
    assert frame.shape == (96, 112, 3)
    centres = frame[8::16, 8::16]
    assert state.any(axis=(1, 2)).all()
    assert np.array_equal((centres == OWN).all(axis=-1), state[0] == 1)
    assert np.array_equal((centres == OTHER).all(axis=-1), state[1] == 1)
    assert ConnectFour().render() is None
