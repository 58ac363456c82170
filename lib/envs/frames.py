"""Frame stacks whose successive states share their frames instead of copying them."""

from collections import deque
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import wrappers
from lib.envs.masks import MaskedBox
from lib.errors import UsageError

Frames = tuple[np.ndarray, ...] | np.ndarray


class LazyFrames:
    """The last k frames, which become one (k, ...) array only when they are read.

    Successive states share k - 1 frames, so a replay buffer of LazyFrames stores each frame once. For 100,000 states of
    4 x 84 x 84 bytes that takes 0.7 GB instead of 2.8 GB.

    Args:
        frames: tuple of k arrays, or one array of consecutive frames, which is not copied.
        end: row after the last frame of the state; used only if `frames` is one array.
        size: number of frames k; used only if `frames` is one array.
    """

    __slots__ = ("_frames", "_rows")

    def __init__(self, frames: Frames, end: int | None = None, size: int = 0):
        self._frames = frames
        # Two numbers instead of a slice of the array, because a slice would be a small block of memory for each state.
        # Long-lived small blocks between the learner's large ones keep glibc from reusing memory (glibc bug 14581).
        self._rows = None if end is None else (end - size, end)

    @property
    def frames(self) -> Frames:
        """The k frames, as a tuple or as one array."""
        if self._rows is None:
            return self._frames
        start, end = self._rows
        return self._frames[start:end]

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self), *self.frames[0].shape)

    @property
    def dtype(self) -> np.dtype:
        dtype: np.dtype = self.frames[0].dtype
        return dtype

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the frames as one array. A view of contiguous frames is read-only, because other states share them."""
        frames = self.frames
        if isinstance(frames, np.ndarray):
            frames.flags.writeable = False
            return np.array(frames, dtype, copy=copy)
        if copy is False:
            raise ValueError("frames that do not lie in one array become one only by a copy")
        return np.stack(frames).astype(dtype or frames[0].dtype, copy=False)

    def __reduce__(self) -> tuple[type["LazyFrames"], tuple[np.ndarray, int, int]]:
        # Without this, pickle would copy the whole block of memory in which contiguous frames lie.
        stacked = np.array(self)
        return LazyFrames, (stacked, len(stacked), len(stacked))


def stacks_frames(env: gym.Env) -> bool:
    """Return whether an environment's states are those of a FrameStack, which share frames with one another."""
    space = env.observation_space
    return any(isinstance(each, FrameStack) and each.observation_space == space for each in wrappers(env))


class FrameStack(gym.Wrapper):
    """Replace observations by LazyFrames of the last `size` observations.

    After a reset, the first frame fills the whole stack.

    Args:
        env: environment whose observations are frames, with or without an action mask.
        size: number of frames in a state.
    """

    def __init__(self, env: gym.Env, size: int = 4):
        super().__init__(env)
        if size < 1:
            raise UsageError(f"a stack of {size} frames was asked for; it has to have at least one")
        space = env.observation_space
        assert isinstance(space, spaces.Box)
        frame = space.plain if isinstance(space, MaskedBox) else space
        low, high = np.stack([frame.low] * size), np.stack([frame.high] * size)
        stacked = spaces.Box(low, high, dtype=frame.dtype.type)
        self.observation_space = (
            MaskedBox(stacked, space.actions, stacked=True) if isinstance(space, MaskedBox) else stacked
        )
        self.size = size
        self.frames: deque[np.ndarray] = deque(maxlen=size)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[LazyFrames, dict[str, Any]]:
        frame, info = self.env.reset(seed=seed, options=options)
        self.frames.extend([frame] * self.size)
        return self._state(), info

    def step(self, action: Any) -> tuple[LazyFrames, SupportsFloat, bool, bool, dict[str, Any]]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        self.frames.append(frame)
        return self._state(), reward, terminated, truncated, info

    def _state(self) -> LazyFrames:
        return LazyFrames(tuple(self.frames))


class ContiguousFrames:
    """Store the frames of one environment's successive states contiguously, so that each state is a view.

    Call it with the states in the order in which they were observed.
    """

    STRIP = 256  # frames in one block of memory, which is freed together with the last state that refers to it

    def __init__(self) -> None:
        self._strip = np.empty(0)
        self._end = 0  # row after the last frame in the strip
        self._frames: Frames = ()
        self._state: LazyFrames | None = None

    def __call__(self, state: LazyFrames) -> LazyFrames:
        """Return an equal state that is a view of the stored frames.

        Only frames that the previous state does not have are copied.
        """
        previous, frames = self._frames, state.frames
        if self._state is None or not _are_identical(previous, frames):
            is_next_state = _are_identical(previous[1:], frames[:-1])
            for frame in frames[-1:] if is_next_state else frames:
                self._append(frame, len(frames))
            self._frames = frames
            self._state = LazyFrames(self._strip, self._end, len(frames))
        return self._state

    def _append(self, frame: np.ndarray, size: int) -> None:
        if self._end == len(self._strip):
            # The next state needs the last size - 1 frames as well.
            last = self._strip[max(0, self._end - size + 1) :]
            self._strip = np.empty((self.STRIP, *frame.shape), frame.dtype)
            self._strip[: len(last)] = last if len(last) else 0
            self._end = len(last)
        self._strip[self._end] = frame
        self._end += 1


def _are_identical(a: Frames, b: Frames) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


def frame_layout(space: spaces.Space[Any], stacked: bool) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Return the number of frames in a state, the shape of a frame, and its data type.

    Args:
        space: space of the states.
        stacked: whether a state is a stack of frames; otherwise it is a frame itself.
    """
    assert space.shape is not None
    assert space.dtype is not None
    return (space.shape[0], space.shape[1:], space.dtype) if stacked else (1, space.shape, space.dtype)


class ContiguousFrameStack(FrameStack):
    """FrameStack whose states are views of contiguous frames."""

    def __init__(self, env: gym.Env, size: int = 4):
        super().__init__(env, size)
        self._contiguous = ContiguousFrames()

    def _state(self) -> LazyFrames:
        return self._contiguous(super()._state())
