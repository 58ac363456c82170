"""Connect Four: where discs fall, who wins, which columns are legal, and what is shown."""

import numpy as np
import pytest

from examples.connect_four import COLUMNS, ROWS, ConnectFour


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


def test_whole_games_follow_the_rules_and_random_play_is_even():
    rng, env, rewards, refused = np.random.default_rng(1), ConnectFour(), [], 0
    for seed in range(120):
        state, _ = env.reset(seed=seed)
        assert state.sum() in (0, 1)  # the opponent may begin
        ended = False
        while not ended:
            legal = env.action_masks()
            assert legal.tolist() == (state.sum(0)[0] == 0).tolist()
            if not legal.all():
                refused += 1
                with pytest.raises(ValueError, match="is full"):
                    env.step(legal.argmin())
            column = rng.choice(legal.nonzero()[0])
            before, heights = state, state.sum((0, 1))
            state, reward, ended, truncated, _ = env.step(column)
            own, reply = np.argwhere(state[0] > before[0]), np.argwhere(state[1] > before[1])
            heights[column] += 1
            assert own.tolist() == [[ROWS - heights[column], column]]
            won, lost = map(slow_has_four, state)
            full = state.sum() == ROWS * COLUMNS
            assert (reward, ended, truncated) == (float(won) - lost, won or lost or full, False)
            assert len(reply) == (not won and heights.sum() < ROWS * COLUMNS)
            for row, other in reply:
                assert row == ROWS - 1 - heights[other]
        rewards.append(reward)
    assert abs(np.mean(rewards)) < 0.2
    assert refused > 5
