"""PPO's actor: plays trajectory segments with the learner's weights."""

import dataclasses
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces

from lib.actors.contract import Weights
from lib.envs import vector_env
from lib.envs.vector_env import DiscreteVectorEnv, vector_frame_skip
from lib.errors import UsageError, divisors
from lib.experience.episodes import Episode
from lib.experience.stream import EnvRange
from lib.ppo.fast import FastModel
from lib.ppo.rollout import Agent, Rollout, Sampler
from lib.system.machine import cores, has_fast_bfloat16


class EnvFacts(NamedTuple):
    """Facts about an environment that are known only after one has been made."""

    space: spaces.Box
    n_actions: int
    frame_skip: int


@dataclasses.dataclass(frozen=True)
class ActorSettings:
    """Settings of a run's actors.

    Args:
        env_name: gymnasium id.
        envs: total number of environments.
        actors: number of actors.
        rollout: steps of each environment in a segment.
        seed: seed from which all seeds are derived.
        engine: key of actors.engines.ENGINES.
        patience: seconds to wait for a segment; see actors.contract.Actors.
        address: address of a Ray cluster, or None.
        cpus: CPUs per actor on Ray, or None.
        bfloat16: compute in bfloat16 on machines that are faster with it.

    Raises:
        UsageError: if the actors cannot share the environments evenly.
    """

    env_name: str
    envs: int
    actors: int
    rollout: int
    seed: int
    engine: str = "inline"
    patience: float = 60.0
    address: str | None = None
    cpus: float | None = None
    bfloat16: bool = False

    def __post_init__(self) -> None:
        if self.actors < 1 or self.envs % self.actors:
            raise UsageError(
                f"{self.actors} actors cannot share {self.envs} environments equally; --actors has to be one of "
                f"{divisors(self.envs)}"
            )

    @cached_property
    def env_facts(self) -> EnvFacts:
        """Facts about the environment."""
        envs = self.make_envs(1)
        facts = EnvFacts(envs.single_observation_space, int(envs.single_action_space.n), vector_frame_skip(envs))
        envs.close()
        return facts

    @property
    def space(self) -> spaces.Box:
        """Observation space of one environment."""
        return self.env_facts.space

    @property
    def n_actions(self) -> int:
        """Number of actions."""
        return self.env_facts.n_actions

    @property
    def segment_size(self) -> int:
        """Upper bound on the bytes of an actor's segment: a rollout, the states at its end, and array alignment."""
        return self.env_range(0).num_envs * Rollout.bytes_of(self.space, self.rollout + 1) + 2**16

    def env_range(self, index: int) -> EnvRange:
        """Return the part of the environments that an actor plays."""
        num_envs = self.envs // self.actors
        return EnvRange(index * num_envs, num_envs, self.envs)

    def make_envs(self, num_envs: int) -> DiscreteVectorEnv:
        """Make `num_envs` environments.

        Inline actors use all cores in turn. Actors on this machine share its cores. On a cluster, or with `cpus`, each
        has its own CPUs.
        """
        threads = max(1, cores() // self.actors)
        if self.engine == "inline":
            threads = 0
        elif self.engine == "ray" and (self.address is not None or self.cpus is not None):
            threads = max(1, int(self.cpus or 1))
        return vector_env.make_vector_env(self.env_name, num_envs, threads)


class Reset(NamedTuple):
    """Reset of environments with new seeds.

    Attributes:
        steps_before: agent steps of the actor before the reset, from which the seeds are derived.
        which: (num_envs,) bool, the environments that were reset.
    """

    steps_before: int
    which: np.ndarray


@dataclasses.dataclass
class Segment:
    """T steps of N environments that an actor has played.

    Attributes:
        version: version of the weights that it was played with.
        arrays: fields of Rollout as arrays (T, N, ...).
        episodes: episodes that ended in the segment, without traces. Their steps are the actor's own.
        steps_done: agent steps of the actor at the end of the segment.
        resets: resets with new seeds since the previous segment.
        final_states: (N, ...) states of the environments at the end of the segment.
        seconds: time that the segment took.
    """

    version: int
    arrays: dict[str, np.ndarray]
    episodes: list[Episode]
    steps_done: int
    resets: list[Reset]
    final_states: np.ndarray
    seconds: float

    def __len__(self) -> int:
        return self.arrays["actions"].size


class PPOActor:
    """Actor that plays segments; see actors.contract.Actor.

    Args:
        acting: settings of the actors.
        index: index of the actor.
        state: state of a Sampler to start from, or None for a new one.
    """

    def __init__(self, acting: ActorSettings, index: int, state: Mapping[str, Any] | None = None):
        envs = acting.make_envs(acting.env_range(index).num_envs)
        with torch.random.fork_rng(devices=()):  # the initial weights must not change the learner's random numbers
            dtype = torch.bfloat16 if acting.bfloat16 and has_fast_bfloat16(torch.device("cpu")) else torch.float32
            self._model = FastModel(envs.single_observation_space, int(envs.single_action_space.n), dtype)
        self._version = -1
        self._sampler = Sampler(envs, Agent(self._model), acting.rollout, acting.seed, acting.env_range(index))
        self._resets: list[Reset] = []
        self._sampler.on_reset = lambda steps, which: self._resets.append(Reset(steps, which))
        if state is not None:
            self._sampler.load_state_dict(dict(state))
        self._rollouts = (self._sampler.empty(), self._sampler.empty())  # the learner reads one, the other is filled
        self._turn = 0

    def set_model(self, model: Weights) -> None:
        """Act with these weights from now on."""
        if model.version != self._version:
            self._model.load_state_dict(model.tensors)
            self._version = model.version

    def get_trajectory_segment(self) -> Segment:
        """Return the next segment. The second call after this one overwrites it."""
        start = time.perf_counter()
        rollout = self._rollouts[self._turn]
        self._turn = 1 - self._turn
        self._sampler.sample(rollout)
        resets, self._resets = self._resets, []
        return Segment(
            version=self._version,
            arrays={field.name: getattr(rollout, field.name).numpy() for field in dataclasses.fields(rollout)},
            episodes=[episode._replace(trace=None) for episode in self._sampler.pop_episodes()],
            steps_done=self._sampler.steps_done,
            resets=resets,
            final_states=self._sampler.states.copy(),
            seconds=time.perf_counter() - start,
        )

    def __str__(self) -> str:
        return f"after {self._sampler.steps_done} steps of its own"
