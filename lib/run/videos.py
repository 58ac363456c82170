"""Videos of training episodes.

A finished episode is replayed from its seed and actions in a separate environment that can render. It cannot be filmed
during training, because native environments render no colours, and actors may run on another machine. A video is kept
only if return, length and last state of the replay are those of the episode.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import cached_property
from pathlib import Path
from typing import Self

import cv2
import gymnasium as gym
import numpy as np

from lib.envs.atari import frame_skip, is_atari, reset_with_no_ops
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.experience.interface import Episode, EpisodeTrace, Stopped
from lib.run.episodes import VIDEOS, Episodes, episode_videos
from lib.run.evaluation import Untimed
from lib.system.log import silent_stderr
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

CODEC = "VP80"  # every browser plays VP8 in WebM, and OpenCV includes the encoder
MIN_SIDE = 320  # smaller frames are enlarged until their shorter side has this many pixels
ENLARGED_SIDE = 2560  # longest side of an enlarged frame, in pixels
ATARI_FRAMES_PER_SECOND = 60
DEFAULT_FRAMES_PER_SECOND = 30

MAX_KEPT_ENVS = 64
MAX_KEPT_VIDEOS = 20  # older ones of the run are removed

FrameSink = Callable[[np.ndarray], object]


class Video:
    """WebM file that is written frame by frame, in a folder that is created.

    The end of a `with` block removes the file at `path`, unless `keep` has given it another name.
    """

    def __init__(self, path: Path, frames_per_second: float):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._frames_per_second = frames_per_second
        self._writer: cv2.VideoWriter | None = None
        self._shape: tuple[int, ...] = ()
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.release()
        self._path.unlink(missing_ok=True)

    def write(self, frame: np.ndarray) -> None:
        """Append a frame; see `enlarge`. It is stretched to the size of the first one.

        Raises:
            UsageError: if the frame is no picture, or if OpenCV cannot write the file.
        """
        frame = enlarge(frame)
        if self._writer is None:
            self._shape = frame.shape
            self._writer = self._open(frame.shape[1], frame.shape[0])
        if frame.shape != self._shape:
            frame = cv2.resize(frame, self._shape[1::-1], interpolation=cv2.INTER_AREA)
        self._writer.write(np.ascontiguousarray(frame[:, :, ::-1]))
        self._written += 1

    def _open(self, width: int, height: int) -> cv2.VideoWriter:
        with silent_stderr():  # OpenCV prints a harmless note about the codec's tag
            # An absolute path, because FFmpeg reads text before a colon as a protocol.
            name, codec = str(self._path.absolute()), cv2.VideoWriter.fourcc(*CODEC)
            writer = cv2.VideoWriter(name, codec, self._frames_per_second, (width, height))
        if not writer.isOpened():
            raise UsageError(
                f"OpenCV {cv2.__version__} cannot write {self._path} with {width} x {height} pixels. A side may have "
                "16,383 at most. For a missing encoder: pip install --force-reinstall opencv-python-headless"
            )
        return writer

    def keep(self, name: str) -> Path:
        """Finish the video, and give it its name in the same folder. An older file of that name is replaced.

        Raises:
            Fault: if frames are missing, because the disk is full.
        """
        assert self._writer is not None
        self._writer.release()
        with silent_stderr():
            frames = cv2.VideoCapture(str(self._path.absolute())).get(cv2.CAP_PROP_FRAME_COUNT)
        if frames != self._written:  # OpenCV does not report errors of writing
            raise Fault(f"the video {name} is incomplete; the disk of {self._path.parent} may be full")
        return self._path.replace(self._path.with_name(name))


def enlarge(frame: np.ndarray) -> np.ndarray:
    """Return a frame as RGB, (height, width, 3) uint8, in the size of a video.

    It is doubled until its shorter side has MIN_SIDE pixels, or the longer one would exceed ENLARGED_SIDE. Height and
    width become even. Numbers go up to 255, or up to 1 if they are real and none is larger. Transparency is ignored.

    Args:
        frame: (height, width) grey, or (height, width, channels) with 1, 3 or 4 channels, as an environment renders it.

    Raises:
        UsageError: if it is none of these.
    """
    if frame.ndim == 2:
        frame = frame[:, :, None]
    if frame.dtype.kind not in "buif" or frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or not frame.size:
        raise UsageError(
            f"render() gave {frame.dtype} {frame.shape}; frames have to be (height, width, 3) numbers from 0 to 255"
        )
    if frame.dtype != np.uint8:
        factor = 255 if frame.dtype.kind in "bf" and frame.max() <= 1 else 1
        frame = (frame * factor).clip(0, 255).astype(np.uint8)
    frame = frame.repeat(3, axis=2) if frame.shape[2] == 1 else frame[:, :, :3]
    while (short := min(frame.shape[:2])) < 2 or (short < MIN_SIDE and 2 * max(frame.shape[:2]) <= ENLARGED_SIDE):
        frame = frame.repeat(2, axis=0).repeat(2, axis=1)
    height, width = frame.shape[:2]
    return frame[: height // 2 * 2, : width // 2 * 2]


def frames_per_second(env: gym.Env) -> float:
    """Return how many agent steps make one second of the game. A video shows one frame per agent step."""
    if is_atari(env):  # ale_py's metadata says 30, but the Atari 2600 showed 60 frames per second
        return ATARI_FRAMES_PER_SECOND / frame_skip(env)
    return float(env.metadata.get("render_fps") or DEFAULT_FRAMES_PER_SECOND)


class EpisodeReplayer:
    """Environment with rendering, in which finished episodes are replayed.

    Some episodes begin without a seeded reset, so they depend on the episodes before them, which are repeated first.
    Their environments are kept after a replay, so that the next episode of the same seed continues from there. `env` is
    for all other episodes.

    Raises:
        UsageError: if the environment cannot be made with rendering.
    """

    def __init__(self, env_id: str):
        self._env_id = env_id
        # By seed: the environment, its state, and the number of actions since the seeded reset.
        self._kept: dict[int, tuple[gym.Env, object, int]] = {}
        self.env = make_env(env_id, render_mode="rgb_array", any_actions=True)
        self.frames_per_second = frames_per_second(self.env)

    def play(
        self, episode: Episode, trace: EpisodeTrace, sink: FrameSink, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Replay an episode of training from its trace.

        `sink` receives every rendered frame (height, width, 3), including the first and the last.

        Raises:
            Stopped: if `stopped`, which is called before every step, returns True.
            Fault: if the replay had another return, length or last state than the episode.
        """
        env, state, taken = self._position_before(trace)
        actions = [action if np.ndim(action) else int(action) for action in trace.actions]
        with ExitStack() as stack:
            if env is not self.env:
                stack.callback(env.close)
            at_start = True
            for action in actions[taken : trace.first]:
                if stopped():
                    raise Stopped
                state, _, terminated, truncated, _ = env.step(action)
                at_start = terminated or truncated
                if at_start:
                    state, _ = env.reset()
            last_state, total, length, ended = state, 0.0, 0, False
            sink(np.asarray(env.render()))
            for action in actions[trace.first :]:
                if stopped():
                    raise Stopped
                last_state = state
                state, reward, terminated, truncated, info = env.step(action)
                sink(np.asarray(env.render()))
                total, length, ended = total + float(reward), length + 1, terminated or truncated
                if ended:
                    # RecordEpisodeStatistics sums the rewards before they are clipped.
                    total = float(info["episode"]["r"]) if "episode" in info else total
                    break
            is_equal = (
                at_start
                and ended
                and length == episode.length
                and math.isclose(total, episode.total, rel_tol=1e-5, abs_tol=1e-5)  # some rewards are float32
                and np.array_equal(np.asarray(last_state), np.asarray(trace.last_state))
            )
            if not is_equal:
                raise Fault(
                    f"in training it had a return of {episode.total:g} in {episode.length} steps. Its replay had a "
                    f"return of {total:g} in {length} steps, or another last state. The environment is not "
                    "deterministic, or it repeats actions at random"
                )
            if env is not self.env:
                self._kept[trace.seed] = env, env.reset()[0], trace.first + length
                stack.pop_all()

    def close(self) -> None:
        for env, _, _ in self._kept.values():
            env.close()
        self.env.close()

    def _position_before(self, trace: EpisodeTrace) -> tuple[gym.Env, object, int]:
        """Return an environment at the start of the episode or before, its state, and its actions since the reset."""
        if trace.no_ops is not None:
            return self.env, self._reset_native(trace.no_ops), 0
        if not trace.first:
            return self.env, self.env.reset(seed=trace.seed)[0], 0
        position = self._kept.pop(trace.seed, None)
        if position is None or position[2] > trace.first:
            env = make_env(self._env_id, render_mode="rgb_array", any_actions=True)
            position = env, env.reset(seed=trace.seed)[0], 0
        while len(self._kept) >= MAX_KEPT_ENVS:  # the oldest seeds are the least likely to occur again
            self._kept.pop(next(iter(self._kept)))[0].close()
        return position

    def _reset_native(self, no_ops: int) -> object:
        spec, ale = self.env.unwrapped.spec, self.env.get_wrapper_attr("ale")
        assert spec is not None
        max_frames = spec.kwargs["max_num_frames_per_episode"]
        # Native environments do not count the no-ops as part of the episode. A new frame limit applies only after the
        # ROM is loaded again.
        ale.setInt("max_num_frames_per_episode", max_frames + no_ops)
        self.env.get_wrapper_attr("load_game")()
        return reset_with_no_ops(self.env, no_ops - self._start_up_frames)

    @cached_property
    def _start_up_frames(self) -> int:
        """Frames of the key presses that some Atari games need before they can be played."""
        with closing(make_env(self._env_id, any_actions=True)) as env:  # its number of no-ops is changed
            reset_with_no_ops(env, 0)
            return int(env.get_wrapper_attr("ale").getEpisodeFrameNumber())


@dataclasses.dataclass
class Recorder:
    """Function that records every n-th episode, and returns its path in the run folder, or ""."""

    replayer: EpisodeReplayer
    run: Path  # run folder; videos are written to its subfolder VIDEOS
    every: int
    episodes: Episodes
    untimed: Untimed
    stopped: Callable[[], bool]  # returns whether the run has to end at once; the current video is then left out
    on_video: Callable[[Path], object] = lambda path: None  # receives the path of each new video
    is_warned: bool = False  # whether it has warned about an episode without a video

    def __call__(self) -> str:
        number = self.episodes.count
        if number % self.every:
            return ""
        try:
            with self.untimed(), undisturbed():
                return self._record(number, self.episodes.last)
        except Stopped:
            log.info("No video of episode %d: the run is stopping.", number)
        except Exception as error:  # noqa: BLE001 - an error of the user's environment must not end the training
            if not self.is_warned:
                text = f"{type(error).__name__}: {error}"
                log.warning("No video of episode %d: %s. This warning is shown once.", number, text)
            self.is_warned = True
        return ""

    def _record(self, number: int, episode: Episode) -> str:
        if episode.trace is None:
            log.info("No video of episode %d: it ended before the run was resumed.", number)
            return ""
        with Video(self.run / VIDEOS / "episode.part.webm", self.replayer.frames_per_second) as video:
            self.replayer.play(episode, episode.trace, video.write, self.stopped)
            path = video.keep(f"episode-{number}-return-{episode.total:.7g}.webm")
        self.on_video(path)
        for _, old in episode_videos(self.run)[:-MAX_KEPT_VIDEOS]:
            old.unlink()
        return f"{VIDEOS}/{path.name}"
