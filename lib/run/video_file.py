"""Where the screens of an episode go: a video file, or a window."""

import io
import itertools
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from lib.envs.atari import frame_skip, is_atari
from lib.errors import UsageError

CODEC = "VP80"  # in WebM: every browser plays it, and OpenCV brings its encoder along


ANIMATED = 100  # pictures that an animation has at most


PAUSE = (20, 100)  # milliseconds between two of them: what browsers can do, and what still looks like moving


SIDE = 210  # pixels of its longer side at most; an Atari screen's


LARGEST = 2**20  # bytes


SMALLEST = 320  # pixels that a picture is enlarged to at least


CONSOLE = 60  # frames a second


class Video:
    """A WebM file.

    Args:
        path: of the file, whose folder is made.
        per_second: pictures of a second.

    Raises:
        UsageError: there is no encoder for it here.
    """

    def __init__(self, path: Path, per_second: float):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.per_second = per_second
        self._writer: Any = None
        self._shape: tuple[int, ...] | None = None

    def show(self, picture: np.ndarray) -> None:
        """Write a picture.

        Args:
            picture: (height, width, 3) uint8, RGB, all of one size.

        Raises:
            UsageError: it is not that.
        """
        import cv2

        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8 or picture.shape[2:] != (3,):
            shown = f"{picture.dtype} {picture.shape}" if isinstance(picture, np.ndarray) else repr(type(picture))
            raise UsageError(f"render() gave {shown}; a video needs pictures of (height, width, 3) uint8")
        picture = enlarged(picture)
        if self._shape not in (None, picture.shape):
            raise UsageError(f"render() gave pictures of {self._shape} and {picture.shape}; a video needs one size")
        self._shape = picture.shape
        if self._writer is None:
            size = (picture.shape[1], picture.shape[0])
            with _no_chatter():
                self._writer = cv2.VideoWriter(str(self.path), cv2.VideoWriter.fourcc(*CODEC), self.per_second, size)
            if not self._writer.isOpened():
                raise UsageError(
                    f"OpenCV {cv2.__version__} cannot write {self.path}: it has no {CODEC} encoder, or the folder is "
                    "not to be written; pip install --force-reinstall opencv-python-headless brings the encoder"
                )
        self._writer.write(np.ascontiguousarray(picture[:, :, ::-1]))

    def close(self) -> None:
        """Finish the file; once more does no harm."""
        if self._writer is not None:
            self._writer.release()

    def keep_as(self, stem: str) -> Path:
        """Finish the file and give it this name, with "-2", "-3", ... behind it where there is one of it already.

        Args:
            stem: without the folder, which stays, and without ".webm".

        Returns:
            Where it is now.
        """
        self.close()
        names = (f"{stem}{'' if number == 1 else f'-{number}'}.webm" for number in itertools.count(1))
        free = next(path for path in map(self.path.with_name, names) if not path.exists())
        self.path = self.path.rename(free)
        return self.path


class Animation:
    """A GIF of an episode: some of its pictures, small, at the speed of the game, or faster if it is long.

    Args:
        per_second: pictures of a second.
        length: how many pictures will be shown.
    """

    def __init__(self, per_second: float, length: int):
        self._every = math.ceil(length / ANIMATED)
        self._shown = 0
        self._milliseconds = 1000 / per_second
        self._pictures: list[np.ndarray] = []

    def show(self, picture: np.ndarray) -> None:
        """Take a picture, (height, width, 3) uint8, RGB, or let it pass."""
        if self._shown % self._every == 0:
            self._pictures.append(_reduced(picture))
        self._shown += 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self._pictures[0].shape[:2]
        return height, width

    def encoded(self) -> bytes:
        """The file's content, LARGEST bytes at most where that can be had by leaving pictures out."""
        from PIL import Image  # takes a while, and few runs draw

        # An octree keeps a game's few colours as they are, and is by far the fastest.
        octree, plain = Image.Quantize.FASTOCTREE, Image.Dither.NONE
        images = [Image.fromarray(picture).quantize(method=octree, dither=plain) for picture in self._pictures]
        milliseconds = self._every * self._milliseconds
        while True:
            file = io.BytesIO()
            first, *others = images
            pause = min(max(PAUSE[0], milliseconds), PAUSE[1])
            first.save(file, "GIF", save_all=True, append_images=others, duration=pause, loop=0)
            if file.tell() <= LARGEST or not others:
                return file.getvalue()
            fewer = math.ceil(file.tell() / LARGEST)
            images, milliseconds = images[::fewer], fewer * milliseconds


@contextmanager
def _no_chatter() -> Iterator[None]:
    """OpenCV's library writes to the terminal itself, and past Python, that it knows VP8 in WebM by another name."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def enlarged(picture: np.ndarray) -> np.ndarray:
    """The picture, each of its points doubled until it is large enough to be looked at; even numbers of them."""
    while min(picture.shape[:2]) < SMALLEST:
        picture = picture.repeat(2, axis=0).repeat(2, axis=1)
    height, width = picture.shape[:2]
    return picture[: height // 2 * 2, : width // 2 * 2]


def _reduced(picture: np.ndarray) -> np.ndarray:
    """A copy of the picture, smaller if it is larger than SIDE."""
    import cv2

    height, width = picture.shape[:2]
    scale = SIDE / max(height, width)
    if scale >= 1.0:
        return picture.copy()
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return cv2.resize(picture, size, interpolation=cv2.INTER_AREA)


def per_second(env: gym.Env) -> float:
    """How many pictures, one an agent step, are a second of the game."""
    if is_atari(env):  # whose metadata say 30 frames a second, which is half of what the console made
        return CONSOLE / frame_skip(env)
    return env.metadata.get("render_fps") or 30
