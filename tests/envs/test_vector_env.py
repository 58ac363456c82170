"""Environments that step together: native Atari games and all others."""

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import AtariPreprocessing
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import fakes
from lib.envs import vector_env
from lib.envs.frames import FrameStack
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.system.seeds import derived_seeds


def slow_twin(env_id):
    """gymnasium's preprocessing without no-ops and without clipping of rewards."""
    return FrameStack(AtariPreprocessing(gym.make(env_id), noop_max=0, screen_size=84))


def unclipped(env_id, num_envs, **options):
    return RecordEpisodeStatistics(vector_env.NativeAtari(gym.spec(env_id).kwargs, num_envs, **options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env_id", "limit"),
    [
        pytest.param("PongNoFrameskip-v4", 1500, marks=pytest.mark.long),
        ("BreakoutNoFrameskip-v4", 400),
        ("FreewayNoFrameskip-v4", 200),
    ],
)
def test_whole_episodes_equal_gymnasiums_preprocessing_bit_for_bit(env_id, limit):
    twins = [slow_twin(env_id) for _ in range(2)]
    envs = unclipped(env_id, 2, noop_max=0)
    states, _ = envs.reset(seed=3)
    expected = [np.asarray(twin.reset(seed=number)[0]) for number, twin in enumerate(twins)]
    rng = np.random.default_rng(1)
    ends, totals = 0, [0.0, 0.0]
    for step in range(limit):
        assert np.array_equal(states, expected), step
        actions = rng.integers(envs.single_action_space.n, size=2)
        states, rewards, terminations, truncations, infos = envs.step(actions)
        for index, (twin, action) in enumerate(zip(twins, actions, strict=True)):
            state, reward, terminated, truncated, _ = twin.step(action)
            totals[index] += reward
            assert (rewards[index], terminations[index], truncations[index]) == (reward, terminated, truncated)
            if terminated or truncated:
                assert np.array_equal(infos["final_obs"][index], state)
                assert infos["_episode"][index]
                assert infos["episode"]["r"][index] == totals[index]
                ends, totals[index] = ends + 1, 0.0
                state, _ = twin.reset()
            expected[index] = np.asarray(state)
    assert ends > 0 or env_id.startswith("Freeway")
    envs.close()


def test_a_short_episode_ends_with_its_own_states_before_the_next_one_starts():
    plain = gym.make("PongNoFrameskip-v4")
    game = plain.spec.kwargs | {"max_num_frames_per_episode": 8}
    envs = vector_env.NativeAtari(game, 2, noop_max=0)
    first, _ = envs.reset(seed=0)
    assert np.array_equal(first[0, 0], first[0, 3])
    for _ in range(3):
        states, _, terminations, truncations, infos = envs.step(np.array([2, 3]))
        assert not truncations.any()
        states, _, terminations, truncations, infos = envs.step(np.array([2, 3]))
        assert truncations.all()
        assert not terminations.any()
        final = infos["final_obs"]
        assert np.array_equal(final[:, 0], final[:, 1])  # the first frame fills the stack of a short episode
        assert np.array_equal(final[0, 1], first[0, 0])
        assert not np.array_equal(final[0, 2], final[0, 3])
        assert np.array_equal(states, first)


@pytest.mark.slow
def test_each_environment_has_its_own_reproducible_seed():
    first, second = (vector_env.make_vector_env("PongNoFrameskip-v4", 3) for _ in range(2))
    (states, infos), (again, _), (_, other) = first.reset(seed=1), second.reset(seed=1), second.reset(seed=2)
    assert np.array_equal(states, again)
    no_ops = infos["episode_frame_number"].tolist()
    assert len(set(no_ops)) == 3
    assert no_ops != other["episode_frame_number"].tolist()
    seeds = np.concatenate([derived_seeds(seed, 50) for seed in range(4)])
    assert len(set(seeds.tolist())) == 200
    assert seeds.min() >= 0
    assert seeds.max() < 2**31


@pytest.mark.slow
def test_rewards_are_clipped_but_returns_are_not():
    game = "SpaceInvadersNoFrameskip-v4"
    clipping, plain = vector_env.make_vector_env(game, 2), unclipped(game, 2)
    clipping.reset(seed=0)
    plain.reset(seed=0)
    rng = np.random.default_rng(0)
    totals, returns = np.zeros(2), []
    for _ in range(700):
        actions = rng.integers(6, size=2)
        _, clipped, *_, infos = clipping.step(actions)
        _, rewards, terminations, _, _ = plain.step(actions)
        assert clipped.dtype == rewards.dtype == np.float32
        assert np.array_equal(clipped, np.clip(rewards, -1, 1))
        totals += rewards
        for index in np.flatnonzero(terminations):
            returns.append((totals[index], infos["episode"]["r"][index]))
            totals[index] = 0.0
    assert len(returns) >= 2
    assert all(total == reported for total, reported in returns)
    assert max(total for total, _ in returns) > 50  # more than clipped rewards can add up to


@pytest.fixture(scope="module")
def two_games():
    """Two native games of Pong that have begun."""
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", 2)
    envs.reset(seed=0)
    return envs


@pytest.mark.parametrize("actions", [[0, 6], [-1, 0]])
def test_an_action_out_of_range_is_refused_before_it_reaches_the_native_threads(two_games, actions):
    with pytest.raises(ValueError, match="they have to be 2 integers between 0 and 5"):
        two_games.step(np.array(actions))
    two_games.step(np.array([0, 5]))


@pytest.mark.parametrize("actions", [np.zeros(3, np.int64), np.zeros((2, 1), np.int64), np.zeros(2)])
def test_actions_of_the_wrong_shape_or_type_are_refused(two_games, actions):
    with pytest.raises(ValueError, match="they have to be 2 integers"):
        two_games.step(actions)


def hard_pong():
    return gym.make("PongNoFrameskip-v4", difficulty=1, frameskip=1)


@pytest.mark.parametrize(
    ("entry_point", "changes"),
    [
        ("ale_py.env:AtariEnv", {"difficulty": 1}),
        ("ale_py.env:AtariEnv", {"max_num_frames_per_episode": None}),
        (hard_pong, {}),
        (lambda **game: gym.wrappers.TransformReward(ale_py.AtariEnv(**game), float), {}),
    ],
)
def test_games_with_options_that_native_environments_lack_are_refused(register, entry_point, changes):
    game = {} if entry_point is hard_pong else gym.spec("PongNoFrameskip-v4").kwargs | {"frameskip": 1} | changes
    register("Another-v0", entry_point, kwargs=game)
    with pytest.raises(UsageError, match=r"Another-v0 is an Atari game with other wrappers .* 00 to 04 of chapter 9"):
        vector_env.make_vector_env("Another-v0", 2)


def test_other_environments_have_the_same_interface():
    envs = vector_env.make_vector_env("fakes:Chain-v0", 3)
    states, _ = envs.reset(seed=1)
    assert states.shape == (3, *envs.single_observation_space.shape)
    states, rewards, terminations, _, infos = envs.step(np.array([1, 0, 1]))
    assert rewards.dtype == np.float32
    assert terminations.tolist() == infos["_episode"].tolist() == [True, False, True]
    assert infos["final_obs"].shape == states.shape
    assert infos["episode"]["l"].tolist() == [1, 0, 1]


def test_images_of_other_environments_equal_those_of_make_env():
    envs = vector_env.make_vector_env("fakes:Catch-v0", 2)
    twin = make_env("fakes:Catch-v0")
    states, _ = envs.reset(seed=1)
    expected, _ = twin.reset(seed=1)
    for step in range(14):
        assert np.array_equal(states[0], np.asarray(expected)), step
        states, rewards, terminations, _, infos = envs.step(np.array([step % 3, 0]))
        expected, reward, terminated, _, _ = twin.step(step % 3)
        assert (rewards[0], terminations[0]) == (reward, terminated)
        if terminated:
            assert np.array_equal(infos["final_obs"][0], np.asarray(expected))
            expected, _ = twin.reset()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("fakes:Heat-v0", "of 4 dimensions"),
        ("fakes:Continuous-v0", r"it has to be Discrete\(n\)"),
    ],
)
def test_environments_that_no_script_can_use_are_refused(env_id, message):
    with pytest.raises(UsageError, match=message):
        vector_env.make_vector_env(env_id, 2)


def test_a_missing_dependency_of_a_game_is_reported(monkeypatch):
    def fail(*_, **__):
        raise gym.error.DependencyNotInstalled("Box2D is not installed, run `pip install box2d`")

    monkeypatch.setattr(gym, "make", fail)
    with pytest.raises(UsageError, match=r"^LunarLander-v3 .* needs another package: Box2D is not installed, run"):
        vector_env.make_vector_env("LunarLander-v3", 2)


def test_an_error_of_a_constructor_names_the_environment(monkeypatch):
    monkeypatch.setattr(gym, "make", lambda *_, **__: {}["no_map"])
    with pytest.raises(KeyError, match="no_map") as raised:
        vector_env.make_vector_env("Maze-v0", 2)
    assert raised.value.__notes__ == ["Raised by Maze-v0 (in its constructor)"]


def test_an_unknown_id_and_no_environments_are_refused():
    with pytest.raises(UsageError, match="cannot make the environment 'NoSuch-v0'"):
        vector_env.make_vector_env("NoSuch-v0", 2)
    with pytest.raises(UsageError, match="num_envs is 0; it has to be at least 1"):
        vector_env.make_vector_env("PongNoFrameskip-v4", 0)


def test_a_second_reset_with_the_same_seed_gives_the_same_states(two_games):
    first, _ = two_games.reset(seed=np.int64(3))
    for _ in range(5):
        two_games.step(np.array([2, 3]))
    again, _ = two_games.reset(seed=3)
    assert np.array_equal(first, again)


def test_a_partial_reset_has_the_seeds_of_a_full_one_and_leaves_the_other_environments_alone():
    alone, envs = (vector_env.make_vector_env("PongNoFrameskip-v4", 3) for _ in range(2))
    envs.reset(seed=1)
    alone.reset(seed=1)
    for _ in range(60):
        before, *_ = envs.step(np.array([2, 3, 2]))
        alone.step(np.array([2, 3, 2]))
    states, _ = envs.reset(options={"reset_mask": np.array([True, False, False])})
    assert np.array_equal(states[1:], before[1:])
    assert not np.array_equal(states[0], before[0])
    assert all(np.array_equal(states[0, 3], frame) for frame in states[0])
    for _ in range(4):
        assert np.array_equal(envs.step(np.array([2, 3, 2]))[0][1:], alone.step(np.array([2, 3, 2]))[0][1:])
    partial, _ = envs.reset(seed=7, options={"reset_mask": np.array([False, True, True])})
    expected, _ = alone.reset(seed=7)
    assert np.array_equal(partial[1:], expected[1:])
    assert not np.array_equal(partial[0], expected[0])


@pytest.mark.slow
def test_sticky_actions_depend_on_the_seed():
    def play(seed):
        envs = unclipped("ALE/Pong-v5", 1, noop_max=0)
        envs.reset(seed=seed)
        return np.concatenate([envs.step(np.array([2 + step // 3 % 2]))[0] for step in range(60)])

    assert np.array_equal(play(1), play(1))
    assert not np.array_equal(play(1), play(2))


def test_a_game_has_the_action_space_with_which_it_is_registered(register):
    game = gym.spec("PongNoFrameskip-v4").kwargs | {"full_action_space": True}
    register("FullPong-v0", "ale_py.env:AtariEnv", kwargs=game)
    assert vector_env.make_vector_env("FullPong-v0", 1).single_action_space.n == 18


def test_a_truncated_episode_has_its_final_state_in_the_infos():
    envs = vector_env.make_vector_env("MountainCar-v0", 2)
    states, _ = envs.reset(seed=0)
    for _ in range(200):
        before = states
        states, _, terminations, truncations, infos = envs.step(np.array([1, 1]))
    assert truncations.all()
    assert not terminations.any()
    assert infos["final_obs"].shape == states.shape
    assert np.abs(infos["final_obs"] - before).max() < 0.01 < np.abs(states - before).max()


def test_returns_are_those_of_a_single_environment(monkeypatch):
    """Sums of float32 rewards would differ."""
    step = fakes.Counting.step

    def small(self, action):
        state, reward, *ends = step(self, action)
        return state, 0.1 * reward, *ends

    monkeypatch.setattr(fakes.Counting, "step", small)
    gym.register("Small-v0", fakes.Counting)
    env, envs = make_env("Small-v0"), vector_env.make_vector_env("Small-v0", 1)
    env.reset(seed=1)
    envs.reset(seed=1)
    for _ in range(3):
        env.step(0)
        _, rewards, *_ = envs.step(np.zeros(1, int))
        assert rewards.dtype == np.float32
    assert envs.step(np.zeros(1, int))[-1]["episode"]["r"][0] == env.step(0)[-1]["episode"]["r"] == 1.0


def test_an_environment_that_is_reset_alone_gets_no_options(register):
    class Optional(fakes.Catch):
        def reset(self, *, seed=None, options=None):
            assert options is None
            return super().reset(seed=seed)

    register("Optional-v0", Optional)
    envs = vector_env.make_vector_env("Optional-v0", 3)
    envs.reset(seed=1)
    envs.reset(seed=2, options={"reset_mask": np.array([True, False, True])})
