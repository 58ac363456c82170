"""The book's Atari wrappers: stacked grey frames from a gymnasium id. The code is in lib.envs."""

from lib.envs.atari import FRAME_SKIP, NOOP_MAX, SCREEN
from lib.envs.frames import FrameStack, LazyFrames
from lib.envs.single_env import make_env

__all__ = ["FRAME_SKIP", "NOOP_MAX", "SCREEN", "FrameStack", "LazyFrames", "make_env"]
