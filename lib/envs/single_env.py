"""Single environments: make one from its gymnasium id, and wrap it so that the networks can use its states."""

import importlib
import logging
import math
import os
import sys
import traceback
from typing import Any, cast

import gymnasium as gym
from gymnasium import spaces
from gymnasium.envs import registration
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import (
    AtariPreprocessing,
    MaxAndSkipObservation,
    RecordEpisodeStatistics,
    ResizeObservation,
    TransformAction,
)

from lib.envs import observations
from lib.envs.atari import FRAME_SKIP, SCREEN, DirectAtari, has_only_checking_wrappers, is_atari, preprocess
from lib.envs.checked_env import CheckedEnv, guarded, wrappers
from lib.envs.frames import ContiguousFrameStack, FrameStack
from lib.envs.masks import AppendMask, KeepOnlyMaskInfo, reports_mask, with_mask_in_info
from lib.envs.observations import ObservationKind
from lib.envs.preprocessing import Preprocessing, without_options
from lib.errors import EnvironmentFailed, Fault, UsageError
from lib.system.files import PROJECT
from lib.system.seeds import undisturbed

log = logging.getLogger(__name__)

# Whether the environments of an id report action masks, with the id's entry in gymnasium's registry at that time.
_masked: dict[str, tuple[EnvSpec | None, bool]] = {}


class ActionSpace(spaces.Discrete):
    """Type of a discrete action space whose `n` is typed as an int."""

    n: int  # type: ignore[assignment]


class DiscreteEnv(gym.Env[Any, Any]):
    """Type of the environments that make_env returns: array states and a finite number of actions."""

    observation_space: spaces.Box
    action_space: ActionSpace


def make_env(env_id: str, tweaked: bool = False, render_mode: str | None = None) -> DiscreteEnv:
    """Make one environment. For a vector environment, use vector_env.make_vector_env.

    Args:
        env_id: id registered with gymnasium; "package.module:Id" imports the module first. The id of an Atari game may
            end in options of its preprocessing; see preprocessing.
        tweaked: use the faster wrappers, which give the same states, rewards and episode ends.
        render_mode: render mode of gymnasium; None for no rendering.

    Returns:
        An environment with the actions 0 to n - 1. Images become states of (4, 84, 84) uint8, or as many frames as the
        id names, as LazyFrames. Boards (channels, height, width) and vectors (n,) are float32; see
        observations.prepare. If the environment reports action masks, they are appended to its states; see
        masks.MaskedBox. At the end of an episode, info["episode"]["r"] is the return before rewards are clipped.

    Raises:
        UsageError: if the environment cannot be made, its actions are not discrete, or its observations cannot be
            converted.
    """
    env = _make(env_id, tweaked, render_mode)
    if is_atari(env) or _is_masked(env, env_id) is not None:
        return env
    try:
        with undisturbed():  # its reset may seed the global generators
            _masked[env_id] = _registered(env), reports_mask(env)
    except BaseException:
        _close_after_error(env)
        raise
    env.close()  # before the next one is made, because some games allow only one at a time
    return _make(env_id, tweaked, render_mode)  # which has not been reset


def _make(env_id: str, tweaked: bool, render_mode: str | None) -> DiscreteEnv:
    """Make an environment that has a mask if its id is known to report one."""
    env = make_plain_env(env_id, render_mode)
    try:
        return cast(DiscreteEnv, _wrapped(env_id, tweaked, env))
    except UsageError:
        _close_after_error(env)
        raise


def _close_after_error(env: gym.Env) -> None:
    """Close an environment after an error. If that fails, too, log it, because the first error is the one to report."""
    try:
        env.close()
    except Exception as error:  # noqa: BLE001 - not our code
        log.warning("%s could not be closed: %r", env, error)


def _is_masked(env: gym.Env, env_id: str) -> bool | None:
    """Return whether an environment reports action masks; None if its id is new, or was registered again."""
    spec, masked = _masked.get(env_id, (None, None))
    return masked if spec is _registered(env) else None


def _registered(env: gym.Env) -> EnvSpec | None:
    return None if env.spec is None else registration.registry.get(env.spec.id)


def _wrapped(env_id: str, tweaked: bool, env: gym.Env) -> gym.Env:
    """Add the wrappers of this project to a plain environment."""
    if not isinstance(env.action_space, spaces.Discrete):
        raise UsageError(
            f"{env_id} has the action space {env.action_space}; DQN and PPO choose among finitely many actions, so it "
            "has to be Discrete(n). gymnasium's TransformAction converts it: "
            "TransformAction(env, lambda action: TABLE[action], Discrete(len(TABLE)))"
        )
    if is_atari(env):
        return _wrapped_game(env_id, tweaked, env)
    if env_id != without_options(env_id):
        raise UsageError(f"{env_id!r} has options of Atari's preprocessing, but is not an Atari game; leave them out")
    counted_from_zero = env.action_space.start == 0
    env = with_mask_in_info(CheckedEnv(env, env_id))
    env = RecordEpisodeStatistics(KeepOnlyMaskInfo(env if counted_from_zero else ActionsFromZero(env)))
    env, kind = observations.prepare(env, env_id)
    if kind is ObservationKind.IMAGE:
        env = observations.noted(ResizeObservation(env, (SCREEN, SCREEN)), f"resized to {SCREEN} x {SCREEN} by area")
    if _is_masked(env, env_id):
        env = observations.noted(AppendMask(env), "the action mask appended; see lib/envs/masks.py")
    if kind is not ObservationKind.IMAGE:
        return env
    stacked = ContiguousFrameStack(env) if tweaked else FrameStack(env)
    return observations.noted(stacked, "the last four frames; at first, copies of the first one")


def _wrapped_game(env_id: str, tweaked: bool, env: gym.Env) -> gym.Env:
    if len(env.unwrapped.observation_space.shape or ()) == 1:
        raise UsageError(f"{env_id} shows the emulator's memory, not its screen; register it without obs_type='ram'")
    for each in wrappers(env):
        changes_observations = each.observation_space != each.env.observation_space
        if changes_observations or isinstance(
            each, gym.ObservationWrapper | AtariPreprocessing | MaxAndSkipObservation
        ):
            raise UsageError(
                f"{env_id} is an Atari game with the wrapper {type(each).__name__}. Its states are made from the "
                "emulator's screen, and its frames are skipped, without that wrapper; register it without it"
            )
    options = Preprocessing.of(env_id)
    direct = has_only_checking_wrappers(env)
    if not options.max_frames and not direct:
        raise UsageError(f"{env_id!r}: max_frames=0 is not possible in a game with wrappers of its own")
    if direct and (tweaked or not options.max_frames):
        env = DirectAtari(env, options.noop_max, max_frames=bool(options.max_frames))
    else:
        env = preprocess(KeepOnlyMaskInfo(env), options.noop_max)
    stacked = (ContiguousFrameStack if tweaked else FrameStack)(env, options.stack)
    return observations.noted(stacked, f"Atari's preprocessing of lib/envs/atari.py; the last {options.stack} frames")


class ActionsFromZero(TransformAction):
    """Shift the action space so that the first action is 0.

    Args:
        env: environment with discrete actions.

    Attributes:
        first_action: the environment's own number of action 0.
    """

    def __init__(self, env: gym.Env):
        space = env.action_space
        assert isinstance(space, spaces.Discrete)
        self.first_action = int(space.start)
        super().__init__(env, lambda action: action + self.first_action, spaces.Discrete(space.n))


def has_display() -> bool:
    """Return whether a window can be opened, as far as the environment variables tell."""
    return sys.platform != "linux" or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))


def make_plain_env(env_id: str, render_mode: str | None = None) -> gym.Env:
    """Make an environment without this project's wrappers. An Atari game gets frame skip 1.

    Args:
        env_id: see make_env.
        render_mode: render mode of gymnasium; None for no rendering.

    Raises:
        UsageError: if the id is unknown, its module cannot be imported, its constructor raises an error or exits, or it
            does not have the render mode.
    """
    _import_module_of(env_id)

    def make(**options: Any) -> gym.Env:
        return guarded(lambda: f"{env_id} (in its constructor)", lambda: gym.make(without_options(env_id), **options))

    part = "constructor"
    options: dict[str, Any] = {}
    try:
        env = make()
        if is_atari(env) and env.unwrapped._frameskip != 1:  # type: ignore[attr-defined]
            # AtariPreprocessing skips frames itself, because it takes the maximum of the last two.
            options["frameskip"] = 1
            if env.spec is not None and env.spec.max_episode_steps is not None:
                # With frameskip=1, gymnasium's limit counts frames.
                options["max_episode_steps"] = FRAME_SKIP * env.spec.max_episode_steps
        if render_mode is not None:
            options["render_mode"] = render_mode
            if not has_display():  # SDL, with which many environments draw, would complain that it finds none
                os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
            _require_render_mode(env, env_id, render_mode)
        if not options:
            return env
        part = "close method"
        close_plain_env(env, env_id)
        part = "constructor"
        return make(**options)
    except gym.error.Error as error:
        text = f"cannot make the environment {env_id!r}: {error}"
        if isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound) and not module_of(env_id):
            text += "" if text.endswith((".", "?")) else "."
            text += (
                " It has to be registered with gymnasium; --env-id your_package:YourGame-v0 imports your_package first"
            )
        elif isinstance(error, gym.error.NameNotFound | gym.error.NamespaceNotFound):
            text = text.rstrip(".") + _file_of(module_of(env_id))
        raise UsageError(text) from error
    except ModuleNotFoundError as error:
        raise UsageError(f"{env_id!r} needs a package that is missing: {error}. Install it") from error
    except (UsageError, Fault):
        raise
    except Exception as error:  # the constructor belongs to the user and may raise anything
        cause = error.__cause__ if isinstance(error, EnvironmentFailed) else error
        if isinstance(cause, TypeError) and "argument 'frameskip'" in str(cause):
            raise UsageError(
                f"{env_id!r} is an Atari game that cannot be made with frameskip=1, which the preprocessing needs: "
                f"{cause}. Let its entry point accept frameskip"
            ) from error
        file = f", {cause.filename}" if isinstance(cause, OSError) and cause.filename else ""
        raise UsageError(
            f"cannot make the environment {env_id!r}: its {part} raised {cause!r}{file}{_place_of(cause or error)}"
        ) from error


def close_plain_env(env: gym.Env, env_id: str) -> None:
    """Close an environment that no CheckedEnv wraps. Its errors name it; see checked_env.guarded."""
    guarded(lambda: f"{env_id} (when it is closed)", env.close)


def _require_render_mode(env: gym.Env, env_id: str, render_mode: str) -> None:
    modes = env.metadata.get("render_modes", [])
    if render_mode not in modes:
        raise UsageError(
            f"{env_id} cannot be shown: its render_modes are {modes}, and {render_mode!r} is not one of them"
        )


def reward_threshold(env_id: str) -> float | None:
    """Return the mean return at which an environment counts as solved, as registered with gymnasium; None if unknown.

    Raises:
        UsageError: if the module that the id names cannot be imported.
    """
    _import_module_of(env_id)
    try:
        namespace, name, version = registration.parse_env_id(without_options(env_id).rpartition(":")[2])
        if version is None:  # gym.make takes the newest one
            version = registration.find_highest_version(namespace, name)
        threshold = gym.spec(registration.get_env_id(namespace, name, version)).reward_threshold
    except gym.error.Error:  # unknown, which is reported when it is made
        return None
    return None if threshold is None or not math.isfinite(threshold) else float(threshold)


def module_of(env_id: str) -> str:
    """Return the module that an id names before its colon, or ""."""
    return env_id.rpartition(":")[0]


def _import_module_of(env_id: str) -> None:
    """Import the module that an id names before its colon.

    gym.make does the same, but its error message does not give the reason for a failure. The module may be
    installed, or it may be in the current folder or the project folder. The user has named it; see
    folder.trusted_id.
    """
    module = module_of(env_id)
    if not module:
        return
    # What is installed comes first. Worker processes import modules through this function as well.
    sys.path += [folder for folder in (os.getcwd(), str(PROJECT)) if folder not in sys.path]
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the module belongs to the user and may raise anything
        reason = traceback.format_exception_only(error)[-1].strip()
        raise UsageError(
            f"the module {module!r} of {env_id!r} fails to import: {reason}{_place_of(error)}. "
            f"It has to be installed or in the current folder{_file_of(module.partition('.')[0])}"
        ) from error


def _file_of(module: str) -> str:
    """Return where an imported module was found, as "; 'examples' was found at ...", or "" if it was not."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return "" if file is None else f"; {module!r} was found at {file}. If yours is another one, rename it"


def _place_of(error: BaseException) -> str:
    """Return the line and file of a user's error as " (line 3 of file)", or "" if they are unknown."""
    if isinstance(error, SyntaxError):
        file, line = error.filename or "", error.lineno
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
    return "" if file.startswith("<") else f" (line {line} of {file})"
