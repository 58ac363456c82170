"""The random player, and what both games have in common."""

import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from examples import random_player
from examples.blocks import Blocks
from examples.random_player import play, random_legal
from examples.snake import DOWN, RIGHT, START_LENGTH, UP, Snake
from fakes import Shape, Talkative
from lib.errors import UsageError
from running import start_program

BLOCKS, SNAKE, SNAKE_WITH_PENALTY = IDS = (
    "examples.blocks:Blocks-v0",
    "examples.snake:Snake-v0",
    "examples.snake:SnakeStepPenalty-v0",
)


class LenientBlocks(Blocks):
    """Blocks for gymnasium's checker, which knows no masks: each action is mapped to a legal one."""

    def step(self, action):
        legal = self.action_masks().nonzero()[0]
        return super().step(legal[action % len(legal)])


@pytest.mark.parametrize("env_id", IDS)
def test_gymnasium_s_checker_accepts_the_environment(env_id):
    env = LenientBlocks() if env_id == BLOCKS else gym.make(env_id, disable_env_checker=True).unwrapped
    env.spec = gym.spec(env_id.split(":")[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env)


@pytest.mark.parametrize("env_id", IDS)
def test_a_seed_repeats_its_episodes(env_id):
    first, second, other = (play(gym.make(env_id), 20, seed) for seed in (5, 5, 6))
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["return"], other["return"])


@pytest.mark.parametrize("env_id", IDS)
def test_a_pickled_environment_continues_its_episode(env_id):
    env, rng = gym.make(env_id), np.random.default_rng(2)
    _, info = env.reset(seed=2)
    *_, info = env.step(random_legal(env, info, rng))
    copy = cloudpickle.loads(cloudpickle.dumps(env))
    for _ in range(5):
        action = random_legal(env, info, rng)
        (state, *rest, info), (state_of_copy, *rest_of_copy, _) = env.step(action), copy.step(action)
        assert np.array_equal(state, state_of_copy)
        assert rest == rest_of_copy


def test_blocks_reports_legal_actions_by_a_method_and_snake_in_its_info():
    same_step = AutoresetMode.SAME_STEP
    blocks = SyncVectorEnv([lambda: gym.make(BLOCKS)] * 2, autoreset_mode=same_step)
    assert "action_mask" not in blocks.reset(seed=1)[1]
    assert [mask.shape for mask in blocks.call("action_masks")] == [(243,)] * 2
    snakes = SyncVectorEnv([lambda: gym.make(SNAKE)] * 2, autoreset_mode=same_step)
    assert snakes.reset(seed=1)[1]["action_mask"].tolist() == [[1, 1, 1, 0]] * 2
    assert not snakes.envs[0].has_wrapper_attr("action_masks")


def test_every_legal_action_is_drawn_and_no_other():
    rng = np.random.default_rng(1)
    snake, blocks = Snake(6), Blocks()
    _, info = snake.reset(seed=1, options={"body": [(2, 1), (2, 2)], "food": (0, 0)})
    assert {random_legal(snake, info, rng) for _ in range(50)} == {UP, RIGHT, DOWN}
    checkers = np.indices((9, 9)).sum(axis=0) % 2 == 0
    blocks.reset(seed=1, options={"board": checkers, "pieces": ["#", "##", "##"]})
    assert {random_legal(blocks, {}, rng) for _ in range(500)} == set(np.flatnonzero(~checkers))
    assert {random_legal(gym.make("CartPole-v1"), {}, rng) for _ in range(50)} == {0, 1}


def test_actions_may_start_at_another_number_and_a_mask_may_be_a_list():
    rng = np.random.default_rng(1)
    env = SimpleNamespace(action_space=gym.spaces.Discrete(3, start=7), has_wrapper_attr=lambda name: False)
    assert {random_legal(env, {}, rng) for _ in range(50)} == {7, 8, 9}
    assert {random_legal(env, {"action_mask": [1, 0, 1]}, rng) for _ in range(50)} == {7, 9}


def test_continuous_actions_are_refused():
    with pytest.raises(UsageError, match=r"Box.*; it has to be Discrete"):
        play(gym.make("Pendulum-v1"), 1)


def test_a_truncated_episode_ends(monkeypatch):
    assert play(gym.make(BLOCKS, max_episode_steps=4), 3)["steps"].tolist() == [4, 4, 4]
    monkeypatch.setattr(random_player, "MAX_STEPS", 3)
    assert play(gym.make(BLOCKS), 2)["steps"].tolist() == [3, 3]


def test_a_mask_in_the_observation_is_obeyed():
    assert play(Shape(gym.spaces.Discrete(3), mask="observation"), 2)["steps"].tolist() == [5, 5]


def test_only_numbers_in_the_info_are_averaged():
    assert set(play(Talkative(), 2)) == {"return", "steps"}  # its info holds a text and an array


def test_the_command_prints_the_mean_of_every_result(answer):
    printed = answer(Path("examples/random_player.py"), SNAKE, "--episodes", 20)
    lines = {line.split()[0]: line for line in printed.splitlines()}
    results = play(gym.make(SNAKE), 20)
    assert set(results) == {"return", "steps", "info['length']"}
    for name, values in results.items():
        assert f" mean {values.mean():.3f} " in lines[name]
    assert (results["info['length']"] - START_LENGTH - 1 <= results["return"]).all()


def test_one_episode_has_no_standard_error(answer):
    assert "+-" not in answer(Path("examples/random_player.py"), SNAKE, "--episodes", 1)


OWN_MODULE = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv
gym.register("Own-v0", CartPoleEnv, max_episode_steps=7)
"""


@pytest.mark.slow
def test_a_module_in_the_current_folder_is_found(tmp_path):
    (tmp_path / "own_game.py").write_text(OWN_MODULE)
    program = "import runpy; runpy.run_module('examples.random_player', run_name='__main__', alter_sys=True)"
    output, errors = start_program(program, tmp_path, "--episodes", 5, "own_game:Own-v0").communicate()
    assert "steps            mean 7.000" in output, errors


@pytest.mark.long
def test_an_installed_project_finds_a_module_in_the_current_folder(tmp_path):
    (tmp_path / "own_game.py").write_text(OWN_MODULE)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "examples.random_player", "--episodes", "5", "own_game:Own-v0"]
    played = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "steps            mean 7.000" in played.stdout


def test_a_module_that_does_not_exist_is_named_in_one_line(refused):
    message = refused(Path("examples/random_player.py"), "own_gam:Own-v0")
    assert message.count("\n") == 1
    assert "the module 'own_gam'" in message


def test_the_player_does_not_share_the_environments_random_numbers():
    """A player with the environment's generator would guess every number that the environment draws."""

    class Guess(gym.Env):
        observation_space, action_space = spaces.Box(0.0, 1.0, (1,), np.float32), spaces.Discrete(4)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.steps += 1
            right = action == self.np_random.integers(4)
            return np.zeros(1, np.float32), float(right), self.steps == 100, False, {}

    assert random_player.play(Guess(), 1, seed=3)["return"][0] < 50
