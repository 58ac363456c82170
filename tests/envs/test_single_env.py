"""Making one environment: which ones are refused, and how their actions are numbered."""

import os
import subprocess
import sys

import gymnasium as gym
import pytest
from gymnasium import spaces

import fakes
from lib.envs.single_env import make_env, reward_threshold
from lib.errors import UsageError


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("NoSuchGame-v0", "has to be registered"),
        ("no_such_module:Game-v0", "No module named 'no_such_module'"),
        ("fakes:NoSuchGame-v0", r"'fakes:NoSuchGame-v0': Environment `NoSuchGame` doesn't exist\.$"),
        ("NeedsPackage-v0", "'NeedsPackage-v0' needs a package that is missing: No module named 'robots'. Install it"),
        ("Pendulum-v1", "finitely many actions"),
        ("fakes:Continuous-v0", "finitely many actions"),
        ("fakes:Heat-v0", "of 4 dimensions"),
    ],
)
def test_environments_that_no_script_can_use_are_refused(env_id, message, monkeypatch):
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.envs.registration.registry))
    gym.register("NeedsPackage-v0", "robots:Arm")
    with pytest.raises(UsageError, match=message):
        make_env(env_id)


def test_a_missing_render_mode_is_refused():
    with pytest.raises(UsageError, match=r"fakes:Catch-v0 .* its render_modes are \[\].*'rgb_array'"):
        make_env("fakes:Catch-v0", render_mode="rgb_array")
    assert make_env("fakes:Shown-v0", render_mode="rgb_array").render_mode == "rgb_array"


def test_a_game_that_allows_one_instance_is_made_and_has_not_been_reset(monkeypatch):
    made = []

    class Alone(fakes.Catch):
        def __init__(self):
            assert not made, "another instance is open"
            made.append(self)
            self.resets = 0
            super().__init__()

        def reset(self, **options):
            self.resets += 1
            return super().reset(**options)

        def close(self):
            made.remove(self)

    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.envs.registration.registry))
    gym.register("Alone-v0", Alone)
    for _ in range(2):  # with and without knowledge of the id
        env = make_env("Alone-v0")
        assert env.unwrapped is made[0]
        assert made[0].resets == 0
        env.close()


def test_an_infinite_reward_threshold_is_no_goal(monkeypatch):
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.envs.registration.registry))
    gym.register("Endless-v0", "fakes:Counting", reward_threshold=float("inf"))
    assert reward_threshold("Endless-v0") is None
    assert reward_threshold("CartPole-v1") == 475.0


def test_actions_are_counted_from_0():
    env = make_env("fakes:Seventh-v0")
    env.reset(seed=1)
    assert env.action_space == spaces.Discrete(5)
    assert [env.step(action)[1] for action in (0, 1, 4)] == [0.0, 1.0, 0.0]


DRAW = """
from lib.envs.single_env import make_env
env = make_env("CartPole-v1", render_mode="rgb_array")
env.reset()
env.render()
"""


def test_drawing_without_a_display_prints_no_complaint():
    hidden = ("DISPLAY", "WAYLAND", "XDG", "SDL")
    env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    process = subprocess.run([sys.executable, "-c", DRAW], env=env, capture_output=True, text=True, check=True)
    assert "XDG_RUNTIME_DIR" not in process.stderr + process.stdout
