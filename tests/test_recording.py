"""Episodes that are played again for their videos: the same ones, of whatever source."""

import io
import logging
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import ptan
import pytest
import torch
from PIL import Image

import fakes  # noqa: F401
from fakes import Linear
from lib.actors.parallel import Players
from lib.analysis import run_data
from lib.envs import vector_env
from lib.envs.single_env import make_env
from lib.errors import UsageError
from lib.experience import episodes
from lib.experience.episodes import Again, Episode
from lib.experience.source import ExperienceSourceFirstLast
from lib.experience.stream import ExperienceStream, Stream
from lib.ppo.actor import Acting
from lib.ppo.learner import PPOLearner, join_segments
from lib.ppo.model import Model
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.segments import Segments
from lib.ppo.update import Trainer, UpdateSettings
from lib.run import video_file, videos
from lib.run.stopping import SOLVED, STEPS, TIME, Stopper
from running import BASELINE, CATCH

CODED, SHORT, STICKY = "fakes:Coded-v0", "fakes:ShortPong-v0", "fakes:StickyPong-v0"


def agent_of(n_actions=2):
    torch.manual_seed(7)
    model = Linear(4 * 84 * 84)
    model.layer = torch.nn.Linear(4 * 84 * 84, n_actions)
    return ptan.agent.DQNAgent(model, ptan.actions.EpsilonGreedyActionSelector(0.9))


def source_of(env_id, num_envs):
    envs = [make_env(env_id, tweaked=True) for _ in range(num_envs)]
    n_actions = int(envs[0].action_space.n)
    return ExperienceSourceFirstLast(envs, agent_of(n_actions), gamma=0.9, seed=5)


def players_of(env_id, num_envs):
    return Players(source_of(env_id, num_envs), players=2, rounds=7)


def stream_of(env_id, num_envs):
    envs = vector_env.make_vector_env(env_id, num_envs)
    return ExperienceStream(envs, agent_of(int(envs.single_action_space.n)), seed=5)


def model_of(space, n_actions):
    torch.manual_seed(3)
    return Model(space, n_actions)


def sampler_of(env_id, num_envs):
    envs = vector_env.make_vector_env(env_id, num_envs)
    model = model_of(envs.single_observation_space, int(envs.single_action_space.n))
    return Sampler(envs, Agent(model), steps=16, seed=5)


def segments_of(env_id, num_envs):
    acting = Acting(env_id, envs=num_envs, actors=2, rollout=16, seed=5)
    model = model_of(acting.space, acting.n_actions)
    settings = UpdateSettings(minibatch=32, epochs=1, gamma=0.9, lam=0.9, clip=0.2, entropy=0.01)
    trainer = Trainer(model, torch.optim.Adam(model.parameters()), settings)
    return Segments(acting, PPOLearner(trainer))


def items_of(source):
    """All that a source plays, with the segments that are only looked at."""
    first = []
    if isinstance(source, Segments):
        source.learner.normalise_by = lambda segments: first.append((newest(segments), ends(segments)))
    for item in source:
        yield from first
        first.clear()
        yield newest(item), None if isinstance(item, episodes.ExperienceFirstLast) else ends(item)


def newest(taken):
    """The newest frames of the states that were acted in: an array (steps, environments, 84, 84)."""
    if isinstance(taken, episodes.ExperienceFirstLast):
        return np.asarray(taken.state)[-1][None, None]
    if isinstance(taken, tuple):
        return taken[0][None]
    rollout = join_segments(taken) if isinstance(taken, list) else taken
    return rollout.states[..., -1].numpy().copy()


def ends(taken):
    """Whether the episode ended: (steps, environments)."""
    if isinstance(taken, tuple):
        return (taken[3] | taken[4])[None]
    return (join_segments(taken) if isinstance(taken, list) else taken).ended.numpy().copy()


def played(make, env_id, num_envs, count):
    """What so many items of a source hold, and the episodes; half-way another source goes on from its state."""
    sources = [make(env_id, num_envs) for _ in range(2)]
    items, episodes = [], []
    for number, source in enumerate(sources):
        if number:
            source.load_state_dict(sources[0].state_dict())
        for _, item in zip(range(count // 2), items_of(source), strict=False):
            items.append(item)
            episodes += source.pop_episodes()
    for source in sources:
        if hasattr(source, "close"):
            source.close()
    return items, episodes


@pytest.mark.parametrize(
    ("make", "count"),
    [(source_of, 200), (players_of, 200), (stream_of, 100), (sampler_of, 8), (segments_of, 8)],
)
def test_an_episode_s_pictures_are_those_of_what_was_played(monkeypatch, make, count):
    monkeypatch.setattr(Stream, "RESTART", 90)  # in the middle of a rollout
    items, episodes = played(make, CODED, 4, count)
    lived = [tuple(code) for frames, _ in items for code in frames[:, :, 0, :4].reshape(-1, 4).tolist()]
    replayer = videos.EpisodeReplayer(CODED)
    assert len(episodes) > 20
    assert len({episode.length for episode in episodes}) > 5
    numbers = Counter()
    for episode in episodes:
        shown, again = [], episode.again()
        assert len(again.actions) - again.begins == episode.length
        result = replayer.play(episode, again, [lambda picture, shown=shown: shown.append(picture[0, :4, 0])])
        assert result.same
        assert (result.length, result.total) == (episode.length, pytest.approx(episode.total, rel=1e-6))
        codes = [tuple(code.tolist()) for code in shown]
        assert codes[:-1] == [code for code in lived if code[:2] == codes[0][:2]]
        assert [code[2] for code in codes] == list(range(episode.length + 1))
        numbers[codes[0][:2]] += 1
    assert set(numbers.values()) == {1}  # each was another one


def test_what_was_played_again_before_is_not_played_again_for_the_next_video():
    _, episodes = played(stream_of, CODED, 4, 100)
    replayer, steps = videos.EpisodeReplayer(CODED), []
    make = replayer._make

    def counting():
        env = make()
        step = env.step
        env.step = lambda action: steps.append(action) or step(action)
        return env

    replayer._make = counting
    followed = [episode for episode in episodes if episode.again().begins]
    assert all(replayer.play(episode, episode.again(), []).same for episode in followed)
    first = {}
    for episode in followed:
        first.setdefault(episode.again().seed, episode.again().begins)
    assert len(steps) == sum(first.values()) + sum(episode.length for episode in followed)


def test_a_run_that_goes_on_from_an_episode_has_no_videos_of_later_ones_and_no_halves(tmp_path):
    (tmp_path / "videos").mkdir()
    names = ["episode-3-return-1.webm", "episode-12-return--1.5.webm", "play-100-episode-7-return-1.webm"]
    for name in [*names, "episode-2.part.webm"]:
        (tmp_path / "videos" / name).touch()
    videos.cut_back(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.glob("videos/*")) == [names[0], names[2]]


class Watching(gym.Wrapper):
    """Keeps what it shows."""

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


@pytest.mark.parametrize(("make", "count"), [(stream_of, 320), (segments_of, 20)])
def test_a_native_game_is_played_again_after_as_many_no_ops(make, count):
    items, episodes = played(make, SHORT, 2, count)
    lives, now = [], [[], []]
    for frames, ended in items:
        for step in range(len(frames)):
            for env in range(2):
                now[env].append(frames[step, env])
                if ended[step, env]:
                    lives.append(now[env])
                    now[env] = []
    assert len(lives) == len(episodes) == 6
    agains = [episode.again() for episode in episodes]
    assert len({again.no_ops for again in agains}) > 3
    replayer = videos.EpisodeReplayer(SHORT)
    replayer.env = Watching(replayer.env)
    for episode, again, life in zip(episodes, agains, lives, strict=True):
        screens = []
        result = replayer.play(episode, again, [screens.append])
        assert result == (episode.total, episode.length, True)
        assert result.length == 100
        assert len(screens) == 101
        assert screens[0].shape == (210, 160, 3)
        assert not np.array_equal(screens[50][..., 0], screens[50][..., 2])  # in colours
        assert all(np.array_equal(frame, was) for frame, was in zip(replayer.env.frames, life, strict=False))
    assert min(episode.total for episode in episodes) < 0


def test_a_game_that_presses_keys_before_it_begins_is_played_again():
    _, episodes = played(stream_of, "fakes:ShortAirRaid-v0", 2, 320)
    agains = [episode.again() for episode in episodes]
    assert min(again.no_ops for again in agains) >= 8
    replayer = videos.EpisodeReplayer("fakes:ShortAirRaid-v0")
    results = [replayer.play(episode, again, []) for episode, again in zip(episodes, agains, strict=True)]
    assert len(results) == 6
    assert all(result.same for result in results)


@pytest.mark.parametrize("env_id", [SHORT, STICKY])
def test_a_game_with_seeds_of_its_own_is_played_again_whatever_chance_is_in_it(env_id):
    source = source_of(env_id, 1)
    transitions = iter(source)
    states = [np.asarray(next(transitions).state)[-1] for _ in range(200)]
    [first, second] = source.pop_episodes()
    replayer = videos.EpisodeReplayer(env_id)
    replayer.env = Watching(replayer.env)
    for episode, lived in ((second, states[first.length :]), (first, states)):
        assert replayer.play(episode, episode.again(), []) == (episode.total, episode.length, True)
        assert all(np.array_equal(frame, was) for frame, was in zip(replayer.env.frames[:-1], lived, strict=False))


class Told:
    """A recorder of episodes that a test tells of."""

    def __init__(self, run, env_id="fakes:Shown-v0", every=3, native=False):
        self.aside, self.animations = [], []
        self.stopping = False
        self.counted = SimpleNamespace(count=0, last=None)
        self.replayer = videos.EpisodeReplayer(env_id)
        self.recorder = videos.Recorder(
            self.replayer, run, every, self.counted, native, self.apart, lambda: self.stopping
        )
        self.recorder.on_video = lambda animation, episode: self.animations.append((animation, episode))

    @contextmanager
    def apart(self):
        self.aside.append("begins")
        yield
        self.aside.append("ends")

    def __call__(self, episode):
        self.counted.count += 1
        self.counted.last = episode
        self.recorder(None)
        return self.recorder.video


def episode_of(seed=1, total=None):
    """Catch without moving."""
    env = make_env("fakes:Shown-v0")
    state, _ = env.reset(seed=seed)
    for _ in range(6):
        last, (state, reward, *_) = state, env.step(1)
    again = Again(seed, [1] * 6, last)
    return Episode(float(reward) if total is None else total, 6, 60, 1.0, lambda: again)


def test_every_third_is_recorded_and_the_randomness_and_the_clock_are_left_alone(tmp_path):
    told = Told(tmp_path)
    torch.manual_seed(1)
    np.random.seed(1)
    expected = torch.rand(3).tolist(), np.random.rand()
    torch.manual_seed(1)
    np.random.seed(1)
    episodes = [episode_of(seed) for seed in range(7)]
    told.replayer.env.reset = drawing(told.replayer.env.reset)
    names = [told(episode) for episode in episodes]
    assert (torch.rand(3).tolist(), np.random.rand()) == expected
    assert names == [
        *("", ""),
        f"videos/episode-3-return-{episodes[2].total:g}.webm",
        *("", ""),
        f"videos/episode-6-return-{episodes[5].total:g}.webm",
        "",
    ]
    assert sorted(f"videos/{path.name}" for path in (tmp_path / "videos").iterdir()) == sorted(filter(None, names))
    assert told.aside == ["begins", "ends"] * 2
    assert [episode for _, episode in told.animations] == [episodes[2], episodes[5]]


def drawing(reset):
    def draws(**options):
        torch.rand(1)
        np.random.rand()
        return reset(**options)

    return draws


def test_an_episode_that_does_not_repeat_itself_has_no_video_and_that_is_said_once(tmp_path, caplog):
    told = Told(tmp_path, "fakes:Forgetful-v0", every=1)
    right = episode_of(1)
    fitting = [told(right) for _ in range(40)]
    assert 0 < sum(bool(name) for name in fitting) < 25  # the ball falls in one of seven places; most look the same
    assert all(bool(name) == Path(tmp_path, name).is_file() for name in fitting)
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "does not repeat itself" in warning
    assert not list(tmp_path.glob("videos/*.part.webm"))


def test_an_environment_that_fails_when_it_is_played_again_costs_a_video_and_nothing_else(tmp_path, caplog):
    told = Told(tmp_path, every=1)
    step = told.replayer.env.step
    told.replayer.env.step = failing
    assert [told(episode_of()), told(episode_of())] == ["", ""]
    [warning] = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert "No video of episode 1: played again, its environment failed with RuntimeError: not now." in warning
    assert list((tmp_path / "videos").iterdir()) == []
    told.replayer.env.step = step
    assert told(episode_of()) != ""


def failing(action):
    raise RuntimeError("not now")


def test_a_video_has_pictures_of_one_size_in_three_colours(tmp_path):
    video = video_file.Video(tmp_path / "video.webm", 10)
    with pytest.raises(UsageError, match=r"gave uint8 \(64, 64, 4\); a video needs pictures of \(height, width, 3\)"):
        video.show(np.zeros((64, 64, 4), np.uint8))
    with pytest.raises(UsageError, match=r"gave float32 \(64, 64, 3\)"):
        video.show(np.zeros((64, 64, 3), np.float32))
    video.show(np.zeros((400, 400, 3), np.uint8))
    with pytest.raises(UsageError, match=r"of \(400, 400, 3\) and \(400, 500, 3\); a video needs one size"):
        video.show(np.zeros((400, 500, 3), np.uint8))
    video.close()


@pytest.mark.parametrize("how", ["total", "length", "last_state", "longer"])
def test_another_return_length_or_state_is_another_episode(tmp_path, how):
    told, right = Told(tmp_path, every=1), episode_of(1)
    again = right.again()
    wrong = {
        "total": right._replace(total=right.total + 0.01),
        "length": right._replace(length=7),
        "last_state": right._replace(again=lambda: again._replace(last_state=np.zeros((4, 84, 84), np.uint8))),
        "longer": right._replace(again=lambda: again._replace(actions=[1] * 5)),
    }
    assert told(wrong[how]) == ""
    assert list((tmp_path / "videos").iterdir()) == []
    assert told(right) != ""


def test_a_run_that_is_told_to_stop_leaves_no_half_a_video(tmp_path):
    told = Told(tmp_path, every=1)
    told.stopping = True
    assert told(episode_of()) == ""
    told.stopping = False
    told.replayer.env.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        told(episode_of())
    assert list((tmp_path / "videos").iterdir()) == []


def interrupted(action):
    raise KeyboardInterrupt


def test_only_a_signal_makes_a_run_leave_videos_out():
    stopper = Stopper(lambda: 0, 10, None)
    for reason in (None, SOLVED, STEPS, TIME):
        stopper.reason = reason
        assert not stopper.interrupted()
    stopper.reason = "SIGTERM"
    assert stopper.interrupted()


def test_the_video_of_an_episode_that_is_played_anew_is_replaced(tmp_path):
    folder = tmp_path / "videos"
    folder.mkdir()
    for name in ("play-1-episode-1.part.webm", "episode-1-return-7.webm", "episode-11-return-7.webm"):
        (folder / name).touch()
    told = Told(tmp_path, every=1)
    episode = episode_of()
    assert told(episode) == f"videos/episode-1-return-{episode.total:g}.webm"
    assert {path.name for path in folder.iterdir()} == {
        *("play-1-episode-1.part.webm", "episode-11-return-7.webm"),  # another's
        f"episode-1-return-{episode.total:g}.webm",
    }


def test_a_video_takes_no_other_ones_name(tmp_path):
    kept = []
    for number in range(3):
        video = video_file.Video(tmp_path / f"{number}.part.webm", 10.0)
        video.show(np.full((32, 32, 3), 80 * number, np.uint8))
        kept.append(video.keep_as("play-1-episode-1-return-20"))
    stem = "play-1-episode-1-return-20"
    assert [path.name for path in kept] == [f"{stem}.webm", f"{stem}-2.webm", f"{stem}-3.webm"]
    assert len({path.read_bytes() for path in kept}) == len(list(tmp_path.iterdir())) == 3
    assert all(run_data.VIDEO.match(path.name)["total"] == "20" for path in kept)


def test_an_episode_of_which_nobody_knows_how_it_was_played_has_no_video(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    assert Told(tmp_path, every=1)(Episode(1.0, 6, 60, 1.0)) == ""
    assert "No video of episode 1: it had ended before the run was resumed" in caplog.text


def test_a_native_game_with_chance_in_it_is_told_of_at_once(tmp_path, caplog):
    told = Told(tmp_path, STICKY, every=1, native=True)
    assert "repeats actions by chance (repeat_action_probability 0.25)" in caplog.text
    assert told(episode_of()) == ""
    assert not (tmp_path / "videos").exists()
    caplog.clear()
    Told(tmp_path, STICKY)
    Told(tmp_path, SHORT, native=True)
    assert caplog.text == ""


def test_sources_tell_whether_they_play_native_games():
    assert stream_of(SHORT, 1).native
    assert segments_of(SHORT, 2).native
    assert not stream_of(CODED, 1).native
    assert not segments_of(CODED, 2).native
    assert not hasattr(source_of(SHORT, 1), "native")


@pytest.mark.parametrize(("length", "kept", "pause"), [(1001, 91, 100), (90, 90, 70)])  # in steps of 10 ms
def test_an_animation_is_short_small_and_as_fast_as_the_game_or_faster(length, kept, pause):
    animation = video_file.Animation(14.0, length)
    for number in range(length):
        picture = np.full((420, 320, 3), 60, np.uint8)
        picture[4 * number % 400, :, 1] = 200
        animation.show(picture)
    gif = Image.open(io.BytesIO(animation.encoded()))
    assert (gif.n_frames, gif.size, animation.size) == (kept, (160, 210), (210, 160))
    assert gif.info["duration"] == pause


def test_an_animation_that_cannot_be_compressed_has_fewer_pictures():
    rng = np.random.default_rng(1)
    animation = video_file.Animation(15.0, 100)
    for _ in range(100):
        animation.show(rng.integers(256, size=(210, 160, 3)).astype(np.uint8))
    encoded = animation.encoded()
    assert len(encoded) <= 2**20
    assert 10 <= Image.open(io.BytesIO(encoded)).n_frames < 40


def test_what_cannot_be_recorded_is_refused_before_anything_is_begun(refused, monkeypatch, tmp_path):
    def ask(*options):
        said = refused(BASELINE, *CATCH, "--runs-dir", tmp_path, *options)
        assert list(tmp_path.iterdir()) == []
        return said

    said = ask("--record-every", 5)
    assert (
        "--record-every cannot record fakes:Catch-v0: fakes:Catch-v0 cannot be shown: its render_modes are []" in said
    )
    assert "Run it without --record-every" in said
    assert "0 is below 1" in ask("--record-every", 0)
    monkeypatch.setattr("lib.run.video_file.CODEC", "none")
    assert "it has no none encoder" in ask("--env-id", "fakes:Shown-v0", "--record-every", 5)
    monkeypatch.setattr("fakes.Shown.render", lambda self: None)
    assert "a video needs pictures of" in ask("--env-id", "fakes:Shown-v0", "--record-every", 5)
