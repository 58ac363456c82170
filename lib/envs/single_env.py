"""Single environments: make one from its gymnasium id, and wrap it so that the networks can use its states."""

import importlib
import math
import os
import sys
from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import RecordEpisodeStatistics, TransformAction

from lib.envs import observations
from lib.envs.atari import FRAME_SKIP, DirectAtari, has_only_checking_wrappers, is_atari, preprocess
from lib.envs.checked_env import CheckedEnv, Guard, wrappers
from lib.envs.composite import CompositeObservation, is_composite
from lib.envs.frames import FrameStack, stack_images
from lib.envs.masks import AppendMask, TakeMask
from lib.errors import UsageError
from lib.system.files import PROJECT
from lib.system.seeds import undisturbed

PPO_ACTIONS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)


class ActionSpace(spaces.Discrete):
    """Type of a discrete action space whose `n` is typed as an int."""

    n: int  # type: ignore[assignment]


class DiscreteEnv(gym.Env[Any, Any]):
    """Type of the environments that make_env returns by default: array states and a finite number of actions."""

    observation_space: spaces.Box
    action_space: ActionSpace


def make_env(
    env_id: str, tweaked: bool = False, render_mode: str | None = None, any_actions: bool = False
) -> DiscreteEnv:
    """Make one environment. For a vector environment, use vector_env.make_vector_env.

    Args:
        env_id: id registered with gymnasium; "package.module:Id" imports the module first.
        tweaked: play an Atari game by DirectAtari, which is faster and gives the same states, rewards and episode ends.
        render_mode: render mode of gymnasium; None for no rendering.
        any_actions: accept every action space that PPO can use, not only Discrete.

    Returns:
        An environment whose discrete actions start from 0. Grey and RGB images become states of (4, 84, 84) uint8, as
        LazyFrames, and images of other channels (channels, 84, 84) uint8. Boards (channels, height, width) are float32,
        and vectors (n,) float32 or float64; see observations.prepare. Action masks are appended to the states; see
        masks.MaskedBox. At the end of an episode, info["episode"]["r"] is the return before rewards are clipped.

    Raises:
        UsageError: if the environment cannot be made, its actions are of the wrong kind, or its observations cannot be
            converted.
    """
    return wrapped(make_plain_env(env_id, render_mode), env_id, tweaked, any_actions=any_actions)


def wrapped(
    env: gym.Env, env_id: str, tweaked: bool = False, masked: bool | None = None, any_actions: bool = False
) -> DiscreteEnv:
    """Add the wrappers of this project to an environment of `make_plain_env`.

    Args:
        env_id, tweaked, any_actions: see make_env.
        masked: whether the environment reports action masks; None to find out, which may reset it.

    Raises:
        UsageError: see make_env.
    """
    if is_atari(env):
        return cast(DiscreteEnv, _wrapped_game(env, env_id, tweaked))
    env = CheckedEnv(env, env_id)
    if not isinstance(env.action_space, PPO_ACTIONS):
        raise UsageError(
            f"{env_id} has the action space {env.action_space}; it has to be Discrete, or for PPO MultiDiscrete, "
            "MultiBinary or Box. gymnasium's TransformAction converts others"
        )
    if not (isinstance(env.action_space, spaces.Discrete) or any_actions):
        raise UsageError(
            f"{env_id} has the action space {env.action_space}; DQN chooses one of n actions, Discrete(n). "
            "distributed/02_ppo_fast.py takes this space"
        )
    mask = TakeMask(ActionsFromZero(env) if np.any(getattr(env.action_space, "start", 0)) else env)
    env = RecordEpisodeStatistics(mask)
    convert = CompositeObservation if is_composite(env.observation_space) else observations.prepare
    env = convert(env, env_id)
    if masked is None:
        with undisturbed():  # its reset may seed the global generators
            mask.find_mask()
    else:
        mask.masked = masked
    if mask.masked:
        env = observations.noted(AppendMask(env, mask), "the action mask appended; see lib/envs/masks.py")
    return cast(DiscreteEnv, stack_images(env))


def _wrapped_game(env: gym.Env, env_id: str, tweaked: bool) -> gym.Env:
    if any(
        isinstance(each, gym.ObservationWrapper) or each.observation_space != each.env.observation_space
        for each in wrappers(env)
    ):
        raise UsageError(
            f"{env_id} is registered with wrappers that have no effect here: {env}. States are made from the "
            "emulator's screen; register it without them"
        )
    env = DirectAtari(env) if tweaked and has_only_checking_wrappers(env) else preprocess(TakeMask(env))
    return observations.noted(FrameStack(env), "Atari's preprocessing of lib/envs/atari.py; the last 4 frames")


class ActionsFromZero(TransformAction):
    """Shift the action space so that the first action is 0.

    Args:
        env: environment with Discrete or MultiDiscrete actions.

    Attributes:
        first_action: the environment's own number of action 0, or an array of them.
    """

    def __init__(self, env: gym.Env):
        space = env.action_space
        assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        self.first_action = space.start
        shifted = (
            spaces.Discrete(space.n)
            if isinstance(space, spaces.Discrete)
            else spaces.MultiDiscrete(space.nvec, dtype=space.dtype.type)
        )
        super().__init__(env, lambda action: action + self.first_action, shifted)


def make_plain_env(env_id: str, render_mode: str | None = None) -> gym.Env:
    """Make an environment without this project's wrappers. An Atari game gets frame skip 1.

    Args:
        env_id: see make_env.
        render_mode: render mode of gymnasium; None for no rendering.

    Raises:
        UsageError: if the id is unknown, its module or another package is missing, or it does not have the render mode.
            Errors of its constructor name it; see checked_env.Guard.
    """
    _import_module_of(env_id)
    options: dict[str, Any] = {}
    if render_mode is not None:
        options["render_mode"] = render_mode
    env = _make(env_id, options)
    if is_atari(env) and env.unwrapped._frameskip != 1:  # type: ignore[attr-defined]
        # AtariPreprocessing skips frames itself, because it takes the maximum of the last two.
        options["frameskip"] = 1
        if env.spec is not None and env.spec.max_episode_steps is not None:
            # With frameskip=1, gymnasium's limit counts frames.
            options["max_episode_steps"] = FRAME_SKIP * env.spec.max_episode_steps
        env.close()
        env = _make(env_id, options)
    modes = env.metadata.get("render_modes", [])
    if render_mode is not None and render_mode not in modes:
        env.close()
        raise UsageError(f"{env_id} cannot be shown: its metadata['render_modes'] are {modes}, without {render_mode!r}")
    return env


def _make(env_id: str, options: dict[str, Any]) -> gym.Env:
    try:
        with Guard(lambda: f"{env_id} (in its constructor)"):
            return gym.make(env_id, **options)
    except gym.error.Error as error:
        text = f"cannot make the environment {env_id!r}: {error}"
        if isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound):
            text += " Its module has to register it; --env-id your_package:YourGame-v0 imports your_package first"
        raise UsageError(text) from error
    except ModuleNotFoundError as error:
        raise UsageError(f"{env_id!r} needs a package that is missing: {error}. Install it") from error
    except TypeError as error:
        if "argument 'render_mode'" in str(error):
            mode = options["render_mode"]
            raise UsageError(f"{env_id!r} cannot be made with render_mode={mode!r}: {error}") from error
        raise


def reward_threshold(env_id: str) -> float | None:
    """Return the mean return at which an environment counts as solved, as registered with gymnasium; None if unknown.

    Raises:
        UsageError: if the module that the id names cannot be imported.
    """
    spec = _spec(env_id)
    threshold = None if spec is None else spec.reward_threshold
    return None if threshold is None or not math.isfinite(threshold) else float(threshold)


def is_atari_id(env_id: str) -> bool:
    """Return whether an id is registered as an Atari game."""
    spec = _spec(env_id)
    return spec is not None and str(spec.entry_point).startswith("ale_py")


def _spec(env_id: str) -> EnvSpec | None:
    """Return what is registered under an id, after importing its module; None if it is unknown."""
    _import_module_of(env_id)
    try:
        namespace, name, version = registration.parse_env_id(env_id.rpartition(":")[2])
        if version is None:  # gym.make takes the newest one
            version = registration.find_highest_version(namespace, name)
        return gym.spec(registration.get_env_id(namespace, name, version))
    except gym.error.Error:  # which is reported when it is made
        return None


def module_of(env_id: str) -> str:
    """Return the module that an id names before its colon, or ""."""
    return env_id.rpartition(":")[0]


def _import_module_of(env_id: str) -> None:
    """Import the module that an id names before its colon, which gym.make does without a reason if that fails.

    The module may be installed, or in the current folder or the project folder. The user has named it; see
    folder.trusted_id.
    """
    module = module_of(env_id)
    if not module:
        return
    # What is installed comes first. Worker processes import modules through this function as well.
    sys.path += [folder for folder in (os.getcwd(), str(PROJECT)) if folder not in sys.path]
    name = f"the module {module!r} of {env_id!r}"
    try:
        with Guard(lambda: name):
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        advice = "It has to be installed or in the current folder, under a name that no other module has"
        raise UsageError(f"{name} fails to import: {error}. {advice}") from error
