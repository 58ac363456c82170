"""Videos of training episodes: the replay equals the episode, whatever source played it."""

import logging
import os
from contextlib import contextmanager
from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
import torch

from lib.envs.single_env import make_env
from lib.errors import CallInterrupted, UsageError
from lib.experience.episodes import Episode, EpisodeTrace
from lib.run import episode_replayer, video_file, videos
from lib.run.episode_replayer import EpisodeReplayer
from lib.run.stopping import NOT_FINITE, SOLVED, STEPS, Stopper
from lib.run.video_file import Video
from running import BASELINE, CATCH

CODED, SHORT, STICKY = "fakes:Coded-v0", "fakes:ShortPong-v0", "fakes:StickyPong-v0"


# Sources of episodes


class Recording:
    """A recorder in which tests finish episodes by hand."""

    def __init__(self, run, env_id="fakes:Shown-v0", every=1, native=False):
        self.folder = run / "videos"
        self.untimed_blocks, self.animations = 0, []
        self.stopping = False
        self.episodes = SimpleNamespace(count=0, last=None)
        self.replayer = EpisodeReplayer(env_id)
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

    monkeypatch.setattr(episode_replayer, "make_env", make)
    replayer = EpisodeReplayer("fakes:Shown-v0")
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


def test_a_resumed_run_removes_later_videos(tmp_path):
    (tmp_path / "videos").mkdir()
    kept = {"episode-3-return-1.webm", "play-100-episode-7-return-1.webm", "episode-final.webm", "episode-9-best.webm"}
    for name in (*kept, "episode-12-return--1.5.webm"):
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
