"""Environments that step together: each kind equals single environments, on a random walk with partial resets."""

from functools import partial
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import AtariPreprocessing
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from lib.envs import vector_env
from lib.envs.frames import FrameStack
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.nets.masking import MaskSplitter

PONG, BREAKOUT = (f"{game}NoFrameskip-v4" for game in ("Pong", "Breakout"))


def unclipped(env_id, num_envs, **options):
    return RecordEpisodeStatistics(vector_env.NativeAtari(gym.spec(env_id).kwargs, num_envs, **options))


def native(env_id, screen=84):
    """Return native environments and gymnasium's preprocessing, without no-ops and without clipping of rewards."""
    twins = [FrameStack(AtariPreprocessing(gym.make(env_id), noop_max=0, screen_size=screen)) for _ in range(2)]
    return unclipped(env_id, 2, noop_max=0, screen=screen), twins


def one_by_one(env_id):
    return vector_env.make_vector_env(env_id, 3), [make_env(env_id) for _ in range(3)]


def processes(env_id):
    return vector_env.make_vector_env(env_id, 3, processes=True), [make_env(env_id) for _ in range(3)]


def allowed_actions(envs, states, rng):
    _, allowed = MaskSplitter(envs.single_observation_space)(torch.from_numpy(states))
    if allowed is None:
        return rng.integers(envs.single_action_space.n, size=envs.num_envs)
    return np.array([rng.choice(np.flatnonzero(row)) for row in allowed.numpy()])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "env_id", "steps"),
    [
        pytest.param(native, PONG, 1500, marks=pytest.mark.long),
        (native, BREAKOUT, 220),
        (partial(native, screen=42), BREAKOUT, 220),
        (native, "ShortPong-v0", 170),
        (one_by_one, "fakes:Coded-v0", 60),  # sums of its rewards would differ in float32
        (one_by_one, "MountainCar-v0", 220),
        (one_by_one, "examples.blocks:Blocks-v0", 60),
        (processes, "fakes:Coded-v0", 60),
        (processes, "examples.blocks:Blocks-v0", 60),
    ],
)
def test_each_environment_equals_a_single_one_bit_for_bit(make, env_id, steps):
    (envs, twins), rng, ends = make(env_id), np.random.default_rng(1), 0
    number = len(twins)
    seeds = list(range(5, 5 + number))
    states = envs.reset(seed=seeds)[0]
    expected = [twin.reset(seed=seed)[0] for twin, seed in zip(twins, seeds, strict=True)]
    totals, lengths = np.zeros(number), np.zeros(number, np.int64)
    for step in range(steps):
        assert np.array_equal(states, expected), step
        actions = allowed_actions(envs, states, rng)
        states, rewards, terminations, truncations, infos = envs.step(actions)
        for index, (twin, action) in enumerate(zip(twins, actions, strict=True)):
            expected[index], reward, *end, _ = twin.step(action)
            totals[index] += reward
            lengths[index] += 1
            assert (rewards[index], terminations[index], truncations[index]) == (reward, *end)
            if any(end):
                episode = infos.get("final_info", infos)["episode"]
                assert np.array_equal(infos["final_obs"][index], expected[index])
                assert (episode["r"][index], episode["l"][index]) == (totals[index], lengths[index])
                ends, totals[index], lengths[index] = ends + 1, 0.0, 0
                expected[index], _ = twin.reset()
        if step in (7, 57) and env_id not in (PONG, BREAKOUT, "MountainCar-v0"):
            which = rng.random(number) < 0.5
            which[step % number] = True
            states, _ = envs.reset(seed=list(range(1, number + 1)), options={"reset_mask": which})
            for index in np.flatnonzero(which).tolist():
                expected[index], _ = twins[index].reset(seed=index + 1)
                totals[index], lengths[index] = 0.0, 0
    assert ends > 0
    envs.close()


def test_each_environment_has_its_own_reproducible_seed():
    envs = vector_env.make_vector_env(PONG, 3)
    (states, infos), (others, _) = envs.reset(seed=[1, 2, 3]), envs.reset(seed=[4, 5, 6])
    assert len(set(infos["episode_frame_number"].tolist())) == 3  # numbers of no-ops
    partial, _ = envs.reset(seed=[1, 2, 3], options={"reset_mask": np.array([False, True, False])})
    assert np.array_equal(partial[1], states[1])
    assert np.array_equal(partial[::2], others[::2])


@pytest.mark.slow
def test_rewards_are_clipped_but_returns_are_not():
    envs, rng = vector_env.make_vector_env("SpaceInvadersNoFrameskip-v4", 1), np.random.default_rng(0)
    envs.reset(seed=[1])  # type: ignore[arg-type]
    rewards: list[float] = []
    infos: dict[str, Any] = {}
    while "final_obs" not in infos:
        _, reward, *_, infos = envs.step(rng.integers(6, size=1))
        rewards.append(float(reward[0]))
    assert set(rewards) == {0.0, 1.0}
    assert infos["episode"]["r"][0] >= 5 * sum(rewards)  # the game gives 5 points or more


@pytest.mark.parametrize("actions", [[0, 6], [0.0, 1.0], [0, 1, 2]])
def test_a_wrong_action_is_refused_before_it_reaches_the_native_threads(actions):
    envs = vector_env.make_vector_env(PONG, 2)
    envs.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=r"not in MultiDiscrete\(\[6 6\]\)|Cannot cast"):
        envs.step(np.array(actions))
    envs.step(np.array([0, 5]))


@pytest.mark.parametrize(
    ("entry_point", "changes"),
    [
        ("ale_py.env:AtariEnv", {"difficulty": 1}),
        (lambda **game: gym.wrappers.TransformReward(ale_py.AtariEnv(**game), float), {}),
    ],
)
def test_games_with_options_that_native_environments_lack_are_refused(register, entry_point, changes):
    register("Another-v0", entry_point, kwargs=gym.spec(PONG).kwargs | {"frameskip": 1} | changes)
    with pytest.raises(UsageError, match=r"Another-v0 is an Atari game with other wrappers .* 00 to 04 of chapter 9"):
        vector_env.make_vector_env("Another-v0", 2)


def test_a_native_game_has_the_action_space_with_which_it_is_registered_and_no_processes(register):
    game = gym.spec(PONG).kwargs | {"full_action_space": True}
    register("FullPong-v0", "ale_py.env:AtariEnv", kwargs=game)
    assert vector_env.make_vector_env("FullPong-v0", 1).single_action_space.n == 18
    with pytest.raises(UsageError, match="leave --async-envs out"):
        vector_env.make_vector_env("FullPong-v0", 2, processes=True)
