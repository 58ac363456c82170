"""Vector environments: ale_py's native ones for Atari games, gymnasium's for all others."""

import logging
from collections.abc import Callable, Sequence
from typing import cast

import gymnasium as gym
import numpy as np
import torch
from ale_py.vector_env import AtariVectorEnv
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import ClipReward, RecordEpisodeStatistics

from lib.envs.atari import FRAME_SKIP, NOOP_MAX, SCREEN, has_only_checking_wrappers, is_atari
from lib.envs.checked_env import ActionSpace, Info, Reset, Stepped
from lib.envs.frames import STACK
from lib.envs.masks import MaskedBox, StackedBox
from lib.envs.single_env import Arguments, make_plain_env, screen_size, wrapped
from lib.errors import UsageError

log = logging.getLogger(__name__)

# Methods by which an environment may give and take what it keeps from episode to episode.
CARRYING = (("state_dict", "load_state_dict"), ("get_state", "set_state"))

# The arguments with which ale_py registers games, except frameskip, which make_plain_env sets.
NATIVE_ARGUMENTS = ("game", "repeat_action_probability", "full_action_space", "max_num_frames_per_episode")


class DiscreteVectorEnv(VectorEnv):
    """Type of the environments that make_vector_env returns by default: array states and a number of actions."""

    single_observation_space: spaces.Box
    single_action_space: ActionSpace


def make_vector_env(
    env_id: str, num_envs: int, threads: int = 0, processes: bool = False, any_actions: bool = False
) -> DiscreteVectorEnv:
    """Make several environments that step together.

    States of an Atari game are (num_envs, 4, 84, 84) uint8, equal to those of single_env.make_env; see NativeAtari. Its
    rewards are clipped to [-1, 1]; infos["episode"]["r"] is the unclipped return. Other environments have the wrappers
    of single_env.make_env, and step one after the other, or at the same time in processes.

    Args:
        env_id, any_actions: see single_env.make_env.
        threads: number of threads that step Atari games; 0 for one per core.
        processes: step each environment in a process of its own; not for Atari games, which have native threads.

    Returns:
        A vector environment with states (num_envs, ...). If an episode ends, its environment is reset in the same step.
        infos["final_obs"][index] is then the last state of the episode. infos["episode"], or of others than Atari games
        infos["final_info"]["episode"], has its return and length. These entries may be missing if no episode ended.

    Raises:
        UsageError: if make_env raises it, or an Atari game has options or wrappers that native environments do not
            support.
    """
    first = make_plain_env(env_id)
    if is_atari(first):
        first.close()
        if processes:
            raise UsageError(f"{env_id} is an Atari game, whose native threads are faster; leave --async-envs out")
        assert first.spec is not None
        game = first.spec.kwargs
        if game.keys() != {*NATIVE_ARGUMENTS, "frameskip"} or not has_only_checking_wrappers(first):
            raise UsageError(
                f"{env_id} is an Atari game with other wrappers or arguments than those with which ale_py registers "
                f"games: {first}, {game}. Native environments do not support them; play it with one of the scripts 00 "
                "to 04 of chapter 9, or take an id that ale_py registers"
            )
        envs = RecordEpisodeStatistics(NativeAtari(game, num_envs, threads, screen=screen_size(env_id)))
        return cast(DiscreteVectorEnv, ClipReward(envs, -1.0, 1.0))
    made = [Pausable(wrapped(first, env_id, any_actions=any_actions))]
    masked = isinstance(made[0].observation_space, MaskedBox)

    def make() -> gym.Env:
        """Return the environment that this process has made already, or another one."""
        if made:
            return made.pop()
        return Pausable(wrapped(make_plain_env(env_id), env_id, masked=masked, any_actions=any_actions))

    if processes:
        from lib.envs.process_env import ProcessVectorEnv  # few runs need it

        return cast(DiscreteVectorEnv, ProcessVectorEnv(make, num_envs, env_id))
    return cast(DiscreteVectorEnv, SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP))


def set_each(envs: VectorEnv, name: str, values: object) -> None:
    """Set an attribute of each environment's Pausable, to a list's values or to one for all. Native ones have none."""
    if isinstance(envs.unwrapped, SyncVectorEnv | AsyncVectorEnv):
        envs.unwrapped.set_attr(name, values)


def carried(envs: VectorEnv) -> list[object] | None:
    """Return what each environment kept from earlier episodes at its last seeded reset; None if none keeps anything."""
    ours = envs.unwrapped
    states = ours.get_attr("carried") if isinstance(ours, SyncVectorEnv | AsyncVectorEnv) else ()
    return None if all(state is None for state in states) else list(states)


class NativeAtari(VectorWrapper):
    """ale_py's AtariVectorEnv with the states, rewards and episode ends of AtariPreprocessing and FrameStack.

    ale_py leaves the missing frames of an episode's first states black; here the first frame fills them, as in
    FrameStack. Actions are checked, because an action that is out of range makes the native threads hang.

    Three differences remain. An episode starts with 0 to noop_max no-ops instead of 1 to noop_max. These no-ops do not
    count towards max_num_frames_per_episode. In games with sticky actions, such as ALE/Pong-v5, the same seed repeats
    actions at different frames.

    Args:
        game: arguments with which ale_py registered the game, such as game and repeat_action_probability.
        num_envs, threads: see make_vector_env.
        noop_max: maximum number of no-op actions at the start of an episode.
        screen: height and width of the states.
    """

    def __init__(
        self, game: Arguments, num_envs: int, threads: int = 0, noop_max: int = NOOP_MAX, screen: int = SCREEN
    ):
        super().__init__(
            AtariVectorEnv(
                **{name: game[name] for name in NATIVE_ARGUMENTS},
                num_envs=num_envs,
                num_threads=threads,
                autoreset_mode=AutoresetMode.SAME_STEP,
                img_height=screen,
                img_width=screen,
                stack_num=STACK,
                frameskip=FRAME_SKIP,
                noop_max=noop_max,
                reward_clipping=False,
                use_fire_reset=False,
            )
        )
        self.single_observation_space = StackedBox(spaces.Box(0, 255, (screen, screen), np.uint8), STACK)
        self._episode_steps = np.zeros(num_envs, np.int64)  # steps since the last reset
        self._no_ops = np.zeros(num_envs, np.int64)  # frames before the first action

    def reset(self, *, seed: int | Sequence[int] | None = None, options: Info | None = None) -> tuple[np.ndarray, Info]:
        """Reset all environments, or those that options["reset_mask"], (num_envs,) bool, selects.

        `seed` holds each environment's seed, of 31 bits; or it is the first one's, and the others' are seed + 1, ...
        """
        selected = (options or {}).get("reset_mask", slice(None))
        seeds = np.asarray(seed, np.int64)[selected] if isinstance(seed, Sequence) else seed
        states, infos = self.env.reset(seed=seeds, options=options)
        self._episode_steps[selected] = 0
        self._no_ops[selected] = infos["episode_frame_number"][selected]
        _fill_first_states(states, self._episode_steps)
        return states, infos

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, Info]:
        """Step every environment. Actions are (num_envs,) integers from 0 to single_action_space.n - 1.

        infos["no_ops"] holds the frames that were played before the first actions of the episodes, start-up included.
        """
        actions = np.asarray(actions).astype(np.int64, casting="same_kind")
        if not self.action_space.contains(actions):
            raise ValueError(f"the actions {actions.tolist()} are not in {self.action_space}")
        states, rewards, terminations, truncations, infos = self.env.step(actions)
        self._episode_steps += 1
        ended = terminations | truncations
        infos["no_ops"] = self._no_ops.copy()
        if ended.any():
            self._no_ops[ended] = infos["episode_frame_number"][ended]
            _fill_first_states(infos["final_obs"], self._episode_steps, ended)
            self._episode_steps[ended] = 0
        _fill_first_states(states, self._episode_steps)
        return states, rewards.astype(np.float32), terminations, truncations, infos


def _fill_first_states(states: np.ndarray, episode_steps: np.ndarray, which: np.ndarray | bool = True) -> None:
    """Replace, in place, the missing frames at the start of an episode by its first frame.

    Args:
        states: (num_envs, 4, 84, 84) uint8.
        episode_steps, which: (num_envs,) steps since the last reset, and whether the states may be changed.
    """
    for index in np.flatnonzero((episode_steps < STACK - 1) & which):
        missing = STACK - 1 - episode_steps[index]
        states[index, :missing] = states[index, missing]


def _converted(state: object, convert: Callable[[object], object]) -> object:
    """Return a copy of an environment's state, with its arrays and plain values converted. Tuples become lists."""
    if isinstance(state, dict):
        return {name: _converted(each, convert) for name, each in state.items()}
    if isinstance(state, list | tuple):
        return [_converted(each, convert) for each in state]
    return convert(state)


def _to_saved(value: object) -> object:
    """Convert an array to a tensor, because a checkpoint holds tensors and plain values alone."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy())
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    raise TypeError(f"its state_dict holds a {type(value).__name__}, not only arrays, numbers, texts, lists and dicts")


class Pausable(gym.Wrapper):
    """Environment that ignores actions while `paused` is true. A reset ends the pause.

    Attributes:
        carried: what the environment kept from earlier episodes at its last seeded reset, such as the level of a
            curriculum: a copy of its state_dict() or get_state(); None if it has neither.
        restored: value of `carried` that seeded resets give back to the environment; None for none.
    """

    def __init__(self, env: gym.Env):
        super().__init__(env)
        self.paused = False
        self.carried: object = None
        self.restored: object = None
        self._methods = next((names for names in CARRYING if all(map(env.has_wrapper_attr, names))), None)
        self._first_state: object = None

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> Reset:
        self.paused = False
        if seed is not None and self._methods is not None:
            self._carry(*self._methods)
        # A reset of some environments leaves an empty dictionary, which an environment may not expect.
        self._first_state, info = self.env.reset(seed=seed, options=options or None)
        return self._first_state, info

    def _carry(self, getter: str, setter: str) -> None:
        try:
            if self.restored is None:
                self.carried = _converted(self.get_wrapper_attr(getter)(), _to_saved)
            else:
                state = _converted(self.restored, lambda each: each.numpy().copy() if torch.is_tensor(each) else each)
                self.get_wrapper_attr(setter)(state)
                self.carried = self.restored
        except Exception as error:  # noqa: BLE001 - of an environment
            self._methods = None
            level = logging.WARNING if getter == "state_dict" else logging.DEBUG  # get_state is often of the episode
            log.log(level, "What an environment keeps from episode to episode is lost on resume: %s.", error)

    def step(self, action: object) -> Stepped:
        if self.paused:
            return self._first_state, 0.0, False, False, {}
        return self.env.step(action)
