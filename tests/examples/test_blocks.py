import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from examples import blocks, snake
from examples.blocks import Blocks
from examples.random_player import play, random_legal
from examples.snake import DOWN, LEFT, RIGHT, UP, Snake
from oracles import boards

IDS = ["examples.blocks:Blocks-v0", "examples.snake:Snake-v0", "examples.snake:SnakeStepPenalty-v0"]


def board(*rows):
    """From rows of "#" and "."; those left out at the bottom are empty."""
    return np.array([[cell == "#" for cell in row] for row in rows] + [[False] * 9] * (9 - len(rows)))


def dealt(given, *pieces):
    env = Blocks()
    env.reset(seed=1, options={"board": given, "pieces": pieces})
    return env


def at(piece, row, column):
    return 81 * piece + 9 * row + column


def cells(plane):
    return [tuple(cell) for cell in np.argwhere(plane).tolist()]


def hatched(body, food=(0, 0), size=6, **rewards):
    env = Snake(size, **rewards)
    _, info = env.reset(seed=1, options={"body": body, "food": food})
    return env, info


# Blocks


def test_a_placed_piece_lies_where_the_action_says():
    env = dealt(board(), "##/#.", "#", "#")
    state, reward, terminated, truncated, _ = env.step(at(0, 7, 3))
    assert cells(state[0]) == [(7, 3), (7, 4), (8, 3)]
    assert not state[1].any()
    assert cells(state[2]) == [(0, 0)]
    assert (reward, terminated, truncated) == (0.0, False, False)


def test_a_full_row_vanishes():
    env = dealt(board("#........", "#######.."), "##", "#", "#")
    state, reward, *_ = env.step(at(0, 1, 7))
    assert reward == 1.0
    assert cells(state[0]) == [(0, 0)]


def test_a_full_column_vanishes():
    env = dealt(board(*["....#...."] * 8, "...#....."), "#", "#", "#")
    state, reward, *_ = env.step(at(0, 8, 4))
    assert reward == 1.0
    assert cells(state[0]) == [(8, 3)]


def test_a_row_and_a_box_at_once_are_two_lines_and_their_common_cells_count_for_both():
    env = dealt(board("###......", "###......", "##.######"), "#", "#", "#")
    state, reward, *_ = env.step(at(0, 2, 2))
    assert reward == 2.0
    assert not state[0].any()


def test_nine_cells_that_are_no_line_stay():
    env = dealt(board(".###.....", ".###.....", ".##......"), "#", "#", "#")
    state, reward, *_ = env.step(at(0, 2, 3))
    assert reward == 0.0
    assert state[0].sum() == 9


def test_three_new_pieces_come_when_all_three_are_placed_and_not_before():
    env = dealt(board(), "#", "#", "#")
    for move, left in enumerate([2, 1, 3]):
        state, *_ = env.step(at(move, 4, 2 * move))
        assert state[1:4].any(axis=(1, 2)).sum() == left


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (at(0, 0, 0), "on a placed one"),
        (at(0, 0, 8), "beyond the right edge"),
        (at(0, 8, 4), "beyond the lower edge"),
        (243, "no such piece"),
        (-1, "no such piece"),
    ],
)
def test_an_illegal_action_is_refused_and_changes_nothing(action, why):
    env = dealt(board(".#......."), "##/##", "#", "#")
    before = env.action_masks()
    with pytest.raises(ValueError, match=rf"action {action}, .* is illegal; .* \[62, 80, 80\] places"):
        env.step(action)
    assert np.array_equal(env.action_masks(), before)


def test_a_piece_is_placed_once():
    env = dealt(board(), "#", "##", "#")
    env.step(at(0, 0, 0))
    assert not env.action_masks()[:81].any()
    with pytest.raises(ValueError, match="place piece 0 at row 4, column 4, is illegal"):
        env.step(at(0, 4, 4))


CHECKERS = board(*(["#.#.#.#.#", ".#.#.#.#."] * 5)[:9])


def test_the_game_ends_when_no_piece_on_offer_fits():
    env = dealt(CHECKERS, "#", "##", "##")
    _, _, terminated, truncated, _ = env.step(at(0, 0, 1))
    assert terminated
    assert not truncated
    assert not env.action_masks().any()


def test_the_game_goes_on_while_one_piece_fits():
    env = dealt(CHECKERS, "#", "#", "##")
    assert not env.step(at(0, 0, 1))[2]
    assert env.step(at(1, 0, 3))[2]


def test_the_game_goes_on_when_a_vanishing_line_makes_room():
    env = dealt(np.vstack([[1] * 8 + [0], CHECKERS[1:]]), "#", "##", "##")
    assert env.step(at(0, 0, 8))[1:3] == (1.0, False)
    assert env.action_masks()[81:162].nonzero()[0].tolist() == list(range(8))


def test_whole_games_are_those_of_the_slow_twin():
    rng, env = np.random.default_rng(3), Blocks()
    lines = 0
    for episode in range(30):
        state, _ = env.reset(seed=episode)
        slow, pieces, terminated = np.zeros((9, 9)), [None] * 3, False
        while not terminated:
            if not any(pieces):
                pieces = [
                    next(piece for piece in blocks.PIECES if boards.cells(piece) == cells(at)) for at in state[1:4]
                ]
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
    assert lines > 20  # or it says nothing about them


def test_all_pieces_are_drawn_and_no_two_are_the_same():
    env, seen = Blocks(), set()
    for seed in range(100):
        state, _ = env.reset(seed=seed)
        seen.update(tuple(cells(plane)) for plane in state[1:4])
    assert seen == {tuple(boards.cells(piece)) for piece in blocks.PIECES}
    assert len(seen) == len(blocks.PICTURES.split())


def test_blocks_is_truncated_after_1000_moves():
    assert gym.spec("Blocks-v0").max_episode_steps == 1000


# Snake


def test_a_snake_moves_and_its_tail_follows():
    env, info = hatched([(2, 1), (2, 2), (2, 3)])
    state, reward, terminated, truncated, info = env.step(DOWN)
    assert state[0, 2, 2:4] * 3 == pytest.approx([1, 2])
    assert state[0, 3, 3] == 1.0
    assert cells(state[0]) == [(2, 2), (2, 3), (3, 3)]
    assert cells(state[1]) == [(3, 3)]
    assert cells(state[2]) == [(0, 0)]
    assert (reward, terminated, truncated, info["length"]) == (0.0, False, False, 3)


def test_a_snake_eats_and_grows():
    env, _ = hatched([(2, 1), (2, 2), (2, 3)], food=(2, 4))
    state, reward, terminated, _, info = env.step(RIGHT)
    assert cells(state[0]) == [(2, 1), (2, 2), (2, 3), (2, 4)]
    assert (reward, terminated, info["length"]) == (1.0, False, 4)
    assert len(cells(state[2])) == 1
    assert not (state[0] * state[2]).any()
    state, *_ = env.step(UP)
    assert cells(state[0]) == [(1, 4), (2, 2), (2, 3), (2, 4)]


@pytest.mark.parametrize(
    ("body", "action"),
    [
        ([(0, 1), (0, 2)], UP),
        ([(2, 4), (2, 5)], RIGHT),
        ([(4, 3), (5, 3)], DOWN),
        ([(2, 1), (2, 0)], LEFT),
    ],
)
def test_a_snake_dies_of_a_wall_also_with_food_behind_it(body, action):
    row, column = body[-1]
    food = {UP: (5, 2), RIGHT: (3, 0), DOWN: (0, 3), LEFT: (1, 5)}[action]  # where a cell's number might wrap around
    env, _ = hatched(body, food)
    state, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["length"]) == (-1.0, True, False, 2)
    assert cells(state[1]) == [(row, column)]
    assert sorted(cells(state[0])) == sorted(body)


RING = [(2, 2), (2, 3), (3, 3), (3, 2)]  # the head beside the tail


def test_a_snake_dies_of_itself():
    env, _ = hatched([(1, 2), *RING])
    assert env.step(UP)[1:3] == (-1.0, True)


def test_a_snake_may_go_where_its_tail_just_leaves():
    env, _ = hatched(RING)
    state, reward, terminated, *_ = env.step(UP)
    assert (reward, terminated) == (0.0, False)
    assert sorted(cells(state[0])) == RING[:2] + RING[:1:-1]
    assert cells(state[1]) == [(2, 2)]


@pytest.mark.parametrize(
    ("body", "mask"),
    [
        ([(3, 2), (2, 2)], [1, 1, 0, 1]),
        ([(2, 1), (2, 2)], [1, 1, 1, 0]),
        ([(1, 2), (2, 2)], [0, 1, 1, 1]),
        ([(2, 3), (2, 2)], [1, 0, 1, 1]),
    ],
)
def test_the_mask_forbids_the_neck_and_who_goes_there_goes_straight_on(body, mask):
    env, info = hatched(body)
    assert info["action_mask"].tolist() == mask
    assert info["action_mask"].dtype == np.int8
    state, _, terminated, _, info = env.step(mask.index(0))
    assert not terminated
    assert info["action_mask"].tolist() == mask
    assert cells(state[1]) == [tuple(2 * np.subtract(body[1], body[0]) + body[0])]


def test_a_snake_starves_after_as_many_steps_as_the_board_has_cells():
    env, _ = hatched(RING[:3])
    ends = [env.step(action)[2:4] for action in [LEFT, UP, RIGHT, DOWN] * 9]
    assert ends == [(False, False)] * 35 + [(False, True)]


def test_a_snake_that_eats_begins_to_starve_anew():
    env, _ = hatched(RING[:3], food=(3, 5))
    for _ in range(8):
        for action in [LEFT, UP, RIGHT, DOWN]:
            env.step(action)
    assert [env.step(RIGHT)[1] for _ in range(2)] == [0.0, 1.0]  # its 34th step
    env._food = 0
    ends = [env.step(action)[2:4] for action in [UP, LEFT, DOWN, RIGHT] * 9]
    assert ends == [(False, False)] * 35 + [(False, True)]


def test_a_snake_that_fills_the_board_has_won():
    rows = [[(row, column) for column in range(4)] for row in range(4)]
    path = [*rows[0], *rows[1][::-1], *rows[2], *rows[3][::-1]]
    env, _ = hatched(path[:-1], food=path[-1], size=4)
    state, reward, terminated, truncated, info = env.step(LEFT)
    assert (reward, terminated, truncated, info["length"]) == (1.0, True, False, 16)
    assert state[0].all()
    assert not state[2].any()


def test_whole_lives_are_those_of_the_slow_twin():
    rng, env = np.random.default_rng(1), Snake(5)
    deaths = foods = 0
    for episode in range(200):
        state, info = env.reset(seed=episode)
        slow = boards.Snake(5, [(2, 0), (2, 1), (2, 2)])
        ended = False
        while not ended:
            assert np.array_equal(state[0], slow.plane())
            assert cells(state[1]) == slow.body[-1:]
            assert info["length"] == len(slow.body)
            (food,) = cells(state[2])
            action = int(rng.integers(4))
            state, reward, terminated, truncated, info = env.step(action)
            lives = slow.move(action, food)
            eats = lives and slow.body[-1] == food
            assert terminated == (not lives)
            assert reward == float(eats) - terminated
            ended, deaths, foods = terminated or truncated, deaths + terminated, foods + eats
    assert deaths > 100
    assert foods > 50


def test_a_step_penalty_pays_for_suicide():
    def total(env_id, actions):
        env, rewards = gym.make(env_id), 0.0
        env.reset(seed=1, options={"food": (0, 0)})
        for action in actions:
            _, reward, terminated, truncated, _ = env.step(action)
            rewards += reward
            if terminated or truncated:
                return rewards

    straight, rounds = [RIGHT] * 9, [UP, LEFT, DOWN, RIGHT] * 26
    assert total("Snake-v0", straight) == -1.0
    assert total("Snake-v0", rounds) == 0.0
    assert total("SnakeStepPenalty-v0", straight) == pytest.approx(-1.5)
    assert total("SnakeStepPenalty-v0", rounds) == pytest.approx(-10.0)


def test_a_board_without_room_is_refused():
    with pytest.raises(ValueError, match="size 3 is too small; take 4 or more"):
        Snake(3)


# Both


class Lenient(Blocks):
    """Blocks for a checker that knows of no masks: any action is some legal one."""

    def step(self, action):
        legal = self.action_masks().nonzero()[0]
        return super().step(legal[action % len(legal)])


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_finds_nothing_to_complain_about(env_id):
    env = Lenient() if "Blocks" in env_id else gym.make(env_id, disable_env_checker=True).unwrapped
    env.spec = gym.spec(env_id.split(":")[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@pytest.mark.parametrize("env_id", IDS)
def test_an_episode_comes_back_with_its_seed(env_id):
    first, second, other = (play(gym.make(env_id), 20, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["return"], other["return"])


@pytest.mark.parametrize("env_id", IDS)
def test_an_environment_in_the_middle_of_an_episode_can_be_sent_elsewhere(env_id):
    env = gym.make(env_id)
    _, info = env.reset(seed=2)
    *_, info = env.step(random_legal(env, info, np.random.default_rng(2)))
    copy = cloudpickle.loads(cloudpickle.dumps(env))
    rng = np.random.default_rng(3)
    for _ in range(5):
        action = random_legal(env, info, rng)
        (state, *rest, info), (other, *others, _) = env.step(action), copy.step(action)
        assert np.array_equal(state, other)
        assert rest == others


def test_a_picture_of_blocks_shows_the_board_and_the_pieces():
    env = gym.make(IDS[0], render_mode="rgb_array")
    env.reset(seed=1, options={"board": board("..#......"), "pieces": ["#", "##/#.", "##"]})
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((192, 144, 3), np.uint8)
    shown = picture[8:144:16, 8:144:16]
    assert cells((shown == blocks.PLACED).all(axis=-1)) == [(0, 2)]
    shelf = picture[144 + 4 :: 8, 4::8]
    assert cells((shelf == blocks.PIECE).all(axis=-1)) == [(1, 1), (1, 7), (1, 8), (1, 13), (1, 14), (2, 7)]
    assert np.array_equal(picture, env.render())
    env.step(at(0, 8, 8))
    assert (env.render()[8 * 16 + 8, 8 * 16 + 8] == blocks.PLACED).all()
    assert gym.make(IDS[0]).unwrapped.render() is None


def test_a_picture_of_snake_shows_the_snake_and_its_food():
    env = gym.make(IDS[1], render_mode="rgb_array")
    env.reset(seed=1, options={"body": [(4, 4), (4, 5), (3, 5)], "food": (9, 0)})
    picture = env.render()
    assert (picture.shape, picture.dtype) == ((160, 160, 3), np.uint8)
    shown = picture[8::16, 8::16]
    assert cells((shown == snake.HEAD).all(axis=-1)) == [(3, 5)]
    assert cells((shown == snake.FOOD).all(axis=-1)) == [(9, 0)]
    assert cells((shown != snake.GROUND).any(axis=-1)) == [(3, 5), (4, 4), (4, 5), (9, 0)]
    assert np.array_equal(picture, env.render())
    env.step(UP)
    assert (env.render()[2 * 16 + 8, 5 * 16 + 8] == snake.HEAD).all()
    assert gym.make(IDS[1]).unwrapped.render() is None


def test_each_says_in_its_own_way_what_is_legal():
    masks = SyncVectorEnv([lambda: gym.make(IDS[0])] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    masks.reset(seed=1)
    assert [mask.shape for mask in masks.call("action_masks")] == [(243,)] * 2
    told = SyncVectorEnv([lambda: gym.make(IDS[1])] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    assert told.reset(seed=1)[1]["action_mask"].tolist() == [[1, 1, 1, 0]] * 2
    assert not hasattr(Snake, "action_masks")
    assert "action_mask" not in gym.make(IDS[0]).reset()[1]


def test_the_goals_can_be_reached():
    """Ten times the random player, and a length of ten, by players that look one move ahead."""
    lines = [lookahead(seed) for seed in range(4)]
    assert np.mean(lines) > 10 * play(Blocks(), 300)["return"].mean()
    assert np.mean([hunt(seed) for seed in range(10)]) > 10


def lookahead(seed):
    """Lines that a player clears, 50 or more at most, who keeps the board empty and smooth."""
    env = Blocks()
    (state, _), total, ended = env.reset(seed=seed), 0.0, False
    while not ended and total < 50:
        moves = env.action_masks().nonzero()[0].tolist()
        state, reward, ended, *_ = env.step(min(moves, key=partial(untidiness, state)))
        total += reward
    return total


def untidiness(state, action):
    """Of a board after an action: the cells that are full, and how often full and empty ones meet."""
    piece = "/".join("".join(".#"[int(cell)] for cell in row) for row in state[1 + action // 81])
    after, _ = boards.place(state[0], piece, action % 81 // 9, action % 9)
    return 3 * after.sum() + np.abs(np.diff(after, axis=0)).sum() + np.abs(np.diff(after, axis=1)).sum()


def hunt(seed):
    """The length of a snake that goes nearer to its food if it lives so."""
    env = gym.make("Snake-v0")
    (state, info), ended = env.reset(seed=seed), False
    while not ended:
        (head,), (food,) = cells(state[1]), cells(state[2])
        body = np.pad(state[0] > 1 / info["length"] + 1e-6, 1, constant_values=True)
        ways = {}
        for action, (down, right) in enumerate([(-1, 0), (0, 1), (1, 0), (0, -1)]):
            there = head[0] + down, head[1] + right
            ways[action] = (body[there[0] + 1, there[1] + 1], abs(there[0] - food[0]) + abs(there[1] - food[1]))
        state, _, terminated, truncated, info = env.step(min(ways, key=ways.get))
        ended = terminated or truncated
    return info["length"]


def test_the_random_player_takes_each_legal_action_and_no_other():
    rng = np.random.default_rng(1)
    env, info = hatched([(2, 1), (2, 2)])
    assert {random_legal(env, info, rng) for _ in range(50)} == {UP, RIGHT, DOWN}
    env = dealt(CHECKERS, "#", "##", "##")
    assert {random_legal(env, {}, rng) for _ in range(500)} == set(np.flatnonzero(CHECKERS == 0))
    assert {random_legal(gym.make("CartPole-v1"), {}, rng) for _ in range(50)} == {0, 1}


def test_the_random_player_ends_an_episode_that_is_truncated():
    assert play(gym.make(IDS[0], max_episode_steps=4), 3)["steps"].tolist() == [4, 4, 4]


def test_the_random_player_says_what_has_to_be_beaten():
    said = subprocess.run(
        [sys.executable, "-m", "examples.random_player", IDS[1], "--episodes", "20"],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    results = play(gym.make(IDS[1]), 20)
    assert f"return           mean {results['return'].mean():.3f} " in said
    assert f"steps            mean {results['steps'].mean():.3f} " in said
    lengths = results["info['length']"]
    assert f"info['length']   mean {lengths.mean():.3f} " in said
    assert (lengths - snake.START - 1 <= results["return"]).all()
