"""The book's Atari wrappers, put together from Stable-Baselines3's. This project's scripts use make_env."""

import gymnasium as gym
from gymnasium.wrappers import ReshapeObservation
from stable_baselines3.common.atari_wrappers import AtariWrapper, MaxAndSkipEnv, NoopResetEnv

from lib.envs.atari import FRAME_SKIP, NOOP_MAX, SCREEN
from lib.envs.frames import FrameStack, LazyFrames
from lib.envs.single_env import make_env
from lib.errors import UsageError

__all__ = ["LazyFrames", "make_atari", "make_env", "wrap_deepmind", "wrap_dqn"]


def wrap_dqn(
    env: gym.Env, stack_frames: int = 4, episodic_life: bool = True, clip_reward: bool = True, noop_max: int = 0
) -> gym.Env:
    """Wrap an Atari game with frame skip 1, such as gym.make("PongNoFrameskip-v4"), for DQN.

    Args:
        stack_frames: number of frames in a state; 0 means 1.
        episodic_life: end an episode when a life is lost. The next one goes on with the same game.
        clip_reward: replace the reward of a step by its sign.
        noop_max: maximum number of no-op actions at the start of a game.

    Returns:
        An environment with states of (stack_frames, 84, 84) uint8, as LazyFrames.
    """
    _require_every_frame(env)
    env = MaxAndSkipEnv(NoopResetEnv(env, noop_max) if noop_max else env, FRAME_SKIP)
    return wrap_deepmind(env, episodic_life, clip_reward, frame_stack=True, frame_stack_count=stack_frames or 1)


def make_atari(env_id: str, skip_noop: bool = False, skip_maxskip: bool = False) -> gym.Env:
    """Make an Atari game that skips frames, for `wrap_deepmind`, from an id such as "PongNoFrameskip-v4".

    With `skip_noop`, episodes start without no-op actions. `skip_maxskip` is ignored: every observation is the maximum
    of the last two frames, because some games draw their objects on every second frame.
    """
    env = gym.make(env_id)
    _require_every_frame(env)
    return MaxAndSkipEnv(env if skip_noop else NoopResetEnv(env, NOOP_MAX), FRAME_SKIP)


def wrap_deepmind(
    env: gym.Env,
    episode_life: bool = True,
    clip_rewards: bool = True,
    frame_stack: bool = False,
    pytorch_img: bool = False,
    frame_stack_count: int = 4,
) -> gym.Env:
    """Wrap the result of `make_atari` as DeepMind did: grey screens of 84 x 84, and FIRE after a reset if it exists.

    Args:
        episode_life, clip_rewards: see `wrap_dqn`.
        frame_stack: stack `frame_stack_count` frames; a state is LazyFrames.
        pytorch_img: put the channels first. Stacked frames always come first, because the networks need that.

    Returns:
        An environment with states of (frame_stack_count, 84, 84) with `frame_stack`, otherwise (1, 84, 84) with
        `pytorch_img` and (84, 84, 1) without.
    """
    env = AtariWrapper(env, noop_max=0, frame_skip=1, terminal_on_life_loss=episode_life, clip_reward=clip_rewards)
    if frame_stack:
        return FrameStack(ReshapeObservation(env, (SCREEN, SCREEN)), frame_stack_count)
    return ReshapeObservation(env, (1, SCREEN, SCREEN)) if pytorch_img else env


def _require_every_frame(env: gym.Env) -> None:
    if getattr(env.unwrapped, "_frameskip", None) != 1:
        raise UsageError(f"{env} is not an Atari game with frame skip 1; use an id such as PongNoFrameskip-v4")
