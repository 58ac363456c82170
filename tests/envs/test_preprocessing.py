from pathlib import Path

import cv2
import gymnasium as gym
import numpy as np
import pytest

from lib.atari_wrappers import Preprocessing
from lib.envs.atari import reset_with_no_ops
from lib.envs.single_env import make_env
from lib.envs.vector_env import make_vector_env
from lib.errors import UsageError
from running import assignments, checkpoint_of, folder, resuming, run, trusting

PONG = "PongNoFrameskip-v4"
WRAPPERS = Path("chapter09/04_wrappers.py")


def test_options_are_part_of_the_id():
    options = Preprocessing(stack=2, max_frames=0)
    assert options.add_to(PONG) == f"{PONG}?stack=2&max_frames=0"
    assert options.add_to(f"{PONG}?max_frames=0&stack=2") == f"{PONG}?stack=2&max_frames=0"  # of a resumed run
    assert Preprocessing.of(f"{PONG}?stack=2&max_frames=0") == options
    assert Preprocessing.of(PONG) == Preprocessing()
    with pytest.raises(UsageError, match="stack=2 has options after the '\\?'; give them as options of the script"):
        Preprocessing().add_to(f"{PONG}?stack=2")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("stack=0", "stack is 0; it has to be between 1 and 16"),
        ("max_frames=2", "max_frames is 2; it has to be between 0 and 1"),
        ("noop_max=-1", "the options are stack, noop_max, max_frames, with whole numbers"),
        ("stack", "stack="),
        ("frames=4", "frames=4"),
    ],
)
def test_unknown_options_are_refused(query, message):
    with pytest.raises(UsageError, match=message):
        make_env(f"{PONG}?{query}")


@pytest.mark.parametrize("env_id", ["CartPole-v1?stack=2", "fakes:Catch-v0?stack=2"])
def test_only_atari_games_have_options(env_id):
    with pytest.raises(UsageError, match="not an Atari game"):
        make_env(env_id)


def test_native_environments_have_no_options():
    with pytest.raises(UsageError, match=r"04_wrappers\.py"):
        make_vector_env(f"{PONG}?stack=2", 1)


@pytest.mark.parametrize("tweaked", [False, True])
def test_a_stack_of_two_has_the_last_frames_of_a_stack_of_four(tweaked):
    two, four = make_env(f"{PONG}?stack=2", tweaked), make_env(PONG, tweaked)
    assert two.observation_space.shape == (2, 84, 84)
    assert np.array_equal(two.reset(seed=1)[0], np.array(four.reset(seed=1)[0])[2:])
    for action in (2, 3, 0, 2, 2, 5) * 5:
        (state, *rest), (expected, *expected_rest) = two.step(action), four.step(action)
        assert np.array_equal(state, np.array(expected)[2:])
        assert rest[:3] == expected_rest[:3]


@pytest.mark.parametrize("tweaked", [False, True])
def test_without_no_ops_and_maximum_a_state_is_the_last_screen_of_the_emulator(tweaked):
    env = make_env(f"{PONG}?noop_max=0&max_frames=0", tweaked)
    emulator = gym.make(PONG, frameskip=1, obs_type="grayscale")
    screen, _ = emulator.reset(seed=4)
    state, _ = env.reset(seed=4)
    for action in (2, 3, 0, 2, 2, 5) * 5:
        assert np.array_equal(np.array(state)[-1], cv2.resize(screen, (84, 84), interpolation=cv2.INTER_AREA))
        state = env.step(action)[0]
        for _ in range(4):
            screen = emulator.step(action)[0]


@pytest.mark.slow
def test_a_run_with_options_is_resumed_and_evaluated_in_the_same_environment(tmp_path):
    small = assignments("replay_initial=40", "replay_size=400", "batch_size=2", "checkpoint_every=20")
    options = ("--env-id", "fakes:ShortPong-v0", "--envs", 2, "--stack", 2, "--noop-max", 0, "--max-frames", 0, *small)
    process = run(WRAPPERS, *options, "--stop-after", 60, "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    path = folder(tmp_path)
    assert "-04_wrappers-envs=2-stack=2-noop_max=0-max_frames=0-" in path.name
    process = run(WRAPPERS, *resuming(path), "--stop-after", 80, "--quiet", "--runs-dir", tmp_path)
    assert process.returncode == 0, process.stderr
    assert checkpoint_of(path)["net"]["conv.0.weight"].shape[1] == 2
    process = run(Path("tools/evaluate.py"), path, *trusting(path), "--checkpoint", "last", "--episodes", 1)
    assert process.returncode == 0, process.stderr
    assert "return" in process.stdout


def test_an_evaluation_starts_with_no_ops_even_if_the_training_does_not():
    env = make_env(f"{PONG}?noop_max=0")
    assert not np.array_equal(reset_with_no_ops(env, 1), reset_with_no_ops(env, 20))
