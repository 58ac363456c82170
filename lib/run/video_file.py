"""Video files of episodes: WebM for the run folder, a small GIF for TensorBoard."""

import io
import itertools
import math
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cv2
import gymnasium as gym
import numpy as np

from lib.envs.atari import frame_skip, is_atari
from lib.errors import Fault, UsageError

CODEC = "VP80"  # every browser plays VP8 in WebM, and OpenCV includes the encoder
LONGEST_SIDE = 16_383  # pixels, the limit of VP8
MIN_SIDE = 320  # smaller frames are enlarged until their shorter side has this many pixels
ENLARGED_SIDE = 2560  # longest side of an enlarged frame, in pixels

GIF_MAX_FRAMES = 100
GIF_MAX_SIDE = 210  # pixels of the longer side, which is the height of an Atari screen
GIF_MAX_BYTES = 2**20
# Milliseconds between two frames. Browsers slow down GIFs with a shorter delay than the minimum. A longer delay
# than the maximum looks jerky.
GIF_MIN_DELAY, GIF_MAX_DELAY = 20, 100

ATARI_FRAMES_PER_SECOND = 60
DEFAULT_FRAMES_PER_SECOND = 30


class Video:
    """WebM file that is written frame by frame.

    Args:
        path: file to write. Its folder is created.
        frames_per_second: frames shown per second.
    """

    def __init__(self, path: Path, frames_per_second: float):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.frames_per_second = frames_per_second
        self._writer: cv2.VideoWriter | None = None
        self._shape: tuple[int, ...] = ()
        self._written = 0

    def write(self, frame: np.ndarray) -> None:
        """Append a frame.

        Args:
            frame: RGB image of shape (height, width, 3) and dtype uint8. All frames have the same shape.

        Raises:
            UsageError: if the frame has another shape or dtype, or if OpenCV cannot write the file.
        """
        frame = enlarge(frame)
        if self._writer is None:
            self._shape = frame.shape
            self._writer = self._open(frame.shape[1], frame.shape[0])
        if frame.shape != self._shape:
            raise UsageError(f"render() gave frames of {self._shape} and {frame.shape}; a video needs one size")
        self._writer.write(np.ascontiguousarray(frame[:, :, ::-1]))
        self._written += 1

    def _open(self, width: int, height: int) -> cv2.VideoWriter:
        with _silent_stderr():
            fourcc = cv2.VideoWriter.fourcc(*CODEC)
            writer = cv2.VideoWriter(self._name(), fourcc, self.frames_per_second, (width, height))
        if not writer.isOpened():
            if max(width, height) > LONGEST_SIDE:
                raise UsageError(
                    f"frames of {width} x {height} pixels are too large for a video; each side can have at most "
                    f"{LONGEST_SIDE:,}"
                )
            raise UsageError(
                f"OpenCV {cv2.__version__} cannot write {self.path}: it has no {CODEC} encoder, or the folder cannot "
                "be written to. To install the encoder: pip install --force-reinstall opencv-python-headless"
            )
        return writer

    def _name(self) -> str:
        """Return the absolute path, because FFmpeg reads text before a colon as a protocol."""
        return str(self.path.absolute())

    def close(self) -> None:
        """Finish the file. Closing it again has no effect."""
        if self._writer is not None:
            self._writer.release()

    def discard(self) -> None:
        """Close and remove the file, if it exists."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close_as(self, stem: str) -> Path:
        """Finish the file, check it and rename it. If the name is taken, "-2", "-3" and so on is appended.

        Args:
            stem: new file name without folder and ".webm".

        Returns:
            The new path.

        Raises:
            Fault: if the file does not hold all frames, for example because the disk is full. It is removed.
        """
        self.close()
        self._require_all_frames()
        suffixes = itertools.chain([""], (f"-{number}" for number in itertools.count(2)))
        candidates = (self.path.with_name(f"{stem}{suffix}.webm") for suffix in suffixes)
        self.path = self.path.rename(next(path for path in candidates if not path.exists()))
        return self.path

    def _require_all_frames(self) -> None:
        """Raise a Fault if the file lacks frames, because OpenCV does not report errors of writing."""
        with _silent_stderr():
            capture = cv2.VideoCapture(self._name())
            frames = 0
            while capture.grab():
                frames += 1
            capture.release()
        if frames != self._written:
            self.discard()
            free = shutil.disk_usage(self.path.parent).free / 1e6
            raise Fault(
                f"the video has {frames} of its {self._written} frames, so it was removed; the disk of "
                f"{self.path.parent} has {free:,.0f} MB left"
            )


@contextmanager
def unfinished_video(path: Path, frames_per_second: float) -> Iterator[Video]:
    """Yield a video. It is removed at the end of the block, unless `close_as` has given it another name."""
    video = Video(path, frames_per_second)
    try:
        yield video
    finally:
        video.close()
        path.unlink(missing_ok=True)


class Animation:
    """Small GIF of an episode. Long episodes are shown with fewer frames, and faster than in the game.

    Args:
        frames_per_second: frames per second of the game.
        length: number of frames that will be added.
    """

    def __init__(self, frames_per_second: float, length: int):
        self._stride = math.ceil(length / GIF_MAX_FRAMES)
        self._delay = self._stride * (1000 / frames_per_second)
        self._count = 0
        self._frames: list[np.ndarray] = []

    def add(self, frame: np.ndarray) -> None:
        """Add a frame of shape (height, width, 3) and dtype uint8. Only every n-th one is kept."""
        if self._count % self._stride == 0:
            self._frames.append(_shrink(frame))
        self._count += 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the GIF in pixels."""
        height, width = self._frames[0].shape[:2]
        return height, width

    def encoded(self) -> bytes:
        """Encode the GIF. If it exceeds GIF_MAX_BYTES, frames are dropped until it fits."""
        from PIL import Image  # imported late because it is slow and few runs need it

        # The octree method is the fastest one, and it keeps the few colours of a game unchanged.
        octree, no_dither = Image.Quantize.FASTOCTREE, Image.Dither.NONE
        images = [Image.fromarray(frame).quantize(method=octree, dither=no_dither) for frame in self._frames]
        delay = self._delay
        while True:
            file = io.BytesIO()
            duration = min(max(GIF_MIN_DELAY, delay), GIF_MAX_DELAY)
            images[0].save(file, "GIF", save_all=True, append_images=images[1:], duration=duration, loop=0)
            if file.tell() <= GIF_MAX_BYTES or len(images) == 1:
                return file.getvalue()
            stride = math.ceil(file.tell() / GIF_MAX_BYTES)
            images, delay = images[::stride], stride * delay


def enlarge(frame: np.ndarray) -> np.ndarray:
    """Double a frame's size until its shorter side has MIN_SIDE pixels, or the longer one would exceed ENLARGED_SIDE.

    Height and width become even.

    Raises:
        UsageError: if it is not an RGB frame, (height, width, 3) uint8.
    """
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.shape[2:] != (3,) or not frame.size:
        given = f"{frame.dtype} {frame.shape}" if isinstance(frame, np.ndarray) else repr(type(frame))
        raise UsageError(f"render() gave {given}; frames have to be (height, width, 3) uint8")
    while (short := min(frame.shape[:2])) < 2 or (short < MIN_SIDE and 2 * max(frame.shape[:2]) <= ENLARGED_SIDE):
        frame = frame.repeat(2, axis=0).repeat(2, axis=1)
    height, width = frame.shape[:2]
    return frame[: height // 2 * 2, : width // 2 * 2]


def frames_per_second(env: gym.Env) -> float:
    """Return how many agent steps make one second of the game. A video shows one frame per agent step."""
    if is_atari(env):  # ale_py's metadata says 30, but the Atari 2600 showed 60 frames per second
        return ATARI_FRAMES_PER_SECOND / frame_skip(env)
    rate = env.metadata.get("render_fps")
    return rate if isinstance(rate, int | float) and rate > 0 else DEFAULT_FRAMES_PER_SECOND


def _shrink(frame: np.ndarray) -> np.ndarray:
    """Return a copy whose longer side has at most GIF_MAX_SIDE pixels."""
    height, width = frame.shape[:2]
    scale = GIF_MAX_SIDE / max(height, width)
    if scale >= 1.0:
        return frame.copy()
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(frame, size, interpolation=cv2.INTER_AREA)


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Discard what C libraries write to standard error: OpenCV prints a harmless note about the codec's tag."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)
