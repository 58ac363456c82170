"""Videos of training episodes: the replay equals the episode, whatever source played it."""

from collections import Counter

import gymnasium as gym
import numpy as np
import ptan
import pytest
import torch
from ptan.experience import ExperienceFirstLast

from fakes import Linear
from lib.actors.players import Players
from lib.envs import vector_env
from lib.envs.single_env import make_env
from lib.experience.source import ExperienceSourceFirstLast
from lib.experience.stream import ExperienceStream, Stream
from lib.ppo.actor import ActorSettings
from lib.ppo.fast import FastModel, FastSettings, FastTrainer
from lib.ppo.learner import PPOLearner, join_segments
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.segments import Segments
from lib.run.episode_replayer import EpisodeReplayer

CODED, SHORT, STICKY = "fakes:Coded-v0", "fakes:ShortPong-v0", "fakes:StickyPong-v0"


# Sources of episodes


def build_agent(n_actions):
    torch.manual_seed(7)
    model = Linear(4 * 84 * 84)
    model.layer = torch.nn.Linear(4 * 84 * 84, n_actions)
    return ptan.agent.DQNAgent(model, ptan.actions.EpsilonGreedyActionSelector(0.9))


def build_model(space, n_actions):
    torch.manual_seed(3)
    return FastModel(space, n_actions)


def single_source(env_id, num_envs):
    envs = [make_env(env_id, tweaked=True) for _ in range(num_envs)]
    return ExperienceSourceFirstLast(envs, build_agent(int(envs[0].action_space.n)), gamma=0.9, seed=5)


def player_source(env_id, num_envs):
    return Players(single_source(env_id, num_envs), players=2, rounds=7)


def stream_source(env_id, num_envs):
    envs = vector_env.make_vector_env(env_id, num_envs)
    return ExperienceStream(envs, build_agent(int(envs.single_action_space.n)), seed=5)


def sampler_source(env_id, num_envs):
    envs = vector_env.make_vector_env(env_id, num_envs)
    model = build_model(envs.single_observation_space, int(envs.single_action_space.n))
    return Sampler(envs, Agent(model), steps=16, seed=5)


def segment_source(env_id, num_envs):
    acting = ActorSettings(env_id, envs=num_envs, actors=2, rollout=16, seed=5)
    model = build_model(acting.space, acting.n_actions)
    optimizer = torch.optim.Adam(model.parameters())
    settings = FastSettings(minibatch=32, epochs=1, gamma=0.9, lam=0.9, clip=0.2, entropy=0.01)
    return Segments(acting, PPOLearner(FastTrainer(model, optimizer, settings)))


def newest_frames(item):
    """The newest frame of each state that was acted in, (steps, environments, 84, 84)."""
    if isinstance(item, ExperienceFirstLast):
        return np.asarray(item.state)[-1][None, None]
    if isinstance(item, tuple):
        return item[0][None]
    rollout = join_segments(item) if isinstance(item, list) else item
    return rollout.states[..., -1].numpy().copy()


def episode_ends(item):
    """True where an episode ended, (steps, environments); None for single transitions."""
    if isinstance(item, ExperienceFirstLast):
        return None
    if isinstance(item, tuple):
        return (item[3] | item[4])[None]
    rollout = join_segments(item) if isinstance(item, list) else item
    return rollout.ended.numpy().copy()


def items_of(source):
    """Yield frames and episode ends of all items of a source, including segments that only normalise the network."""
    normalising = []
    if isinstance(source, Segments):
        source.learner.normalise_by = normalising.append  # type: ignore[assignment]
    for item in source:
        for each in (*normalising, item):
            yield newest_frames(each), episode_ends(each)
        normalising.clear()


def play(build, env_id, num_envs, count):
    """Play `count` items, half of them with a second source that is restored from the first one's state."""
    first, second = build(env_id, num_envs), build(env_id, num_envs)
    items, episodes = [], []
    for source in (first, second):
        if source is second:
            source.load_state_dict(first.state_dict())
        for _, item in zip(range(count // 2), items_of(source), strict=False):
            items.append(item)
            episodes += source.pop_episodes()
    first.close()
    second.close()
    return items, episodes


# Replays


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "count"),
    [(single_source, 200), (player_source, 200), (stream_source, 100), (sampler_source, 8), (segment_source, 8)],
)
def test_a_replay_shows_exactly_the_states_of_the_episode(monkeypatch, build, count):
    monkeypatch.setattr(Stream, "RESEED_EVERY", 90)  # a seeded reset in the middle of a rollout
    items, episodes = play(build, CODED, 4, count)
    # In CODED the first four pixels identify the episode (two numbers), the step, and all earlier actions.
    acted_in = [tuple(code) for frames, _ in items for code in frames[:, :, 0, :4].reshape(-1, 4).tolist()]
    assert len(episodes) > 20
    assert len({episode.length for episode in episodes}) > 5
    replayer = EpisodeReplayer(CODED)
    replays = Counter()
    for episode in episodes:
        trace, shown = episode.trace(), []
        assert len(trace.actions) - trace.first == episode.length

        def show(frame, shown=shown):
            shown.append(tuple(frame[0, :4, 0]))

        playback = replayer.play(episode, trace, [show])
        assert playback.matches
        assert (playback.length, playback.total) == (episode.length, pytest.approx(episode.total, rel=1e-6))
        assert shown[:-1] == [code for code in acted_in if code[:2] == shown[0][:2]]
        assert [step for _, _, step, _ in shown] == list(range(episode.length + 1))
        replays[shown[0][:2]] += 1
    assert set(replays.values()) == {1}  # no episode was replayed in place of another


def test_the_next_replay_continues_where_the_last_one_ended():
    _, episodes = play(stream_source, CODED, 4, 100)
    replayer, steps = EpisodeReplayer(CODED), []
    make_env = replayer._make_env

    def make_counting_env():
        env = make_env()
        step = env.step
        env.step = lambda action: steps.append(action) or step(action)
        return env

    replayer._make_env = make_counting_env
    later = [episode for episode in episodes if episode.trace().first]
    assert all(replayer.play(episode, episode.trace(), []).matches for episode in later)
    skipped = {}  # actions before the first replayed episode of each seed
    for episode in later:
        skipped.setdefault(episode.trace().seed, episode.trace().first)
    assert len(later) > len(skipped) > 0
    assert len(steps) == sum(skipped.values()) + sum(episode.length for episode in later)


class KeepFrames(gym.Wrapper):
    """Keeps the newest frame of every state."""

    def __init__(self, env):
        super().__init__(env)
        self.frames = []

    def reset(self, **options):
        state, info = super().reset(**options)
        self.frames = [np.asarray(state)[-1]]
        return state, info

    def step(self, action):
        state, *rest = super().step(action)
        self.frames.append(np.asarray(state)[-1])
        return state, *rest


def frames_by_episode(items, num_envs):
    episodes, current = [], [[] for _ in range(num_envs)]
    for frames, ended in items:
        for step in range(len(frames)):
            for env in range(num_envs):
                current[env].append(frames[step, env])
                if ended[step, env]:
                    episodes.append(current[env])
                    current[env] = []
    return episodes


@pytest.mark.slow
@pytest.mark.parametrize(("build", "count"), [(stream_source, 220), (segment_source, 14)])
def test_a_native_game_is_replayed_with_its_number_of_no_ops(build, count):
    items, episodes = play(build, SHORT, 2, count)
    played = frames_by_episode(items, 2)
    assert len(played) == len(episodes) == 4
    assert len({episode.trace().no_ops for episode in episodes}) > 2
    assert min(episode.total for episode in episodes) < 0
    replayer = EpisodeReplayer(SHORT)
    replayer.env = KeepFrames(replayer.env)
    for episode, frames in zip(episodes, played, strict=True):
        screens = []
        assert replayer.play(episode, episode.trace(), [screens.append]) == (episode.total, 100, True)
        assert len(screens) == 101
        assert screens[0].shape == (210, 160, 3)
        assert not np.array_equal(screens[50][..., 0], screens[50][..., 2])  # the frames are in colour
        assert np.array_equal(replayer.env.frames[: len(frames)], frames)


@pytest.mark.slow
def test_a_game_that_presses_keys_at_its_start_is_replayed():
    _, episodes = play(stream_source, "fakes:ShortAirRaid-v0", 2, 120)
    assert min(episode.trace().no_ops for episode in episodes) >= 8
    replayer = EpisodeReplayer("fakes:ShortAirRaid-v0")
    assert [replayer.play(episode, episode.trace(), []).matches for episode in episodes] == [True] * 2


@pytest.mark.parametrize("env_id", [SHORT, STICKY, f"{SHORT}?noop_max=5"])
def test_a_seeded_game_is_replayed_even_with_sticky_actions(env_id):
    source = single_source(env_id, 1)
    transitions = iter(source)
    frames = [np.asarray(next(transitions).state)[-1] for _ in range(200)]
    [first, second] = source.pop_episodes()
    replayer = EpisodeReplayer(env_id)
    replayer.env = KeepFrames(replayer.env)
    for episode, played in ((second, frames[first.length :]), (first, frames)):
        assert replayer.play(episode, episode.trace(), []) == (episode.total, episode.length, True)
        replayed = replayer.env.frames[:-1]
        count = min(len(replayed), len(played))
        assert np.array_equal(replayed[:count], played[:count])


# The recorder


def test_sources_know_whether_they_play_native_games():
    assert stream_source(SHORT, 1).native
    assert segment_source(SHORT, 2).native
    assert not stream_source(CODED, 1).native
    assert not segment_source(CODED, 2).native
    assert not single_source(SHORT, 1).native
