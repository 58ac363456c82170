"""Snake: moves, food, deaths, starvation, masks and rewards."""

import gymnasium as gym
import numpy as np
import pytest

from examples.snake import DOWN, LEFT, MOVES, RIGHT, UP, Snake
from oracles import boards

RING = [(2, 2), (2, 3), (3, 3), (3, 2)]  # the head is beside the tail
ROUND = [LEFT, UP, RIGHT, DOWN]  # one round through RING


def start(body, food, size=6):
    env = Snake(size)
    env.reset(seed=1, options={"body": body, "food": food})
    return env


def test_a_snake_starves_after_as_many_steps_without_food_as_the_board_has_cells():
    env = start(RING[:3], food=(3, 5))
    for action in ROUND * 8:
        env.step(action)
    assert [env.step(RIGHT)[1] for _ in range(2)] == [0.0, 1.0]  # eats in the 34th step
    env._food = 0
    ends = [env.step(action)[2:4] for action in [UP, LEFT, DOWN, RIGHT] * 9]
    assert ends == [(False, False)] * 35 + [(False, True)]  # terminated and truncated, on a 6 x 6 board


def test_a_snake_that_fills_the_board_wins():
    rows = [[(row, column) for column in range(4)] for row in range(4)]
    path = [*rows[0], *rows[1][::-1], *rows[2], *rows[3][::-1]]
    env = start(path[:-1], food=path[-1], size=4)
    state, reward, terminated, truncated, info = env.step(LEFT)
    assert (reward, terminated, truncated, info["length"]) == (1.0, True, False, 16)
    assert state[0].all()
    assert not state[2].any()


def test_whole_episodes_equal_those_of_the_slow_twin():
    rng, env = np.random.default_rng(1), gym.make("SnakeStepPenalty-v0", size=5).unwrapped
    deaths = foods = 0
    for episode in range(200):
        state, info = env.reset(seed=episode)
        slow = boards.Snake(5, [(2, 0), (2, 1), (2, 2)])
        ended = False
        while not ended:
            assert np.array_equal(state[0], slow.plane())
            assert boards.occupied(state[1]) == slow.body[-1:]
            assert info["length"] == len(slow.body)
            back = MOVES.index(tuple(np.subtract(slow.body[-2], slow.body[-1])))
            assert info["action_mask"].tolist() == [action != back for action in range(4)]
            (food,) = boards.occupied(state[2])
            action = int(rng.integers(4))
            state, reward, terminated, truncated, info = env.step(action)
            lives = slow.move(action, food)
            eats = lives and slow.body[-1] == food
            assert terminated == (not lives)
            assert reward == pytest.approx(float(eats) - terminated - 0.1)
            ended, deaths, foods = terminated or truncated, deaths + terminated, foods + eats
    assert deaths > 100
    assert foods > 50
