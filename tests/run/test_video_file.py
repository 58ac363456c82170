"""Video files: formats, names and sizes."""

import io

import numpy as np
import pytest
from PIL import Image

from lib.analysis.run_data import VIDEO_NAME
from lib.errors import Fault, UsageError
from lib.run import video_file
from lib.run.video_file import Animation, Video
from running import full_disk


@pytest.mark.parametrize(
    ("frame", "given"),
    [
        (np.zeros((64, 64, 4), np.uint8), r"uint8 \(64, 64, 4\)"),
        (np.zeros((64, 64, 3), np.float32), r"float32 \(64, 64, 3\)"),
        (None, "NoneType"),
    ],
)
def test_a_video_refuses_anything_but_rgb_frames(tmp_path, frame, given):
    with pytest.raises(UsageError, match=rf"{given}.*\(height, width, 3\) uint8"):
        Video(tmp_path / "video.webm", 10).write(frame)


@pytest.mark.parametrize(
    ("frame", "enlarged"),
    [
        ((84, 84), (336, 336)),
        ((16, 800), (32, 1600)),
        ((32, 640), (128, 2560)),
        ((1, 2001), (2, 4002)),
        ((9, 9), (576, 576)),
    ],
)
def test_small_frames_are_enlarged_but_a_strip_only_to_the_width_of_a_screen(frame, enlarged):
    assert video_file.enlarge(np.zeros((*frame, 3), np.uint8)).shape == (*enlarged, 3)


def test_all_frames_of_a_video_have_one_size(tmp_path):
    video = Video(tmp_path / "video.webm", 10)
    video.write(np.zeros((400, 400, 3), np.uint8))
    with pytest.raises(UsageError, match=r"\(400, 400, 3\) and \(400, 500, 3\)"):
        video.write(np.zeros((400, 500, 3), np.uint8))
    video.close()


def test_a_missing_encoder_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(video_file, "CODEC", "none")
    with pytest.raises(UsageError, match="no none encoder"):
        Video(tmp_path / "video.webm", 10).write(np.zeros((64, 64, 3), np.uint8))


def test_an_incomplete_video_is_removed(tmp_path):
    video = Video(tmp_path / "video.webm", 10)
    with full_disk():
        for frame in np.random.default_rng(1).integers(0, 256, (30, 320, 320, 3), np.uint8):
            video.write(frame)
        video.close()
    with pytest.raises(Fault, match=r"of its 30 frames, so it was removed; the disk of .* has [\d,]+ MB left"):
        video.close_as("episode")
    assert not list(tmp_path.iterdir())


def test_a_video_does_not_replace_another_one(tmp_path):
    stem = "play-1-episode-1-return-20"
    paths = []
    for number in range(3):
        video = Video(tmp_path / f"{number}.part.webm", 10.0)
        video.write(np.full((32, 32, 3), 80 * number, np.uint8))
        paths.append(video.close_as(stem))
    assert [path.name for path in paths] == [f"{stem}.webm", f"{stem}-2.webm", f"{stem}-3.webm"]
    assert len({path.read_bytes() for path in paths}) == len(list(tmp_path.iterdir())) == 3
    assert all(VIDEO_NAME.match(path.name)["total"] == "20" for path in paths)


@pytest.mark.parametrize(("length", "kept", "delay"), [(1001, 91, 100), (90, 90, 70)])  # GIF delays are multiples of 10
def test_an_animation_is_small_and_a_long_episode_is_shown_faster(length, kept, delay):
    animation = Animation(14.0, length)
    for number in range(length):
        frame = np.full((420, 320, 3), 60, np.uint8)
        frame[4 * number % 400, :, 1] = 200
        animation.add(frame)
    gif = Image.open(io.BytesIO(animation.encoded()))
    assert (gif.n_frames, gif.size, animation.size) == (kept, (160, 210), (210, 160))  # type: ignore[attr-defined]
    assert gif.info["duration"] == delay


def test_an_animation_drops_frames_until_it_fits_the_size_limit(monkeypatch):
    monkeypatch.setattr(video_file, "GIF_MAX_BYTES", 2**17)
    rng = np.random.default_rng(1)
    animation = Animation(15.0, 50)
    for _ in range(50):
        animation.add(rng.integers(256, size=(105, 80, 3)).astype(np.uint8))
    encoded = animation.encoded()
    assert len(encoded) <= 2**17
    assert 5 <= Image.open(io.BytesIO(encoded)).n_frames < 40  # type: ignore[attr-defined]
