"""Single environments: make one from its gymnasium id, and wrap it so that the networks can use its states."""

import ast
import copyreg
import functools
import importlib
import math
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Self, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import RecordEpisodeStatistics

from lib.envs.atari import FRAME_SKIP, SCREEN, is_atari, preprocess
from lib.envs.checked_env import ActionSpace, CheckedEnv, guard, is_our_call
from lib.envs.frames import FrameStack
from lib.envs.masks import NUMERIC, CompositeBox
from lib.envs.states import States
from lib.errors import UsageError
from lib.system.files import PROJECT

CHANNEL_AXIS, SCREEN_SIZE = "channel_axis", "screen_size"  # arguments of an id that are not the constructor's
Arguments = dict[str, Any]  # of the constructor of an environment
SPACES: dict[str, dict[str, str]] = {}  # spaces of the environments that were made here, by id; see space_text


class EnvId(NamedTuple):
    """Parts of an id, "package.module:function:Name-v0(size=9)". The module, or its function, registers the name."""

    module: str
    name: str
    arguments: Arguments

    @classmethod
    def of(cls, env_id: str, assignments: Sequence[str] = ()) -> Self:
        """Parse an id, and add arguments such as "size=9". A value is a Python literal, true, false, none, or text."""
        path, _, rest = env_id.partition("(")
        module, _, name = path.rpartition(":")
        try:
            call = cast(ast.Call, ast.parse(f"f({rest or ')'}", mode="eval").body)
            arguments = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
            if call.args:
                raise ValueError("an argument without a name")
        except (SyntaxError, ValueError) as error:
            raise UsageError(f"an id is ID, MODULE:ID or ID(name=value), not {env_id!r}") from error
        for argument, equals, text in (each.partition("=") for each in assignments):
            if not (equals and argument.isidentifier()):
                raise UsageError(f"--env-arg takes NAME=VALUE, not {argument + equals + text!r}")
            arguments[argument] = text
            with suppress(SyntaxError, ValueError):
                is_word = text in ("true", "false", "none")  # as in --set
                arguments[argument] = ast.literal_eval(text.title() if is_word else text)
        return cls(module, name, arguments)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.module}:{self.name}".lstrip(":") + (f"({arguments})" if arguments else "")


class DiscreteEnv(gym.Env):
    """Type of the environments that make_env returns by default: array states and a finite number of actions."""

    observation_space: spaces.Box
    action_space: ActionSpace


def make_env(
    env_id: str, tweaked: bool = False, render_mode: str | None = None, any_actions: bool = False
) -> DiscreteEnv:
    """Make one environment. For a vector environment, use vector_env.make_vector_env.

    Args:
        env_id: id registered with gymnasium; "package.module:Id" imports the module first, and "Id(size=9)" passes the
            argument to the constructor. But "Id(channel_axis=2)" says which axis of observations holds the channels,
            and "Game(screen_size=42)" resizes the screens of an Atari game to 42 x 42 pixels instead of 84 x 84.
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
    """Add the wrappers of this project to an environment of `make_plain_env`; see make_env, and States for `masked`."""
    if is_atari(env):
        return cast(DiscreteEnv, FrameStack(preprocess(env, tweaked, screen_size(env_id))))
    checked = CheckedEnv(env, env_id)
    if not isinstance(checked.action_space, NUMERIC if any_actions else spaces.Discrete):
        raise UsageError(
            f"{env_id} has the action space {env.action_space}; it has to be Discrete, or for PPO, such as "
            "distributed/02_ppo_fast.py, MultiDiscrete, MultiBinary or Box. gymnasium's TransformAction converts others"
        )
    states = States(checked, EnvId.of(env_id).arguments.get(CHANNEL_AXIS), masked)
    return cast(DiscreteEnv, RecordEpisodeStatistics(states))


def screen_size(env_id: str) -> int:
    """Return the height and the width of an Atari game's states, which its id may have as an argument."""
    size: int = EnvId.of(env_id).arguments.get(SCREEN_SIZE, SCREEN)
    if type(size) is not int or size < 36:
        raise UsageError(f"{env_id} has screen_size={size!r}; it has to be a whole number from 36 on")
    return size


def conversions(env: gym.Env) -> list[str]:
    """Return how an environment's observations become states, for people."""
    if is_atari(env):
        return ["Atari's preprocessing of lib/envs/atari.py; the last 4 frames"]
    notes: list[str] = env.get_wrapper_attr("conversions")
    return notes


def _made_again(env_id: str, render_mode: str | None) -> CheckedEnv:
    return CheckedEnv(make_plain_env(env_id, render_mode), env_id)


# Pickling or copying an environment makes a new one from its id, without its episode: a copy would lack what its class
# or a library in C holds.
copyreg.pickle(CheckedEnv, lambda env: (_made_again, (env.env_id, env.render_mode), {"number": env.number}))


def make_plain_env(env_id: str, render_mode: str | None = None) -> gym.Env:
    """Make an environment without this project's wrappers; see make_env. An Atari game gets frame skip 1.

    Raises:
        UsageError: if the id is unknown, its module or another package is missing, or it does not have the render mode.
            Errors of its constructor name it; see checked_env.guard.
    """
    options: Arguments = {}
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
    SPACES[env_id] = {"observation": space_text(env.observation_space), "action": space_text(env.action_space)}
    modes = env.metadata.get("render_modes", [])
    if render_mode is not None and render_mode not in modes:
        env.close()
        needed = f'metadata = {{"render_modes": [{render_mode!r}]}}'
        raise UsageError(f"{env_id} cannot be shown: its render_modes are {modes}; its class needs {needed}")
    return env


def _make(env_id: str, options: Arguments) -> gym.Env:
    module, name, arguments = EnvId.of(env_id)
    registered = _registered_by(module)
    arguments.pop(SCREEN_SIZE if is_atari_id(env_id) else CHANNEL_AXIS, None)
    arguments |= options
    try:
        with guard(lambda: f"{env_id} (in its constructor)"):
            env = gym.make(name, **arguments)
            if not all(isinstance(space, spaces.Space) for space in (env.observation_space, env.action_space)):
                raise TypeError("a space does not inherit from gymnasium.spaces.Space")
            return env
    except gym.error.Error as error:
        text = f"cannot make the environment {env_id!r}: {error}"
        if registered:
            text += f" {module} has registered {textwrap.shorten(', '.join(registered), 300)}"
        elif module:
            text += f" {module} registers nothing when it is imported; write MODULE:FUNCTION:ID if a function does it"
        elif isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound):
            text += " Its module has to register it; --env-id your_package:YourGame-v0 imports your_package first"
        raise UsageError(text) from error
    except ModuleNotFoundError as error:
        raise UsageError(f"{env_id!r} needs a package that is missing: {error}. Install it") from error
    except AssertionError as error:
        if not is_our_call(error):
            raise
        raise UsageError(f"cannot make the environment {env_id!r}: {error}") from error
    except TypeError as error:
        if not re.search(r"\(\) (missing|got an unexpected|takes no)", str(error)):
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"
        advice = "Add it to the class's __init__" if "render_mode" in str(error) else "--env-arg NAME=VALUE passes one"
        raise UsageError(f"{env_id!r} cannot be made with {given}: {error.__cause__ or error}. {advice}") from error


def space_text(space: spaces.Space[object]) -> str:
    """Return a space as text with all of its bounds, unabbreviated. Observations and actions are scaled by them."""
    if isinstance(space, spaces.Dict):
        return f"Dict({', '.join(f'{name!r}: {space_text(part)}' for name, part in space.items())})"
    if isinstance(space, spaces.Tuple):
        return f"Tuple({', '.join(map(space_text, space))})"
    if not isinstance(space, NUMERIC):
        return type(space).__name__  # no network uses it, and its own text may hold an address in memory
    if isinstance(space, spaces.Box):
        space = spaces.Box(space.low, space.high, dtype=space.dtype.type)  # a box keeps its first text
    with np.printoptions(threshold=sys.maxsize, linewidth=sys.maxsize, floatmode="unique"):
        return str(space)


def reward_threshold(env_id: str) -> float | None:
    """Return the mean return at which an environment counts as solved, as registered; None if unknown."""
    spec = _spec(env_id)
    threshold = None if spec is None else spec.reward_threshold
    return None if threshold is None or not math.isfinite(threshold) else float(threshold)


def has_vectors(env_id: str) -> bool:
    """Make an environment, and return whether its states are vectors, without images or boards."""
    env = make_env(env_id, any_actions=True)
    env.close()
    space: spaces.Box = getattr(env.observation_space, "plain", env.observation_space)
    return len(space.shape) == 1 and not isinstance(space, CompositeBox)


def is_atari_id(env_id: str) -> bool:
    """Return whether an id is registered as an Atari game."""
    spec = _spec(env_id)
    return spec is not None and str(spec.entry_point).startswith("ale_py")


def _spec(env_id: str) -> EnvSpec | None:
    """Return what is registered under an id, after importing its module; None if it is unknown."""
    module, name, _ = EnvId.of(env_id)
    _registered_by(module)
    found = [spec for spec in gym.registry.values() if name in (spec.id, spec.id.rpartition("-v")[0])]
    return max(found, key=lambda spec: spec.version or 0, default=None)  # without a version, gym.make takes the newest


@functools.cache
def _registered_by(path: str) -> list[str]:
    """Import the module of an id, call its function, if one is named, and return the ids that they have registered.

    The module may be installed, or in the current folder or the project folder. The user has named it; see
    folder.trusted_id. gym.make would import it, too, but give no reason if that fails.
    """
    module, _, function = path.partition(":")
    if not module:
        return []
    # What is installed comes first. Worker processes import modules through this function as well.
    sys.path += [folder for folder in (os.getcwd(), str(PROJECT)) if folder not in sys.path]
    before = set(gym.registry)
    try:
        with guard(lambda: f"the module {module!r}"):
            imported = importlib.import_module(module)
            if function:
                if not hasattr(imported, function):
                    raise UsageError(f"the module {module!r} has no function {function!r}; write MODULE:FUNCTION:ID")
                getattr(imported, function)()
    except ModuleNotFoundError as error:
        advice = "It has to be installed or in the current folder, under a name that no other module has"
        raise UsageError(f"the module {module!r} fails to import: {error}. {advice}") from error
    package = module.partition(".")[0]  # which gymnasium may have imported before
    own = re.compile(rf"(?<![\w.]){package}\b")
    return [name for name, spec in gym.registry.items() if name not in before or own.search(str(spec.entry_point))]
