"""Videos of training episodes: files, replays that equal the episode whatever source played it, and the recorder."""

import logging
from contextlib import nullcontext
from types import SimpleNamespace
from unittest.mock import Mock

import cv2
import numpy as np
import pytest

from fakes import Shown
from lib.envs.single_env import make_env
from lib.errors import Fault
from lib.experience.interface import Episode, EpisodeTrace
from lib.run import videos
from lib.run.checkpoint import restore_files
from lib.run.folder import RunFolder
from lib.run.videos import EpisodeReplayer, Video
from running import full_disk

# Files


GREY = np.full((4, 6), 200, np.uint8)


def test_frames_of_every_kind_become_rgb():
    rgb, transparent = np.dstack([GREY] * 3), np.dstack([GREY, GREY, GREY, 0 * GREY])
    for frame in (GREY, GREY[:, :, None], transparent, rgb.astype(np.int64), rgb / 255, rgb.astype(np.float32)):
        assert np.array_equal(videos.enlarge(frame), videos.enlarge(rgb))


def test_any_number_above_0_is_a_frame_rate():
    env = Shown()
    for given, rate in ((np.float32(0.5), 0.5), (0, 30.0), (None, 30.0)):
        env.metadata = {"render_fps": given}
        assert videos.frames_per_second(env) == rate


def test_a_video_is_removed_unless_it_gets_its_name(tmp_path, capfd):
    for shade in (40, 200):
        with Video(tmp_path / "part.webm", 10) as video:
            for _ in range(3):
                video.write(np.full((400, 400, 3), shade, np.uint8))
            video.write(np.full((700, 500, 3), shade, np.uint8))  # the size of a window may change
            path = video.keep("episode.webm")
    with Video(tmp_path / "part.webm", 10) as video:
        video.write(np.zeros((400, 400, 3), np.uint8))
    assert list(tmp_path.iterdir()) == [path]
    shown = cv2.VideoCapture(str(path))
    assert (shown.get(cv2.CAP_PROP_FRAME_COUNT), shown.get(cv2.CAP_PROP_FPS)) == (4, 10)
    assert abs(int(shown.read()[1].mean()) - 200) < 5  # the newer one of the same name
    assert capfd.readouterr().err == ""


def test_an_incomplete_video_is_not_kept(tmp_path):
    with full_disk(200_000), Video(tmp_path / "part.webm", 10) as video:
        for frame in np.random.default_rng(1).integers(0, 256, (30, 320, 320, 3), np.uint8):
            video.write(frame)
        with pytest.raises(Fault, match=r"episode\.webm is incomplete; the disk of .* may be full"):
            video.keep("episode.webm")
    assert not list(tmp_path.iterdir())


# The recorder


class Recording:
    """A recorder in which tests finish episodes by hand."""

    def __init__(self, run, every=1):
        self.folder = run / "videos"
        self.untimed_blocks, self.announced = 0, []
        self.stopping = False
        self.episodes = SimpleNamespace(count=0, last=None)
        self.replayer = EpisodeReplayer("fakes:Shown-v0")
        self.recorder = videos.Recorder(
            self.replayer, run, every, self.episodes, self.untimed, lambda: self.stopping, self.announced.append
        )

    def untimed(self):
        self.untimed_blocks += 1
        return nullcontext()

    def finish(self, episode):
        """Finish an episode, and return the name of its video."""
        self.episodes.count += 1
        self.episodes.last = episode
        return self.recorder().removeprefix("videos/")

    @property
    def files(self):
        return {path.name for path in self.folder.iterdir()} if self.folder.exists() else set()


def catch_episode(seed=1):
    """An episode of Catch in which the paddle does not move."""
    env = make_env("fakes:Shown-v0")
    state, _ = env.reset(seed=seed)
    for _ in range(6):
        last, (state, reward, *_) = state, env.step(1)
    return Episode(float(reward), 6, 60, 1.0, trace=EpisodeTrace(seed, np.ones(6, int), last))


def warnings(caplog):
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def test_every_third_episode_is_recorded_outside_of_the_training_time_and_the_newest_videos_are_kept(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(videos, "MAX_KEPT_VIDEOS", 2)
    recording = Recording(tmp_path, every=3)
    episodes = [catch_episode(seed) for seed in range(13)]
    names = [recording.finish(episode) for episode in episodes]
    expected = [f"episode-{number}-return-{episodes[number - 1].total:g}.webm" for number in (3, 6, 9, 12)]
    assert list(filter(None, names)) == expected == [names[number - 1] for number in (3, 6, 9, 12)]
    assert recording.files == set(expected[2:])
    assert recording.untimed_blocks == 4
    assert [path.name for path in recording.announced] == expected


@pytest.mark.parametrize("difference", ["total", "length", "last_state", "longer"])
def test_an_episode_that_differs_in_its_replay_has_no_video(tmp_path, caplog, difference):
    recording, episode = Recording(tmp_path), catch_episode()
    trace = episode.trace
    changed = {
        "total": episode._replace(total=episode.total + 0.01),
        "length": episode._replace(length=7),
        "last_state": episode._replace(trace=trace._replace(last_state=np.zeros((4, 84, 84), np.uint8))),
        "longer": episode._replace(trace=trace._replace(actions=[1] * 5)),
    }
    assert [recording.finish(changed[difference]) for _ in range(2)] == ["", ""]
    assert recording.files == set()
    assert len(warnings(caplog)) == 1  # not one per episode
    assert recording.finish(episode) != ""


def test_an_error_in_the_replay_or_the_end_of_the_run_costs_only_the_video(tmp_path, caplog):
    recording = Recording(tmp_path)
    recording.stopping = True
    assert recording.finish(catch_episode()) == ""
    assert warnings(caplog) == []
    recording.stopping = False
    step, recording.replayer.env.step = recording.replayer.env.step, Mock(side_effect=RuntimeError("not now"))
    assert [recording.finish(catch_episode()) for _ in range(2)] == ["", ""]
    [warning] = warnings(caplog)
    assert "No video of episode 2: RuntimeError: not now" in warning
    recording.replayer.env.step = Mock(side_effect=KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        recording.finish(catch_episode())
    assert recording.files == set()
    recording.replayer.env.step = step
    assert recording.finish(catch_episode()) != ""


def test_a_resume_removes_the_videos_of_undone_episodes(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    recording = Recording(tmp_path)
    recording.folder.mkdir()
    kept = {"episode-1-return-7.webm", "play-100-episode-7-return-1.webm", "episode-9-best.webm"}
    for name in (*kept, "episode-12-return--1.5.webm"):
        (recording.folder / name).touch()
    restore_files(RunFolder(tmp_path), {}, 0, 3)
    assert recording.files == kept
    assert recording.finish(Episode(1.0, 6, 60, 1.0)) == ""
    assert "No video of episode 1: it ended before the run was resumed" in caplog.text
