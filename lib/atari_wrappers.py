"""The book's Atari wrappers: stacked grey frames of a game. The code is in lib.envs.

This project's scripts use make_env. The other functions are the book's, for its readers' scripts.
"""

from typing import Any, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.wrappers import (
    ClipReward,
    GrayscaleObservation,
    ReshapeObservation,
    ResizeObservation,
    TimeLimit,
    TransformObservation,
)
from stable_baselines3.common.atari_wrappers import EpisodicLifeEnv, FireResetEnv

from lib.envs.atari import (
    FRAME_SKIP,
    NOOP_MAX,
    SCREEN,
    DirectAtari,
    has_fire,
    has_only_checking_wrappers,
    is_atari,
)
from lib.envs.checked_env import wrappers
from lib.envs.frames import FrameStack, LazyFrames
from lib.envs.preprocessing import Preprocessing
from lib.envs.single_env import make_env
from lib.errors import UsageError

__all__ = [
    "FRAME_SKIP",
    "NOOP_MAX",
    "SCREEN",
    "FrameStack",
    "LazyFrames",
    "Preprocessing",
    "make_atari",
    "make_env",
    "wrap_deepmind",
    "wrap_dqn",
]


def wrap_dqn(
    env: gym.Env, stack_frames: int = 4, episodic_life: bool = True, clip_reward: bool = True, noop_max: int = 0
) -> gym.Env:
    """Wrap an Atari game for DQN, without max-pooling of frames and, by default, without no-ops at the start.

    Args:
        env: Atari game with frame skip 1, such as gym.make("PongNoFrameskip-v4").
        stack_frames: number of frames in a state; 0 means 1.
        episodic_life: end an episode when a life is lost. The next one goes on with the same game.
        clip_reward: clip the reward of a step to between -1 and 1.
        noop_max: maximum number of no-op actions at the start of an episode.

    Returns:
        An environment with states of (stack_frames, 84, 84) uint8, as LazyFrames.

    Raises:
        UsageError: if the environment is not an Atari game with frame skip 1, or has wrappers of its own.
    """
    _require_plain_game(env)
    game: gym.Env = DirectAtari(env, noop_max, max_frames=False, clip_rewards=clip_reward, statistics=False)
    return FrameStack(_with_lives_and_fire(game, episodic_life, fire=True), max(1, stack_frames))


def make_atari(
    env_id: str, max_episode_steps: int | None = None, skip_noop: bool = False, skip_maxskip: bool = False
) -> gym.Env:
    """Make an Atari game that skips frames, for `wrap_deepmind`.

    Args:
        env_id: id of a game with frame skip 1, such as "PongNoFrameskip-v4".
        max_episode_steps: agent steps after which an episode is truncated.
        skip_noop: start episodes without no-op actions.
        skip_maxskip: observe the last frame of a step instead of the maximum of the last two.

    Returns:
        An environment with colour screens, (210, 160, 3) uint8, and rewards that are not clipped.

    Raises:
        UsageError: if the environment is not an Atari game with frame skip 1, or has wrappers of its own.
    """
    env = gym.make(env_id)
    _require_plain_game(env)
    no_ops = 0 if skip_noop else NOOP_MAX
    game = DirectAtari(env, no_ops, max_frames=not skip_maxskip, clip_rewards=False, statistics=False)
    game.grey = False
    return game if max_episode_steps is None else TimeLimit(game, max_episode_steps)


def wrap_deepmind(
    env: gym.Env,
    episode_life: bool = True,
    clip_rewards: bool = True,
    frame_stack: bool = False,
    scale: bool = False,
    pytorch_img: bool = False,
    frame_stack_count: int = 4,
    skip_firereset: bool = False,
    fire: bool = True,
) -> gym.Env:
    """Wrap the result of `make_atari` as DeepMind did: grey screens of 84 x 84, and the options below.

    Args:
        env: result of `make_atari`. It is modified in place, unless it has wrappers other than TimeLimit. Those then
            see colour screens and unclipped rewards.
        episode_life: end an episode when a life is lost.
        clip_rewards: clip the reward of a step to between -1 and 1.
        frame_stack: stack frames; a state is LazyFrames.
        scale: scale states to float32 from 0 to 1. Do not use it with networks that scale by themselves, as those of
            lib.dqn_model and the book do.
        pytorch_img: put the channels first.
        frame_stack_count: number of frames in a stack.
        skip_firereset: True has the effect of fire=False.
        fire: press FIRE after a reset, if the game has that action.

    Returns:
        An environment with states of (frame_stack_count, 84, 84) with `frame_stack`, otherwise (1, 84, 84) with
        `pytorch_img` and (84, 84, 1) without. Stacked frames always come first, because the networks need that.

    Raises:
        UsageError: if the environment was not made by `make_atari`, or `frame_stack_count` is below 1.
    """
    game = next((each for each in wrappers(env) if isinstance(each, DirectAtari)), None)
    if game is None:
        raise UsageError(f"wrap_deepmind needs an environment of make_atari, not {env}")
    if all(isinstance(each, TimeLimit) or each is game for each in wrappers(env)):
        game.grey = True  # the emulator's own conversion is faster
        game.clip_rewards = clip_rewards
    else:
        env = ResizeObservation(GrayscaleObservation(env), (SCREEN, SCREEN))
        env = ClipReward(env, -1.0, 1.0) if clip_rewards else env
    env = _with_lives_and_fire(env, episode_life, fire and not skip_firereset)
    if frame_stack:
        env = FrameStack(env, frame_stack_count)
    else:
        env = ReshapeObservation(env, (1, SCREEN, SCREEN) if pytorch_img else (SCREEN, SCREEN, 1))
    if not scale:
        return env
    scaled = spaces.Box(0.0, 1.0, env.observation_space.shape, np.float32)
    return TransformObservation(env, lambda state: np.asarray(state, np.float32) / np.float32(255.0), scaled)


def _require_plain_game(env: gym.Env) -> None:
    if not is_atari(env) or cast(Any, env.unwrapped)._frameskip != 1:
        raise UsageError(f"{env} is not an Atari game with frame skip 1; use an id such as PongNoFrameskip-v4")
    if not has_only_checking_wrappers(env):
        raise UsageError(
            f"the wrappers of {env} would have no effect, because the emulator is called directly; put them around the "
            "wrapped game"
        )


def _with_lives_and_fire(env: gym.Env, episodic_life: bool, fire: bool) -> gym.Env:
    if episodic_life:
        env = EpisodicLifeEnv(env)
    return FireResetEnv(env) if fire and has_fire(env) else env
