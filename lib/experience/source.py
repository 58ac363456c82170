"""PTAN's experience source on a stream of environments, resumable if it is saved after a whole round of agent steps.

It corrects ptan 0.8.1, which treats a truncated episode as terminated, yields a transition a round late, and resets
without a seed, or with the same one in every environment.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import gymnasium as gym
import numpy as np
import ptan
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ptan.experience import ExperienceFirstLast

from lib.envs.atari import counted, frame_skip
from lib.envs.frames import FrameStrip, LazyFrames
from lib.envs.vector_env import Pausable
from lib.experience.stream import ExperienceStream, Step
from lib.system.seeds import hashed_seed


class ExperienceSourceFirstLast(ExperienceStream):
    """One-step transitions (state, action, reward, last_state) of one agent in one or several environments.

    Args:
        env: one environment, or a list of them that step in turn.
        agent: ptan agent, called once per round with the states of all environments, (num_envs, ...). In a round, each
            environment makes one step.
        gamma: discount factor. It is only stored, because transitions have one step.
        seed: seed from which the seed of every episode is derived.
        first_env: index of the first environment in the run; episode seeds depend on it.

    Attributes:
        pool: the environments.
    """

    RESEED_EVERY = 0  # each episode has its own seed

    def __init__(
        self,
        env: gym.Env | Sequence[gym.Env],
        agent: ptan.agent.BaseAgent,
        gamma: float,
        seed: int = 0,
        first_env: int = 0,
    ):
        self.pool = [env] if isinstance(env, gym.Env) else list(env)
        self.gamma = gamma
        self._counted = list(map(counted, self.pool))
        made = [partial(Pausable, each) for each in self._counted]
        envs = SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED)
        super().__init__(envs, agent, seed, first_env)
        self.frame_skip = frame_skip(self.pool[0])

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        """Yield transitions forever, one of each environment in turn."""
        self.begin()
        transitions = Transitions(self.states, self.stacked)
        for step in self.steps():
            yield from transitions.add(step)

    def _return_and_length(self, env: int, infos: object) -> tuple[float, int]:
        # Not from the infos, because a wrapper outside of the counting one may have ended the episode.
        total = self._counted[env].get_wrapper_attr("episode_returns")
        return float(total), int(self._snapshot.length - self._snapshot.starts[env])

    def _reseed(self, which: np.ndarray) -> None:
        # A source in place of a lost one starts with its steps. A step ends at most one episode, so this number is new.
        resets = self._snapshot.resets
        self._snapshot.restart(self.steps_done // len(self.pool) if resets[0] < 0 else resets[which] + 1, which)
        self._reset(which)

    def _reset_seed(self, env: int, episode: int) -> int:
        """Return the seed of an episode of an environment; here, resets are numbered by episodes."""
        return hashed_seed(self.seed, self.env_indices[env], episode)


class Transitions:
    """Makes one-step transitions of the steps of several environments. Their states are LazyFrames.

    Args:
        states: (num_envs, ...) states in which the first actions are taken.
        stacked: whether states are stacks of frames; otherwise a state is one frame.
    """

    def __init__(self, states: np.ndarray, stacked: bool):
        self._strips = [FrameStrip(states.shape[1] if stacked else 0) for _ in states]
        first = states if stacked else states[:, None]
        self._states: list[LazyFrames | None] = [  # None after the end of an episode
            strip.start(frames) for strip, frames in zip(self._strips, first, strict=True)
        ]

    def add(self, step: Step) -> list[ExperienceFirstLast]:
        """Return the transitions of one step, in the order of the environments.

        The last state is None if the episode terminated. If it was truncated, the learner bootstraps from it.
        """
        frames, actions, rewards, terminated, truncated, final_frames = step
        transitions = []
        for env, strip in enumerate(self._strips):
            state = self._states[env]
            if state is None:
                state = strip.start([frames[env]] * strip.frames)
            last_state = None if terminated[env] else strip.append(final_frames[env])
            transitions.append(ExperienceFirstLast(state, int(actions[env]), float(rewards[env]), last_state))
            self._states[env] = None if truncated[env] else last_state
        return transitions
