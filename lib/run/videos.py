"""Videos of training episodes.

A finished episode is replayed from its seed and actions in an environment that can render, because native environments
render no colours, and actors may run elsewhere. Return, length and last state of the replay have to be the episode's.
"""

import dataclasses
import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Self

import cv2
import gymnasium as gym
import numpy as np

from lib.envs.atari import counted, frame_skip, is_atari, reset_with_no_ops
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.experience.interface import Episode, EpisodeTrace, Stopped
from lib.run.episodes import VIDEOS, Episodes, episode_videos
from lib.run.evaluation import Untimed
from lib.system.log import silent_stderr
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

CODEC = "VP80"  # every browser plays VP8 in WebM, and OpenCV includes the encoder
MIN_SIDE, ENLARGED_SIDE = 320, 2560  # pixels of an enlarged frame: the shorter side at least, the longer one at most
MAX_KEPT_ENVS = 64
MAX_KEPT_VIDEOS = 20  # older ones of the run are removed

FrameSink = Callable[[np.ndarray], object]


class Video:
    """WebM file that is written frame by frame, in a folder that is created.

    The end of a `with` block removes the file at `path`, unless `keep` has given it another name.
    """

    def __init__(self, path: Path, frames_per_second: float):
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path.absolute()  # because FFmpeg reads text before a colon as a protocol
        self._frames_per_second = frames_per_second
        self._writer: cv2.VideoWriter | None = None
        self._size = (0, 0)  # width and height
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.release()
        self._path.unlink(missing_ok=True)

    def write(self, frame: np.ndarray) -> None:
        """Append a frame, enlarged, and stretched to the size of the first. UsageError if OpenCV cannot write it."""
        frame = enlarge(frame)
        if self._writer is None:
            self._size = frame.shape[1], frame.shape[0]
            codec = cv2.VideoWriter.fourcc(*CODEC)
            with silent_stderr():  # OpenCV prints a harmless note about the codec's tag
                self._writer = cv2.VideoWriter(str(self._path), codec, self._frames_per_second, self._size)
            if not self._writer.isOpened():
                raise UsageError(
                    f"OpenCV {cv2.__version__} cannot write {self._path} with {self._size} pixels; a side may have "
                    "16,383 at most, and pip install --force-reinstall opencv-python-headless restores the encoder"
                )
        if frame.shape[1::-1] != self._size:
            frame = cv2.resize(frame, self._size, interpolation=cv2.INTER_AREA)
        self._writer.write(np.ascontiguousarray(frame[:, :, ::-1]))
        self._written += 1

    def keep(self, name: str) -> Path:
        """Finish the video, and give it its name, also if a file has that. If frames are missing, it is a Fault."""
        assert self._writer is not None
        self._writer.release()
        with silent_stderr():
            frames = cv2.VideoCapture(str(self._path)).get(cv2.CAP_PROP_FRAME_COUNT)
        if frames != self._written:  # OpenCV does not report errors of writing
            raise Fault(f"the video {name} is incomplete; the disk of {self._path.parent} may be full")
        return self._path.replace(self._path.with_name(name))


def enlarge(frame: np.ndarray) -> np.ndarray:
    """Return a frame as RGB, (height, width, 3) uint8, in the size of a video.

    It is doubled until its shorter side has MIN_SIDE pixels, or the longer one would exceed ENLARGED_SIDE. Height and
    width become even. Numbers go up to 255, or up to 1 if they are real and none is larger. Transparency is ignored.
    A UsageError says that the frame is not (height, width), or (height, width, channels) with 1, 3 or 4 channels.
    """
    if frame.ndim == 2:
        frame = frame[:, :, None]
    if frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or not frame.size:
        raise UsageError(f"render() gave {frame.dtype} {frame.shape}; frames have to be (height, width, 3) numbers")
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
        return 60.0 / frame_skip(env)
    return float(env.metadata.get("render_fps") or 30.0)


class EpisodeReplayer:
    """Environment with rendering, in which finished episodes are replayed.

    Some episodes begin without a seeded reset, so they depend on the episodes before them, which are repeated first.
    Their environments are kept after a replay, so that the next episode of the same seed continues from there. `env` is
    for all other episodes.
    """

    def __init__(self, env_id: str):
        self._env_id = env_id
        # By seed: the environment, its state, and the number of actions since the seeded reset.
        self._kept: dict[int, tuple[gym.Env, object, int]] = {}
        self.env = self._make_env()
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

        def step(action: np.ndarray) -> tuple[object, bool]:
            """Return the next state, and whether the episode has ended."""
            if stopped():
                raise Stopped
            state, _, terminated, truncated, _ = env.step(action if np.ndim(action) else int(action))
            return state, terminated or truncated

        for action in trace.actions[taken : trace.first]:
            state, ended = step(action)
            if ended:
                state, _ = env.reset()
        last_state, ended = state, False
        sink(np.asarray(env.render()))
        for action in trace.actions[trace.first :]:
            last_state = state
            state, ended = step(action)
            sink(np.asarray(env.render()))
            if ended:
                break
        total, length = map(env.get_wrapper_attr, ("episode_returns", "episode_lengths"))
        is_equal = (
            ended
            and length == episode.length
            and math.isclose(total, episode.total, rel_tol=1e-5, abs_tol=1e-5)  # some rewards are float32
            and np.array_equal(np.asarray(last_state), np.asarray(trace.last_state))
        )
        if not is_equal:
            raise Fault(
                f"in training it had a return of {episode.total:g} in {episode.length} steps. Its replay had a return "
                f"of {total:g} in {length} steps, or another last state. The environment is not deterministic, or it "
                "repeats actions at random"
            )
        if env is not self.env:
            self._kept[trace.seed] = env, env.reset()[0], trace.first + length

    def close(self) -> None:
        for env, _, _ in self._kept.values():
            env.close()
        self.env.close()

    def _make_env(self) -> gym.Env:
        return counted(make_env(self._env_id, render_mode="rgb_array", any_actions=True))

    def _position_before(self, trace: EpisodeTrace) -> tuple[gym.Env, object, int]:
        """Return an environment at the start of the episode or before, its state, and its actions since the reset."""
        if trace.no_ops is not None:
            return self.env, self._reset_native(trace.no_ops), 0
        if not trace.first:
            return self.env, self.env.reset(seed=trace.seed)[0], 0
        if trace.seed not in self._kept:
            while len(self._kept) >= MAX_KEPT_ENVS:  # the oldest seeds are the least likely to occur again
                self._kept.pop(next(iter(self._kept)))[0].close()
            self._kept[trace.seed] = self._make_env(), None, 0
        env, state, taken = self._kept[trace.seed]
        self._kept[trace.seed] = env, None, 0  # it starts again if this replay fails
        return env, state if taken else env.reset(seed=trace.seed)[0], taken

    def _reset_native(self, no_ops: int) -> object:
        spec, ale = self.env.unwrapped.spec, self.env.get_wrapper_attr("ale")
        assert spec is not None
        reset_with_no_ops(self.env, 0)
        start_up_frames = ale.getEpisodeFrameNumber()  # of the key presses that some games need
        # Native environments do not count the no-ops as part of the episode. A new frame limit applies only after the
        # ROM is loaded again.
        ale.setInt("max_num_frames_per_episode", spec.kwargs["max_num_frames_per_episode"] + no_ops)
        self.env.get_wrapper_attr("load_game")()
        return reset_with_no_ops(self.env, no_ops - start_up_frames)


@dataclasses.dataclass
class Recorder:
    """Function that records every n-th episode, and returns its path in the run folder, or ""."""

    replayer: EpisodeReplayer
    run: Path  # run folder
    every: int
    episodes: Episodes
    untimed: Untimed
    stopped: Callable[[], bool]  # returns whether the run has to end at once; the current video is then left out
    on_video: Callable[[Path], object] = lambda path: None  # receives the path of each new video
    is_warned: bool = False

    def __call__(self) -> str:
        number = self.episodes.count
        if number % self.every:
            return ""
        try:
            with self.untimed(), undisturbed():
                return self._record(number, self.episodes.last)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - an error of the user's environment must not end the training
            if not self.is_warned:
                reason = type(error).__name__, error
                log.warning("No video of episode %d: %s: %s. This warning is shown once.", number, *reason)
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
