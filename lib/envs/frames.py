"""Frame stacks whose successive states share their frames instead of copying them."""

from collections.abc import Sequence
from typing import Any, SupportsFloat

import cv2
import gymnasium as gym
import numpy as np
from gymnasium import spaces

from lib.envs.checked_env import Info
from lib.envs.masks import StackedBox

STACK = 4  # frames in a state of grey images


class LazyFrames:
    """A state: the last frames, as a view of the frames that an environment has shown one after the other.

    Successive states share frames, so a replay buffer of LazyFrames stores each frame once. For 100,000 states of
    4 x 84 x 84 bytes that takes 0.7 GB instead of 2.8 GB.

    Args:
        strip: successive frames, (frames, ...).
        end: row after the last frame of the state.
        size: number of frames in the state; 0 if the state is a frame itself, without an axis for a stack.
    """

    # Two numbers instead of a slice of the array, because a slice would be a small block of memory for each state.
    # Long-lived small blocks between the learner's large ones keep glibc from reusing memory (glibc bug 14581).
    __slots__ = ("end", "size", "strip")

    def __init__(self, strip: np.ndarray, end: int, size: int):
        self.strip = strip
        self.end = end
        self.size = size

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.size, *self.strip.shape[1:]) if self.size else self.strip.shape[1:]

    @property
    def dtype(self) -> np.dtype:
        return self.strip.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the state as one array: a read-only view, because other states share its frames, or a copy."""
        frames = self.strip[self.end - self.size : self.end] if self.size else self.strip[self.end - 1]
        frames.flags.writeable = False
        return np.array(frames, dtype, copy=copy)


class FrameStrip:
    """Memory in which the frames of one environment's successive states lie one after the other.

    Args:
        size: see LazyFrames.

    Attributes:
        frames: number of frames in a state.
    """

    ROWS = 256  # frames in one block of memory, which is freed together with the last state that refers to it

    def __init__(self, size: int):
        self.frames = max(size, 1)
        self._size = size
        self._strip = np.zeros(0)
        self._end = 0  # row after the last frame in the strip

    def start(self, frames: Sequence[np.ndarray] | np.ndarray) -> LazyFrames:
        """Return a state of these frames, which belong to another episode than the earlier ones."""
        for frame in frames:
            state = self.append(frame)
        return state

    def append(self, frame: np.ndarray) -> LazyFrames:
        """Return the state whose newest frame this is. The frame is copied."""
        if self._end == len(self._strip):
            last = self._strip[self._end - self.frames + 1 :] if self._end else np.empty((0, *frame.shape), frame.dtype)
            self._strip = np.zeros((self.ROWS, *frame.shape), frame.dtype)  # checkpoints hold it as a whole
            self._strip[: len(last)] = last
            self._end = len(last)
        self._strip[self._end] = frame
        self._end += 1
        return LazyFrames(self._strip, self._end, self._size)


class FrameStack(gym.Wrapper):
    """Replace observations, which are frames, by LazyFrames of the last `size` observations.

    After a reset, the first frame fills the whole stack.
    """

    def __init__(self, env: gym.Env, size: int = STACK):
        super().__init__(env)
        assert isinstance(env.observation_space, spaces.Box)
        self.observation_space = StackedBox(env.observation_space, size)
        self._frames = FrameStrip(size)

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[LazyFrames, Info]:
        frame, info = self.env.reset(seed=seed, options=options)
        return self._frames.start([frame] * self._frames.frames), info

    def step(self, action: object) -> tuple[LazyFrames, SupportsFloat, bool, bool, Info]:
        frame, reward, terminated, truncated, info = self.env.step(action)
        return self._frames.append(frame), reward, terminated, truncated, info


def unstack(frames: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Return the states, (T, N, height, width, C), of a segment whose frames were sent once.

    At the start of an episode, the first frame fills the whole stack.

    Args:
        frames: (T + C - 1, N, height, width): the C - 1 older ones of the first stack, then each state's newest one.
        ended: (T, N) bool, whether a step ended its episode.
    """
    steps = len(ended)
    size = len(frames) - steps + 1
    places = [frames[place : place + steps].reshape(-1, frames.shape[-1]) for place in range(size)]
    states = cv2.merge(places).reshape(*ended.shape, *frames.shape[2:], size)  # takes a seventh of numpy's time
    for end, env in np.argwhere(ended[:-1]):
        step = end + 1  # the first state of a new episode
        for later in range(step, min(step + size - 1, steps)):
            states[later, env, ..., : size - 1 - (later - step)] = frames[step + size - 1, env, ..., None]
    return states
