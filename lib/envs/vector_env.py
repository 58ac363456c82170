"""Environments that step together: ALE's own, in native threads, for Atari games, and gymnasium's for all others.

An environment is reset in the step that ends its episode. What it showed last is then in infos["final_obs"], and the
episode in infos["episode"]; infos["_episode"] says of which environments they are. Where none ended, they may be
missing:

    envs = make_vector_env("PongNoFrameskip-v4", 16)
    states, infos = envs.reset(seed=1)
    states, rewards, terminations, truncations, infos = envs.step(actions)
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import ClipReward, RecordEpisodeStatistics

from lib.envs.atari import FRAME_SKIP, NOOP_MAX, SCREEN, has_only_checking_wrappers, is_atari
from lib.envs.single_env import make_plain_env, single_env
from lib.errors import UsageError
from lib.system import memory
from lib.system.seeds import derived_seeds


def vector_frame_skip(envs: VectorEnv) -> int:
    """Frames of the emulator in an agent step; 1 for what is no Atari game."""
    return FRAME_SKIP if is_native(envs) else 1


def is_native(envs: VectorEnv) -> bool:
    """Whether they are Atari games that ale_py steps."""
    return isinstance(envs.unwrapped, AtariVectorEnv)


STACK = 4


EMULATOR = 2 * 2**20  # bytes, measured for Pong and Breakout, and rounded up


OTHER = 6 * 2**10  # bytes of any other environment at least, measured for CartPole, besides what it shows


# What ale_py registers a game with: native environments have these, and frameskip as plain_env sets it.
NATIVE = ("game", "repeat_action_probability", "full_action_space", "frameskip", "max_num_frames_per_episode")


def make_vector_env(
    env_id: str,
    num_envs: int,
    threads: int = 0,
    noop_max: int = NOOP_MAX,
    clip_rewards: bool = True,
) -> VectorEnv:
    """So many environments of one kind.

    For an Atari game, states are (num_envs, 4, 84, 84) uint8, as atari_wrappers.make_env makes them; see NativeAtari.
    For any other environment they are made by single_env, one environment after the other.

    Args:
        env_id: any id registered with gymnasium; "package.module:Id" imports the module first.
        num_envs: how many.
        threads: that step Atari games; 0 for as many as there are cores.
        noop_max: no-ops at the start of an Atari game at most.
        clip_rewards: whether an Atari game's rewards are clipped to [-1, 1]. infos["episode"]["r"] is the return as the
            game counts it, in any case.

    Raises:
        UsageError: as make_env does, or there are to be none, or so many environments need more memory than is free, or
            it is an Atari game with options or wrappers that native environments do not have.
    """
    if num_envs < 1:
        raise UsageError(f"num_envs is {num_envs}; it has to be at least 1")
    env = make_plain_env(env_id)  # to see what it is
    env.close()
    native = is_atari(env)
    require_memory(num_envs, native)
    if not native:
        others = SyncVectorEnv([lambda: single_env(env_id)] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        return RecordEpisodeStatistics(FinalStates(others))
    envs = RecordEpisodeStatistics(NativeAtari(_game(env, env_id), num_envs, threads, noop_max))
    return ClipReward(envs, -1.0, 1.0) if clip_rewards else envs


def require_memory(num_envs: int, native: bool) -> None:
    """See that so many environments fit, be they native games or others.

    Raises:
        UsageError: they would not fit into the memory that is free.
    """
    memory.require(
        f"{num_envs} environments need",
        num_envs,
        num_envs * (EMULATOR if native else OTHER),
        lambda most: f"take --envs {most}, or in distributed/ --set envs={most}, at most",
    )


def _game(env: gym.Env, env_id: str) -> Mapping[str, Any]:
    """What an Atari game was registered with, if that is all that there is to it.

    Raises:
        UsageError: ale_py's native environments would play another game than it.
    """
    kwargs = {} if env.spec is None else env.spec.kwargs
    usual = inspect.signature(ale_py.AtariEnv.__init__).parameters
    beyond = [
        f"{name}={value!r}"
        for name, value in kwargs.items()
        if name not in NATIVE and (name not in usual or value != usual[name].default)
    ]
    lacking = [f"no {name}" for name in NATIVE if name not in kwargs]
    wrapped_in = [] if has_only_checking_wrappers(env) else ["wrappers of its own"]
    if different := [*wrapped_in, *beyond, *lacking]:
        raise UsageError(
            f"{env_id} is an Atari game with {', '.join(different)}, which ale_py's native environments do not have; "
            "play it with one of the scripts 00 to 04 of chapter 9, or take an id that ale_py registers"
        )
    return kwargs


class NativeAtari(VectorWrapper):
    """ale_py's AtariVectorEnv, made equal to AtariPreprocessing and FrameStack: states, rewards, ends, bit for bit.

    What is not equal: how many no-ops an episode starts with, 0 to noop_max here and 1 to noop_max in gymnasium; these
    count among the frames of max_num_frames_per_episode there, and not here; where actions are repeated by chance (ids
    such as ALE/Pong-v5), the same seed repeats others.
    Made equal here: the first states of an episode, whose missing frames ale_py leaves black, and FrameStack fills
    with the first one. Checked here: actions out of range, over which the native threads hang.

    Args:
        game: what ale_py registered an Atari game with: game, repeat_action_probability and so on.
        num_envs, threads, noop_max: see make_vector_env.
    """

    def __init__(self, game: Mapping[str, Any], num_envs: int, threads: int = 0, noop_max: int = NOOP_MAX):
        super().__init__(
            AtariVectorEnv(
                game["game"],
                num_envs,
                num_threads=threads,
                max_num_frames_per_episode=game["max_num_frames_per_episode"],
                repeat_action_probability=game["repeat_action_probability"],
                full_action_space=game["full_action_space"],
                autoreset_mode=AutoresetMode.SAME_STEP,
                img_height=SCREEN,
                img_width=SCREEN,
                stack_num=STACK,
                frameskip=FRAME_SKIP,
                noop_max=noop_max,
                reward_clipping=False,
                use_fire_reset=False,
            )
        )
        self._age = np.zeros(num_envs, np.int64)  # steps since the reset

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """All environments anew, or those of options["reset_mask"], (num_envs,) bool.

        Args:
            seed: what all environments' own seeds are derived from; or those of the ones that are reset, 31 bits each.
        """
        reset = (options or {}).get("reset_mask", slice(None))
        seeds = derived_seeds(int(seed), self.num_envs)[reset] if isinstance(seed, int | np.integer) else seed
        seeds = None if seeds is None else np.asarray(seeds, np.int64)
        states, infos = self.env.reset(seed=seeds, options=options)  # type: ignore[arg-type]
        self._age[reset] = 0
        self._fill(states, self._age)
        return states, infos

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step of each.

        Args:
            actions: (num_envs,) whole numbers below single_action_space.n.

        Raises:
            ValueError: the actions are not that.
        """
        actions = np.asarray(actions)
        space = self.single_action_space
        assert isinstance(space, spaces.Discrete)
        if actions.shape != (self.num_envs,) or actions.dtype.kind not in "iu":
            raise ValueError(
                f"the actions are {actions.dtype} of shape {actions.shape}; they have to be whole numbers, "
                f"one for each of {self.num_envs} environments"
            )
        if actions.min() < 0 or actions.max() >= space.n:
            raise ValueError(f"the actions are {actions.tolist()}; each has to be one of 0 to {space.n - 1}")
        states, rewards, terminations, truncations, infos = self.env.step(actions.astype(np.int64))
        self._age += 1
        ended = terminations | truncations
        if ended.any():
            self._fill(infos["final_obs"], self._age, ended)
            self._age[ended] = 0
        self._fill(states, self._age)
        return states, rewards.astype(np.float32), terminations, truncations, infos

    @staticmethod
    def _fill(states: np.ndarray, age: np.ndarray, which: np.ndarray | bool = True) -> None:
        """Put an episode's first frame in the place of those that are missing before it."""
        for index in np.flatnonzero((age < STACK - 1) & which):
            missing = STACK - 1 - age[index]
            states[index, :missing] = states[index, missing]


class FinalStates(VectorWrapper):
    """Gives infos["final_obs"] as one array, as ale_py does; rows of environments that go on are zeros."""

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        states, rewards, terminations, truncations, infos = self.env.step(actions)
        if "final_obs" in infos:
            final = np.zeros_like(states)
            for index in np.flatnonzero(terminations | truncations):
                final[index] = infos["final_obs"][index]
            infos = infos | {"final_obs": final}
        return states, rewards.astype(np.float32), terminations, truncations, infos
