"""Single environments: from a gymnasium id to states that a network takes."""

import functools
import importlib
import os
import sys
import traceback
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import RecordEpisodeStatistics, ResizeObservation, TransformAction

from lib.envs import observations
from lib.envs.atari import SCREEN, DirectAtari, _preprocessed, has_only_checking_wrappers, is_atari
from lib.envs.frames import ContiguousFrameStack, FrameStack
from lib.envs.masks import AppendMask, KeepMaskInfo, reports_mask
from lib.errors import UsageError
from lib.system.files import PROJECT


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
    return wrap(make_plain_env(env_id), env_id, tweaked)


def wrap(env: gym.Env, env_id: str, tweaked: bool = False) -> gym.Env:
    """The same around an environment that plain_env has made."""
    if not isinstance(env.action_space, spaces.Discrete):
        raise UsageError(
            f"{env_id} has the action space {env.action_space}, and no script here fits it: DQN and PPO choose among "
            "finitely many actions, so it has to be Discrete(n). gymnasium's TransformAction makes one of it: "
            "TransformAction(env, lambda action: TABLE[action], Discrete(len(TABLE)))"
        )
    if is_atari(env):
        stack = DirectAtari(env) if tweaked and has_only_checking_wrappers(env) else _preprocessed(env)
        return ContiguousFrameStack(stack) if tweaked else FrameStack(stack)
    env = RecordEpisodeStatistics(KeepMaskInfo(_from_zero(env)))
    masked = _reports_masks(env_id)
    env = observations.prepare(env, env_id)
    image = env.observation_space.dtype == np.uint8
    if image:
        env = ResizeObservation(env, (SCREEN, SCREEN))
    if masked:
        env = AppendMask(env)
    if not image:
        return env
    return ContiguousFrameStack(env) if tweaked else FrameStack(env)


@functools.cache
def _reports_masks(env_id: str) -> bool:
    """Asked of an environment of its own, as those that are played are to be reset when they begin."""
    probe = make_plain_env(env_id)
    try:
        return reports_mask(probe)
    finally:
        probe.close()


def make_plain_env(env_id: str, render_mode: str | None = None) -> gym.Env:
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


def _from_zero(env: gym.Env) -> gym.Env:
    """The same with actions that are counted from 0, if they are not."""
    space = env.action_space
    assert isinstance(space, spaces.Discrete)
    start = int(space.start)
    return TransformAction(env, lambda action: action + start, spaces.Discrete(space.n)) if start else env


def single_env(env_id: str, render_mode: str | None = None) -> gym.Env:
    """One plain environment, whose states are those of make_vector_env's.

    Args:
        env_id: see make_vector_env.
        render_mode: gymnasium's.
    """
    return wrap(make_plain_env(env_id, render_mode), env_id)
