"""PPO's actor: plays trajectory segments with the learner's weights."""

import dataclasses
import time
from argparse import Namespace
from functools import cached_property
from typing import Self

import numpy as np
import torch

from lib.actors.engines import Played, Weights
from lib.envs import vector_env
from lib.envs.masks import stacks_frames
from lib.envs.vector_env import DiscreteVectorEnv
from lib.errors import UsageError, divisors
from lib.experience.interface import Episode, State
from lib.hyperparameters import FastPPOHyperparameters
from lib.ppo.fast import FastModel
from lib.ppo.rollout import Sampler
from lib.ppo.update import LearnerGroup
from lib.system.machine import cores, has_fast_bfloat16


@dataclasses.dataclass(frozen=True)
class ActorSettings:
    """Settings of a learner's actors.

    Args:
        env_name: gymnasium id.
        envs: environments of the whole run.
        actors: actors of this learner.
        rollout: steps of each environment in a segment.
        seed: seed from which all seeds are derived.
        engine, patience, address, cpus: see actors.fleet.Fleet.
        bfloat16: compute in bfloat16 on machines that are faster with it.
        traces: whether episodes have traces, which grow with the actions since a reset.
        rank, learners: number of this learner, and of all; each has the same number of actors.

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
    cpus: float = 1.0
    bfloat16: bool = False
    traces: bool = False
    rank: int = 0
    learners: int = 1

    def __post_init__(self) -> None:
        if self.envs % self.learners:
            raise UsageError(f"{self.learners} learners cannot share {self.envs} environments; use another --set envs=")
        if self.actors < 1 or self.envs % (self.actors * self.learners):
            raise UsageError(
                f"{self.actors} actors cannot share {self.envs // self.learners} environments equally; --actors has to "
                f"be one of {divisors(self.envs // self.learners)}"
            )

    @classmethod
    def of(cls, params: FastPPOHyperparameters, args: Namespace, group: LearnerGroup) -> Self:
        """Return the settings of a script, by its options of the same names.

        Without --actors, there is one for each core of this machine, or fewer, so that they share the environments
        equally. Their number is recorded, so that a resumed run has as many.
        """
        if params.minibatch % group.size:
            raise UsageError(
                f"{group.size} learners cannot share minibatches of {params.minibatch}; use another --set minibatch="
            )
        own = params.envs // group.size
        if args.actors is None:
            args.knobs["actors"] = max(number for number in range(1, cores() + 1) if own % number == 0)
        run = params.env_name, params.envs, args.actors, params.rollout, args.seed
        engine = args.engine, args.patience, args.address, args.actor_cpus
        return cls(*run, *engine, bfloat16=True, rank=group.rank, learners=group.size)

    @cached_property
    def env(self) -> DiscreteVectorEnv:
        """A closed environment of the game, for its spaces."""
        env = self.make_envs(1)
        env.close()
        return env

    def env_indices(self, index: int) -> range:
        """Return the indices of the environments that an actor plays."""
        num_envs = self.envs // (self.actors * self.learners)
        first = (self.rank * self.actors + index) * num_envs
        return range(first, first + num_envs)

    def make_envs(self, num_envs: int) -> DiscreteVectorEnv:
        """Make `num_envs` environments.

        Inline actors use all cores in turn. Actors on this machine share its cores; on a cluster, each has its own.
        """
        threads = max(1, cores() // self.actors)
        if self.engine == "inline":
            threads = 0
        elif self.engine == "ray" and self.address is not None:
            threads = max(1, int(self.cpus))
        return vector_env.make_vector_env(self.env_name, num_envs, threads, any_actions=True)


@dataclasses.dataclass
class Segment(Played):
    """T steps of N environments.

    Attributes:
        columns: fields of Rollout as arrays, (T, N, ...). Stacks of frames are sent as "frames", as in frames.unstack,
            instead of "states".
        episodes: episodes that ended in the segment. Episode.step counts the steps of this actor only.
    """

    columns: dict[str, np.ndarray]
    episodes: list[Episode]


class PPOActor:
    """Actor that plays segments; see actors.engines.Actor.

    Args:
        acting: settings of the actors.
        index: index of the actor.
        state: see Actor.state_dict; None for a new run.
    """

    def __init__(self, acting: ActorSettings, index: int, state: State | None = None):
        indices = acting.env_indices(index)
        envs = acting.make_envs(len(indices))
        space = envs.single_observation_space
        with torch.random.fork_rng(devices=()):  # the initial weights must not change the learner's random numbers
            dtype = torch.bfloat16 if acting.bfloat16 and has_fast_bfloat16(torch.device("cpu")) else torch.float32
            self._model = FastModel(space, envs.single_action_space, dtype)
        self._version = -1
        part = {"first_env": indices.start, "total_envs": acting.envs}
        self._sampler = Sampler(envs, self._model, acting.rollout, acting.seed, **part)
        self._sampler.traces = acting.traces
        if state is not None:
            self._sampler.steps_done = state["steps_done"]
            if "snapshot" in state:
                self._sampler.load_state_dict(state)
        self._rollout = self._sampler.empty()
        self._stacked = stacks_frames(space)

    def set_model(self, model: Weights) -> None:
        self._model.load_state_dict(model.tensors)
        self._version = model.version

    def get_trajectory_segment(self) -> Segment:
        start, rollout = time.perf_counter(), self._rollout
        self._sampler.sample(rollout)
        states = rollout.states.numpy()
        sent = {name: column for name, column in vars(rollout).items() if name != "states" or not self._stacked}
        columns = {name: column.numpy().copy() for name, column in sent.items()}
        if self._stacked:
            columns["frames"] = np.concatenate([np.moveaxis(states[0, ..., :-1], -1, 0), states[..., -1]])
        return Segment(
            version=self._version,
            steps=len(rollout),
            steps_done=self._sampler.steps_done,
            columns=columns,
            episodes=self._sampler.pop_episodes(),
            seconds=time.perf_counter() - start,
            parts=self._sampler.clock.pop(),
        )

    def state_dict(self) -> State:
        return self._sampler.state_dict()

    def __str__(self) -> str:
        return f"after {self._sampler.steps_done} steps of its own"
