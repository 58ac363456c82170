"""Videos of training episodes: the replay equals the episode, whatever source played it."""

import logging
import os
from collections import Counter
from contextlib import contextmanager
from types import SimpleNamespace

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
from lib.errors import UsageError
from lib.experience.episodes import Episode, EpisodeTrace
from lib.experience.source import ExperienceSourceFirstLast
from lib.experience.stream import ExperienceStream, Stream
from lib.ppo.actor import ActorSettings
from lib.ppo.goal import GoalModel, GoalSettings, GoalTrainer
from lib.ppo.learner import PPOLearner, join_segments
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.segments import Segments
from lib.run import video_file, videos
from lib.run.stopping import NOT_FINITE, SOLVED, STEPS, Stopper
from lib.run.video_file import Video
from lib.run.watchdog import CallInterrupted
from running import BASELINE, CATCH

CODED, SHORT, STICKY = "fakes:Coded-v0", "fakes:ShortPong-v0", "fakes:StickyPong-v0"


# Sources of episodes


def build_agent(n_actions):
    torch.manual_seed(7)
    model = Linear(4 * 84 * 84)
    model.layer = torch.nn.Linear(4 * 84 * 84, n_actions)
    return ptan.agent.DQNAgent(model, ptan.actions.EpsilonGreedyActionSelector(0.9))


def build_model(space, n_actions):
    torch.manual_seed(3)
    return GoalModel(space, n_actions)


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
    settings = GoalSettings(minibatch=32, epochs=1, gamma=0.9, lam=0.9, clip=0.2, entropy=0.01)
    return Segments(acting, PPOLearner(GoalTrainer(model, optimizer, settings)))


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
    replayer = videos.EpisodeReplayer(CODED)
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
    replayer, steps = videos.EpisodeReplayer(CODED), []
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
    replayer = videos.EpisodeReplayer(SHORT)
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
    replayer = videos.EpisodeReplayer("fakes:ShortAirRaid-v0")
    assert [replayer.play(episode, episode.trace(), []).matches for episode in episodes] == [True] * 2


@pytest.mark.parametrize("env_id", [SHORT, STICKY, f"{SHORT}?noop_max=5"])
def test_a_seeded_game_is_replayed_even_with_sticky_actions(env_id):
    source = single_source(env_id, 1)
    transitions = iter(source)
    frames = [np.asarray(next(transitions).state)[-1] for _ in range(200)]
    [first, second] = source.pop_episodes()
    replayer = videos.EpisodeReplayer(env_id)
    replayer.env = KeepFrames(replayer.env)
    for episode, played in ((second, frames[first.length :]), (first, frames)):
        assert replayer.play(episode, episode.trace(), []) == (episode.total, episode.length, True)
        replayed = replayer.env.frames[:-1]
        count = min(len(replayed), len(played))
        assert np.array_equal(replayed[:count], played[:count])


# The recorder


class Recording:
    """A recorder in which tests finish episodes by hand."""

    def __init__(self, run, env_id="fakes:Shown-v0", every=1, native=False):
        self.folder = run / "videos"
        self.untimed_blocks, self.animations = 0, []
        self.stopping = False
        self.episodes = SimpleNamespace(count=0, last=None)
        self.replayer = videos.EpisodeReplayer(env_id)
        self.recorder = videos.Recorder(
            self.replayer, run, every, self.episodes, native, self.untimed, lambda: self.stopping
        )
        self.recorder.on_video = lambda animation, episode: self.animations.append((animation, episode))

    @contextmanager
    def untimed(self):
        self.untimed_blocks += 1
        yield

    def finish(self, episode):
        """Finish an episode, and return the name of its video."""
        self.episodes.count += 1
        self.episodes.last = episode
        self.recorder(None)
        return self.recorder.video.removeprefix("videos/")

    @property
    def files(self):
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()


def catch_episode(seed=1):
    """An episode of Catch in which the paddle does not move."""
    env = make_env("fakes:Shown-v0")
    state, _ = env.reset(seed=seed)
    for _ in range(6):
        last, (state, reward, *_) = state, env.step(1)
    trace = EpisodeTrace(seed, [1] * 6, last)
    return Episode(float(reward), 6, 60, 1.0, lambda: trace)


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_every_third_episode_is_recorded_outside_of_the_training_time(tmp_path):
    recording = Recording(tmp_path, every=3)
    episodes = [catch_episode(seed) for seed in range(7)]
    names = [recording.finish(episode) for episode in episodes]
    third, sixth = (f"episode-{number}-return-{episodes[number - 1].total:g}.webm" for number in (3, 6))
    assert names == ["", "", third, "", "", sixth, ""]
    assert recording.files == {third, sixth}
    assert recording.untimed_blocks == 2
    assert [episode for _, episode in recording.animations] == [episodes[2], episodes[5]]


def test_recording_does_not_disturb_the_random_generators(tmp_path):
    recording = Recording(tmp_path)
    reset = recording.replayer.env.reset

    def drawing_reset(**options):
        torch.rand(1)
        np.random.rand()
        return reset(**options)

    recording.replayer.env.reset = drawing_reset
    draws = []
    for record in (False, True):
        torch.manual_seed(1)
        np.random.seed(1)
        if record:
            assert recording.finish(catch_episode())
        draws.append((torch.rand(3).tolist(), np.random.rand()))
    assert draws[0] == draws[1]


@pytest.mark.parametrize("difference", ["total", "length", "last_state", "longer"])
def test_an_episode_that_differs_in_its_replay_has_no_video(tmp_path, caplog, difference):
    recording, episode = Recording(tmp_path), catch_episode()
    trace = episode.trace()
    changed = {
        "total": episode._replace(total=episode.total + 0.01),
        "length": episode._replace(length=7),
        "last_state": episode._replace(trace=lambda: trace._replace(last_state=np.zeros((4, 84, 84), np.uint8))),
        "longer": episode._replace(trace=lambda: trace._replace(actions=[1] * 5)),
    }
    assert [recording.finish(changed[difference]) for _ in range(2)] == ["", ""]
    assert recording.files == set()
    assert len(warnings(caplog)) == 1  # not one per episode
    assert recording.finish(episode) != ""


def test_an_environment_that_is_not_kept_for_the_next_episode_is_closed(monkeypatch):
    class Closing(gym.Wrapper):
        def close(self):
            closed.append(self)
            super().close()

    made, closed = [], []

    def make(*arguments, **options):
        made.append(Closing(make_env(*arguments, **options)))
        return made[-1]

    monkeypatch.setattr(videos, "make_env", make)
    replayer = videos.EpisodeReplayer("fakes:Shown-v0")
    episode = catch_episode()
    later = episode.trace()._replace(first=3, actions=[0] * 5, last_state=np.zeros(1))
    assert not replayer.play(episode, later, ()).matches
    assert replayer.play(episode, later, (), stopped=lambda: True) is None
    assert len(made) == 3
    assert closed == made[1:]


def test_a_video_that_cannot_be_opened_is_not_blamed_on_the_environment(tmp_path, caplog, monkeypatch):
    def refuse(*arguments):
        raise UsageError("OpenCV cannot write")

    recording = Recording(tmp_path)
    monkeypatch.setattr(video_file.Video, "_open", refuse)
    assert recording.finish(catch_episode()) == ""
    [warning] = warnings(caplog)
    assert "OpenCV cannot write" in warning
    assert "environment" not in warning


def test_an_environment_that_fails_in_the_replay_costs_only_the_video(tmp_path, caplog):
    recording = Recording(tmp_path)
    step = recording.replayer.env.step

    def fail(action):
        raise RuntimeError("not now")

    recording.replayer.env.step = fail
    assert [recording.finish(catch_episode()) for _ in range(2)] == ["", ""]
    [warning] = warnings(caplog)
    assert "episode 1" in warning
    assert "RuntimeError: not now" in warning
    assert recording.files == set()
    recording.replayer.env.step = step
    assert recording.finish(catch_episode()) != ""


def test_a_replay_that_hangs_until_the_time_limit_costs_only_the_video(tmp_path, caplog):
    recording = Recording(tmp_path)
    episode = catch_episode()

    def interrupted(action):
        raise CallInterrupted("fakes:Shown-v0: a call did not return before the time limit", 1)

    recording.replayer.env.step = interrupted
    assert recording.finish(episode) == ""
    assert recording.files == set()
    assert "No video of episode 1: fakes:Shown-v0: a call did not return before the time limit" in caplog.text


def test_a_full_disk_costs_only_the_video(tmp_path, caplog, monkeypatch):
    recording = Recording(tmp_path)

    def close_on_a_full_disk(video):
        close(video)
        if video.path.exists():
            os.truncate(video.path, 0)

    close = Video.close
    monkeypatch.setattr(Video, "close", close_on_a_full_disk)
    assert [recording.finish(catch_episode()) for _ in range(2)] == ["", ""]
    monkeypatch.undo()
    [warning] = warnings(caplog)
    assert "No video of episode 1: the video has" in warning
    assert recording.files == set()
    assert recording.animations == []
    assert recording.finish(catch_episode()) != ""


def test_a_run_that_stops_leaves_no_unfinished_video(tmp_path):
    recording = Recording(tmp_path)
    recording.stopping = True
    assert recording.finish(catch_episode()) == ""
    recording.stopping = False

    def interrupt(action):
        raise KeyboardInterrupt

    recording.replayer.env.step = interrupt
    with pytest.raises(KeyboardInterrupt):
        recording.finish(catch_episode())
    assert recording.files == set()


def test_videos_are_cancelled_if_the_run_has_to_end_at_once():
    stopper = Stopper(lambda: 0, 10, None)
    for reason in (None, SOLVED, STEPS):
        stopper.reason = reason
        assert not stopper.interrupted()
    stopper.reason = NOT_FINITE
    assert stopper.interrupted()
    assert Stopper(lambda: 0, 10, time_limit=0).interrupted()


def test_an_episode_from_before_a_resume_has_no_video(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert Recording(tmp_path).finish(Episode(1.0, 6, 60, 1.0)) == ""
    assert "No video of episode 1" in caplog.text


def test_a_video_replaces_the_one_of_the_same_episode_before_a_resume(tmp_path):
    recording, episode = Recording(tmp_path), catch_episode()
    recording.folder.mkdir()
    others = {"play-1-episode-1.part.webm", "episode-11-return-7.webm"}
    for name in ("episode-1-return-7.webm", *others):
        (recording.folder / name).touch()
    name = recording.finish(episode)
    assert name == f"episode-1-return-{episode.total:g}.webm"
    assert recording.files == others | {name}


def test_a_resumed_run_removes_later_and_unfinished_videos(tmp_path):
    (tmp_path / "videos").mkdir()
    kept = {"episode-3-return-1.webm", "play-100-episode-7-return-1.webm", "episode-final.webm", "episode-9-best.webm"}
    for name in (*kept, "episode-12-return--1.5.webm", "episode-2.part.webm"):
        (tmp_path / "videos" / name).touch()
    videos.cut_back(tmp_path, 3)
    assert {path.name for path in (tmp_path / "videos").iterdir()} == kept


def test_a_native_game_with_sticky_actions_is_not_recorded(tmp_path, caplog):
    recording = Recording(tmp_path, STICKY, native=True)
    assert "repeat_action_probability 0.25" in caplog.text
    assert recording.finish(catch_episode()) == ""
    assert recording.files == set()


@pytest.mark.parametrize(("env_id", "native"), [(STICKY, False), (SHORT, True)])
def test_other_games_are_recorded_without_a_warning(tmp_path, caplog, env_id, native):
    Recording(tmp_path, env_id, native=native)
    assert caplog.text == ""


def test_sources_know_whether_they_play_native_games():
    assert stream_source(SHORT, 1).native
    assert segment_source(SHORT, 2).native
    assert not stream_source(CODED, 1).native
    assert not segment_source(CODED, 2).native
    assert not single_source(SHORT, 1).native


@pytest.mark.parametrize(
    ("env_id", "render", "reason"),
    [
        ("fakes:Catch-v0", None, "render_modes are []"),
        ("fakes:Shown-v0", lambda self: None, "(height, width, 3)"),
    ],
)
def test_a_run_that_cannot_record_is_refused_before_it_starts(refused, monkeypatch, tmp_path, env_id, render, reason):
    if render is not None:
        monkeypatch.setattr("fakes.Shown.render", render)
    message = refused(BASELINE, *CATCH, "--runs-dir", tmp_path, "--env-id", env_id, "--record-every", 5)
    assert f"--record-every cannot record {env_id}" in message
    assert reason in message
    assert list(tmp_path.iterdir()) == []
