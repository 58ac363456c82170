"""make_env: from a gymnasium id to stacked grey frames, by gymnasium's own wrappers.

The stack follows Machado et al. (2018), https://arxiv.org/abs/1709.06009, as gymnasium's AtariPreprocessing
does: up to 30 no-ops at the start, each action held for 4 frames, the maximum of the last two frames, grey,
84 x 84; then rewards clipped to [-1, 1] and 4 frames stacked. An episode is a whole game, not a life.

The tweaked stack makes the same states, rewards and ends with less work; docs/chapter09.md has what each wrapper costs.
"""

import functools
import importlib
import os
import sys
import traceback
from collections import deque
from pathlib import Path
from typing import Any, SupportsFloat

import ale_py
import cv2
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    AtariPreprocessing,
    ClipReward,
    OrderEnforcing,
    PassiveEnvChecker,
    RecordEpisodeStatistics,
    ResizeObservation,
    TransformAction,
)

from lib import masks, observations
from lib.errors import UsageError

PROJECT = Path(__file__).parents[1]
FRAME_SKIP = 4
NOOP_MAX = 30
SCREEN = 84

Frames = tuple[np.ndarray, ...] | np.ndarray

ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
gym.register_envs(ale_py)


class LazyFrames:
    """The last k frames as one (k, ...) array that exists only while somebody looks at it.

    Successive states share k - 1 of their frames, so a replay of LazyFrames keeps each frame once:
    0.7 GB in place of 2.8 GB for 100,000 states of 4 x 84 x 84 bytes.

    Args:
        frames: k arrays; or, with an end, one along whose first axis they lie, looked at without a copy.
        end: one more than the row of the last frame.
        size: k.
    """

    __slots__ = ("_frames", "_rows")

    def __init__(self, frames: Frames, end: int | None = None, size: int = 0):
        self._frames = frames
        # Not the slice of the array itself: that would be one more small block of memory a state, kept for long between
        # the large ones of the learner, which then cannot be used again (the C library's bug 14581).
        self._rows = None if end is None else (end - size, end)

    @property
    def frames(self) -> Frames:
        """The k frames, as a tuple or as one array."""
        return self._frames if self._rows is None else self._frames[slice(*self._rows)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        frames = self.frames
        stacked = frames if isinstance(frames, np.ndarray) and not copy else np.stack(list(frames))
        return stacked if dtype is None else stacked.astype(dtype, copy=False)


class FrameStack(gym.Wrapper):
    """Observations become LazyFrames of the last `size` frames; at a reset the first frame fills them all."""

    def __init__(self, env: gym.Env, size: int = 4):
        super().__init__(env)
        frame = env.observation_space
        assert isinstance(frame, spaces.Box)
        self.frames: deque[np.ndarray] = deque(maxlen=size)
        plain = frame.plain if isinstance(frame, masks.MaskedBox) else frame
        space = spaces.Box(np.stack([plain.low] * size), np.stack([plain.high] * size), dtype=plain.dtype.type)
        self.observation_space = masks.MaskedBox(space, frame.actions) if isinstance(frame, masks.MaskedBox) else space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self.frames.extend([frame] * (self.frames.maxlen or 0))
        return LazyFrames(tuple(self.frames)), info

    def step(self, action: Any) -> tuple[LazyFrames, SupportsFloat, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append(frame)
        return LazyFrames(tuple(self.frames)), reward, terminated, truncated, info


class Adjacent:
    """Lays the frames of one environment's successive states side by side, so that a state is a view and no stack."""

    STRIP = 256  # frames in a piece of memory; it is freed with the last state that looks at it

    def __init__(self) -> None:
        self._strip = np.empty(0)
        self._end = 0
        self._frames: Frames = ()
        self._state: LazyFrames | None = None

    def __call__(self, state: LazyFrames) -> LazyFrames:
        """The same state; what it shares with the state before is not written again."""
        old, new = self._frames, state.frames
        if self._state is None or not _same(old, new):
            follows = _same(old[1:], new[:-1])
            for frame in new[-1:] if follows else new:
                self._write(frame, len(new))
            self._frames = new
            self._state = LazyFrames(self._strip, self._end, len(new))
        return self._state

    def _write(self, frame: np.ndarray, size: int) -> None:
        if self._end == len(self._strip):
            last = self._strip[max(0, self._end - size + 1) :]
            self._strip = np.empty((self.STRIP, *frame.shape), frame.dtype)
            self._strip[: len(last)] = last if len(last) else 0
            self._end = len(last)
        self._strip[self._end] = frame
        self._end += 1


def _same(a: Frames, b: Frames) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


class AdjacentFrameStack(FrameStack):
    """FrameStack whose states are views of frames that lie side by side."""

    def __init__(self, env: gym.Env, size: int = 4):
        super().__init__(env, size)
        self._adjacent = Adjacent()

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        state, info = super().reset(seed=seed, options=options)
        return self._adjacent(state), info

    def step(self, action: Any) -> tuple[LazyFrames, SupportsFloat, bool, bool, dict[str, Any]]:
        state, reward, terminated, truncated, info = super().step(action)
        return self._adjacent(state), reward, terminated, truncated, info


class DirectAtari(gym.Wrapper):
    """AtariPreprocessing, RecordEpisodeStatistics and ClipReward in one step on the emulator itself.

    The colour screens that AtariEnv fetches after every frame, and nobody looks at, are not fetched, and gymnasium's
    checking wrappers are left out. States, rewards and ends are the same; of the infos there is only the episode's.

    Args:
        env: an AtariEnv of frame skip 1, wrapped or not.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env.unwrapped)
        self.observation_space = spaces.Box(0, 255, (SCREEN, SCREEN), np.uint8)
        height, width = self.unwrapped.observation_space.shape[:2]  # type: ignore[index]
        self._newer, self._older = np.zeros((2, height, width), np.uint8)
        self._total, self._length = 0.0, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.env.reset(seed=seed, options=options)
        for _ in range(self.unwrapped.np_random.integers(1, NOOP_MAX + 1)):
            _, _, terminated, truncated, _ = self.env.step(0)
            if terminated or truncated:
                self.env.reset(seed=seed, options=options)
        emulator: Any = self.env
        emulator.ale.getScreenGrayscale(self._newer)
        self._older.fill(0)
        self._total, self._length = 0.0, 0
        return self._frame(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        emulator: Any = self.env
        ale, action = emulator.ale, emulator._action_set[action]
        reward, terminated, truncated = 0.0, False, False
        for frame in range(FRAME_SKIP):
            reward += ale.act(action)
            terminated, truncated = ale.game_over(with_truncation=False), ale.game_truncated()
            if terminated or truncated:
                break  # and AtariPreprocessing, too, then leaves the screens as they were
            if frame >= FRAME_SKIP - 2:
                ale.getScreenGrayscale(self._older if frame == FRAME_SKIP - 2 else self._newer)
        self._total += reward
        self._length += 1
        info = {"episode": {"r": self._total, "l": self._length}} if terminated or truncated else {}
        return self._frame(), max(-1.0, min(1.0, reward)), terminated, truncated, info

    def _frame(self) -> np.ndarray:
        np.maximum(self._newer, self._older, out=self._newer)
        return cv2.resize(self._newer, (SCREEN, SCREEN), interpolation=cv2.INTER_AREA)


def make_env(env_id: str, tweaked: bool = False) -> gym.Env:
    """Build the environment of chapter 9's 00 to 04, and of evaluation; the others have vector_env.make_vector_env.

    Args:
        env_id: any id registered with gymnasium; "package.module:Id" imports the module first.
        tweaked: whether by the faster stack, which gives the same states, rewards and ends.

    Returns:
        An environment whose actions are 0 .. n-1. Images become states of (4, 84, 84) uint8 LazyFrames; boards
        (channels, height, width) and vectors (n,) are float32, see observations.prepared. Where the environment reports
        which actions are allowed, states end with that, see masks.MaskedBox. At an episode's end
        info["episode"]["r"] is its return as the game counts it, before the clipping.

    Raises:
        UsageError: the id is unknown, its actions are not discrete, or no network here can see its observations.
    """
    return wrapped(plain_env(env_id), env_id, tweaked)


def wrapped(env: gym.Env, env_id: str, tweaked: bool = False) -> gym.Env:
    """The same around an environment that plain_env has made."""
    if not isinstance(env.action_space, spaces.Discrete):
        raise UsageError(
            f"{env_id} has the action space {env.action_space}, and no script here fits it: DQN and PPO choose among "
            "finitely many actions, so it has to be Discrete(n). gymnasium's TransformAction makes one of it: "
            "TransformAction(env, lambda action: TABLE[action], Discrete(len(TABLE)))"
        )
    if is_atari(env):
        stack = DirectAtari(env) if tweaked and only_checked(env) else _preprocessed(env)
        return AdjacentFrameStack(stack) if tweaked else FrameStack(stack)
    env = RecordEpisodeStatistics(masks.OnlyMask(_from_zero(env)))
    masked = _reports_masks(env_id)
    env = observations.prepared(env, env_id)
    image = env.observation_space.dtype == np.uint8
    if image:
        env = ResizeObservation(env, (SCREEN, SCREEN))
    if masked:
        env = masks.ReportedMask(env)
    if not image:
        return env
    return AdjacentFrameStack(env) if tweaked else FrameStack(env)


@functools.cache
def _reports_masks(env_id: str) -> bool:
    """Asked of an environment of its own, as those that are played are to be reset when they begin."""
    probe = plain_env(env_id)
    try:
        return masks.reports(probe)
    finally:
        probe.close()


class _Drawing:
    """In place of the generator from which AtariPreprocessing draws the number of no-ops: draws this one."""

    def __init__(self, number: int):
        self._number = number

    def integers(self, low: int, high: int) -> int:
        return self._number


def begin_after(env: gym.Env, no_ops: int) -> Any:
    """Reset an Atari game without a seed, and have it begin after so many no-ops, not after a number that it draws.

    Returns:
        Its state.
    """
    emulator: Any = env.unwrapped
    emulator.np_random = _Drawing(no_ops)  # until it is reset with a seed
    return env.reset()[0]


def is_atari(env: gym.Env) -> bool:
    """Whether an environment, wrapped or not, is an Atari game."""
    return isinstance(env.unwrapped, ale_py.AtariEnv)


def frame_skip(env: gym.Env) -> int:
    """How many frames of the emulator an agent step lasts; 1 for what is no Atari game."""
    return FRAME_SKIP if is_atari(env) else 1


def plain_env(env_id: str, render_mode: str | None = None) -> gym.Env:
    """An environment as it is registered, save that an Atari game does not skip frames by itself.

    Raises:
        UsageError: the id is unknown, its module cannot be imported, it cannot be made, or not be rendered in that
            mode.
    """
    _import_module_of(env_id)
    options: dict[str, Any] = {}
    try:
        env = gym.make(env_id)
        if is_atari(env) and env.unwrapped._frameskip != 1:  # type: ignore[attr-defined]
            # AtariPreprocessing skips the frames itself, so that it can take the maximum of the last two.
            options["frameskip"] = 1
        if render_mode is not None:
            modes = env.metadata.get("render_modes", [])
            if render_mode not in modes:
                raise UsageError(
                    f"{env_id} cannot be shown: its render_modes are {modes}, and {render_mode!r} is none of them"
                )
            options["render_mode"] = render_mode
        if not options:
            return env
        env.close()
        return gym.make(env_id, **options)
    except (gym.error.Error, ImportError) as error:
        raise UsageError(
            f"cannot make the environment {env_id!r}: {error}. It has to be registered with gymnasium; "
            "--env-module your_package imports your_package first"
        ) from error
    except UsageError:
        raise
    except Exception as error:  # its constructor is another's code, too
        raise UsageError(f"cannot make the environment {env_id!r}: making it failed with {error!r}") from error


def _import_module_of(env_id: str) -> None:
    """Import the module that an id names before its colon, as gym.make does, but tell what went wrong in it.

    It may lie in the current folder, too, or in the project, as the examples do.
    """
    module = env_id.rpartition(":")[0]
    if not module:
        return
    # Before what is installed, as python -m has it, but behind the script's own folder. Players and actors get it here.
    sys.path[1:1] = [folder for folder in (os.getcwd(), str(PROJECT)) if folder not in sys.path]
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # it is another's code, and may fail in any way
        last = traceback.format_exception_only(error)[-1].strip()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
        if isinstance(error, SyntaxError):
            file, line = error.filename or "", error.lineno
        place = "" if file.startswith("<") else f" (line {line} of {file})"
        raise UsageError(
            f"the module {module!r} of {env_id!r} fails to import: {last}{place}. "
            "It has to be installed, or lie in the current folder"
        ) from error


def only_checked(env: gym.Env) -> bool:
    """Whether an environment's wrappers can be left out: they check, and change nothing."""
    while isinstance(env, PassiveEnvChecker | OrderEnforcing):
        env = env.env
    return env is env.unwrapped


def _preprocessed(env: gym.Env) -> gym.Env:
    env = AtariPreprocessing(env, noop_max=NOOP_MAX, frame_skip=FRAME_SKIP, screen_size=SCREEN)
    return ClipReward(RecordEpisodeStatistics(env), -1.0, 1.0)


def _from_zero(env: gym.Env) -> gym.Env:
    """The same with actions that are counted from 0, if they are not."""
    space = env.action_space
    assert isinstance(space, spaces.Discrete)
    start = int(space.start)
    return TransformAction(env, lambda action: action + start, spaces.Discrete(space.n)) if start else env
