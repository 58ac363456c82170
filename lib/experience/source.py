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
from lib.envs.vector_env import Pausable
from lib.experience.stream import ExperienceStream
from lib.experience.transitions import Transitions
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
        return float(total), int(self._snapshot.steps_since_reset[env])

    def _next_resets(self, which: np.ndarray) -> int | np.ndarray:
        # A source in place of a lost one starts with its steps. A step ends at most one episode, so this number is new.
        resets = self._snapshot.resets
        return self.steps_done // len(self.pool) if resets[0] < 0 else resets[which] + 1

    def _reset_seed(self, env: int, episode: int) -> int:
        """Return the seed of an episode of an environment; here, resets are numbered by episodes."""
        return hashed_seed(self.seed, self.env_indices[env], episode)
