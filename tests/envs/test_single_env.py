"""Making one environment: which ones are refused, and how their actions are numbered."""

import copy
import itertools
from typing import Any
from unittest.mock import Mock

import ale_py
import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, RecordEpisodeStatistics

import fakes
from lib.envs.atari import NOOP_MAX
from lib.envs.checked_env import closing
from lib.envs.single_env import make_env, reward_threshold, space_text
from lib.envs.vector_env import make_vector_env
from lib.errors import EnvironmentFailed, UsageError

GAME = {"game": "pong", "repeat_action_probability": 0.0, "full_action_space": False, "frameskip": 4}


def without_box2d():
    raise gym.error.DependencyNotInstalled("Box2D is not installed")


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("NoSuchGame-v0", "has to register it"),
        ("no_such_module:Game-v0", "No module named 'no_such_module'"),
        (
            "fakes:NoSuchGame-v0",
            "'fakes:NoSuchGame-v0': Environment `NoSuchGame` doesn't exist.* registered Alone-v0, ",
        ),
        ("json:Game-v0", "json registers nothing when it is imported; write MODULE:FUNCTION:ID if a function does it"),
        (
            "fakes:Catch-v0(size=9, wind=2)",
            r"cannot be made with size=9, wind=2: .*'wind'\. --env-arg NAME=VALUE passes",
        ),
        ("NeedsPackage-v0", "'NeedsPackage-v0' needs a package that is missing: No module named 'robots'. Install it"),
        ("Lander-v0", r"^Lander-v0 \(in its constructor\) needs another package: Box2D is not installed"),
        ("Pendulum-v1", r"Box\(-2.0, 2.0, .*or for PPO, such as distributed/02_ppo_fast.py, MultiDiscrete"),
        ("fakes:Heat-v0", "of 4 dimensions"),
        ("Arms-v0", "it has to be Discrete, or for PPO"),
        ("Own-v0", r"Observation<.*<Own-v0>.* wrappers that have no effect here\. .*emulator's screen"),
    ],
)
def test_environments_that_no_script_can_use_are_refused(env_id, message, register):
    register("NeedsPackage-v0", "robots:Arm")
    register("Lander-v0", without_box2d)
    register("Arms-v0", fakes.Match, kwargs={"actions": spaces.Dict(arm=spaces.Discrete(2))})
    register("Own-v0", lambda **game: FrameStackObservation(ale_py.AtariEnv(**game), 4), kwargs=GAME)
    with pytest.raises(UsageError, match=message):
        make_env(env_id)


def reset(self):
    return np.zeros(1, np.uint8)


OLD: dict[str, dict[str, Any]] = {
    "spaces": {"action_space": property(lambda self: "Discrete(2) of gym", lambda self, space: None)},
    "reset": {"reset": reset},
    "observation": {"reset": lambda self, seed=None, options=None: np.zeros(1, np.uint8)},
    "step": {"step": lambda self, action: (np.zeros(1, np.uint8), 0.0, True, {})},
}


@pytest.mark.parametrize("old", OLD)
@pytest.mark.parametrize("unchecked", [False, True])
def test_an_environment_in_the_manner_of_gym_is_refused_with_what_converts_it(register, old, unchecked):
    register("Old-v0", type("Old", (fakes.Counting,), OLD[old]), disable_env_checker=unchecked)
    with pytest.raises(UsageError, match=r"^Old-v0 \(.* is written for gym.*--env-id shimmy:GymV21Environment-v0"):
        make_env("Old-v0").step(0)


def test_spaces_that_gymnasium_refuses_are_one_line(register):
    spaces = {"observation_space": gym.spaces.Dict(), "action_space": gym.spaces.Discrete(2)}
    register("Empty-v0", type("Empty", (gym.Env,), spaces))
    with pytest.raises(UsageError, match="cannot make the environment 'Empty-v0': An empty Dict"):
        make_env("Empty-v0")


def test_an_id_may_name_a_function_that_registers_it_and_arguments_for_the_constructor():
    assert make_env("fakes:register_late:Late-v0").reset(seed=1)[0] == 0
    assert make_env("fakes:Chain-v0(length=5)").observation_space.shape == (5,)
    assert make_vector_env("fakes:Chain-v0(length=5)", 2).single_observation_space.shape == (5,)
    with pytest.raises(UsageError, match="'fakes:Catch-v0' cannot be made with render_mode='rgb_array'"):
        make_env("fakes:Catch-v0", render_mode="rgb_array")


def test_an_id_may_name_the_size_of_an_atari_games_screens():
    env_id = "PongNoFrameskip-v4(screen_size=42)"
    plain, tweaked = (make_env(env_id, tweaked=tweaked) for tweaked in (False, True))
    first, other = plain.reset(seed=1)[0], tweaked.reset(seed=1)[0]
    assert first.shape == plain.observation_space.shape == (4, 42, 42)
    assert np.array_equal(first, other)
    assert make_vector_env(env_id, 2).reset(seed=1)[0].shape == (2, 4, 42, 42)
    with pytest.raises(UsageError, match="has screen_size=10; it has to be a whole number from 36 on"):
        make_env("PongNoFrameskip-v4(screen_size=10)")


def test_an_environment_goes_to_another_process_as_its_id():
    env = make_env("fakes:Counting-v0")
    env.set_wrapper_attr("number", 3)  # for the messages of errors
    made = fakes.Counting.made
    other = cloudpickle.loads(cloudpickle.dumps(env))
    assert fakes.Counting.made == made + 1
    assert other.reset(seed=1)[0] == env.reset(seed=1)[0]
    assert type(other) is type(env)
    assert other.get_wrapper_attr("number") == 3


def test_the_limit_of_an_atari_game_counts_agent_steps_and_the_game_may_record_its_own_statistics(register):
    def recorded(**game):
        return RecordEpisodeStatistics(ale_py.AtariEnv(**game))

    register("Short-v0", recorded, max_episode_steps=100, kwargs=GAME)
    env = make_env("Short-v0")
    env.reset(seed=1)
    steps, info = next((step, info) for step in itertools.count(1) for *_, ends, info in [env.step(0)] if ends)
    assert 100 - NOOP_MAX // 4 - 1 <= steps <= 100  # no-ops count, too
    assert info["episode"]["l"] == steps


def test_an_environment_that_cannot_be_used_is_closed_and_an_error_of_that_does_not_hide_the_first(monkeypatch, caplog):
    monkeypatch.setattr(fakes.Counting, "begin", Mock(side_effect=OSError("no level")))
    monkeypatch.setattr(fakes.Counting, "close", Mock(side_effect=AttributeError("no viewer")))
    with pytest.raises(EnvironmentFailed, match="no level"), closing():
        make_env("fakes:Counting-v0")
    assert "no viewer" in caplog.text


def test_an_environment_that_seeds_the_global_generators_does_not_set_the_first_weights(monkeypatch):
    monkeypatch.setattr(fakes.Counting, "begin", lambda env: torch.manual_seed(0))
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    make_env("fakes:Counting-v0")
    assert torch.equal(torch.rand(3), expected)


def test_an_infinite_reward_threshold_is_no_goal(register):
    register("Endless-v0", "fakes:Counting", reward_threshold=float("inf"))
    assert reward_threshold("Endless-v0") is None
    assert reward_threshold("CartPole-v1") == 475.0


def test_actions_are_counted_from_0():
    env = make_env("fakes:Seventh-v0")
    env.reset(seed=1)
    assert env.action_space == spaces.Discrete(5)
    assert [env.step(action)[1] for action in (0, 1, 4)] == [0.0, 1.0, 0.0]


LOW = np.linspace(-1, 0, 2000, dtype=np.float32)


@pytest.mark.parametrize(
    ("space", "other"),
    [
        (spaces.Discrete(3), spaces.Discrete(3, start=1)),
        (spaces.Box(LOW, 1), spaces.Box(np.where(np.arange(2000) == 999, np.nextafter(LOW, 1), LOW), 1)),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])), spaces.Dict(a=spaces.Tuple([spaces.Discrete(3)]))),
    ],
)
def test_the_text_of_a_space_has_all_that_the_space_has(space, other):
    str(space), str(other)  # abbreviated, and kept by a Box
    assert space_text(space) == space_text(copy.deepcopy(space)) != space_text(other)
