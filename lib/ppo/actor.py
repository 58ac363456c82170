"""An actor: it plays trajectory segments, wherever it is, with the weights that it is sent."""

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
from lib.errors import UsageError, divisors
from lib.experience.episodes import Episode
from lib.experience.stream import Part, Trace
from lib.ppo.model import Model
from lib.ppo.rollout import Agent, Rollout, Sampler
from lib.system.machine import cores


@dataclasses.dataclass(frozen=True)
class Acting:
    """How a number of actors plays.

    Args:
        env_name: gymnasium id.
        envs: environments of all actors.
        actors: how many.
        rollout: steps of each environment in a segment.
        seed: what all seeds are derived from.
        engine: one of actors.ENGINES.
        patience, address, cpus: see actors.start.
        dtype: what the actors' models calculate in.

    Raises:
        UsageError: the actors cannot share the environments.
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
    dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if self.actors < 1 or self.envs % self.actors:
            raise UsageError(
                f"{self.actors} actors cannot share {self.envs} environments; take one of {divisors(self.envs)}"
            )

    @cached_property
    def _looked_at(self) -> tuple[spaces.Box, int, int]:
        envs = self.make_envs(1)
        if not self.address:  # where others have them all; each actor sees to its own there
            vector_env.require_memory(self.envs, vector_env.is_native(envs))
        found = envs.single_observation_space, int(envs.single_action_space.n), vector_env.vector_frame_skip(envs)
        envs.close()
        return found

    @property
    def space(self) -> spaces.Box:
        """Of an environment's states."""
        return self._looked_at[0]

    @property
    def n_actions(self) -> int:
        """How many actions there are."""
        return self._looked_at[1]

    @property
    def frame_skip(self) -> int:
        """Frames of the emulator in an agent step; 1 for what is no Atari game."""
        return self._looked_at[2]

    @property
    def segment_size(self) -> int:
        """Bytes of an actor's segment at most: a rollout, the states at its end, and what aligns the arrays."""
        return self.part(0).num_envs * Rollout.forecast(self.space, self.rollout + 1) + 2**16

    def part(self, number: int) -> Part:
        """The environments of an actor."""
        each = self.envs // self.actors
        return Part(number * each, each, self.envs)

    def make_envs(self, num_envs: int) -> Any:
        """So many of the environments, which all cores step inline, else this machine's by the number of actors."""
        threads = 0 if self.engine == "inline" else max(1, cores() // self.actors)
        return vector_env.make_vector_env(self.env_name, num_envs, threads)


class Ended(NamedTuple):
    """An episode that ended in a segment.

    Attributes:
        step: of the segment, that ended it.
        total, length: return, and agent steps.
        env: which of the actor's environments it was played in.
        no_ops: see experience.Again.
    """

    step: int
    total: float
    length: int
    env: int
    no_ops: int | None


@dataclasses.dataclass
class Segment:
    """What an actor has played, T steps of N environments.

    Attributes:
        version: of the weights that it was played with.
        arrays: Rollout's fields, (T, N, ...).
        episodes: those that ended in it.
        steps_done: the actor's agent steps at its end; began: when its environments began anew, see Stream.
        states: (N, ...) what the environments showed at its end.
        seconds: that it took.
    """

    version: int
    arrays: dict[str, np.ndarray]
    episodes: list[Ended]
    steps_done: int
    began: int
    states: np.ndarray
    seconds: float

    def __len__(self) -> int:
        return self.arrays["actions"].size


class PPOActor:
    """Plays segments with the weights that it is given.

    Args:
        acting: how.
        number: which actor.
        state: of a Stream, where it begins; None for the beginning.
    """

    def __init__(self, acting: Acting, number: int, state: Mapping[str, Any] | None = None):
        self.number = number
        envs = acting.make_envs(acting.part(number).num_envs)
        with torch.random.fork_rng(devices=()):  # its first weights are not to change what the learner draws
            self._model = Model(envs.single_observation_space, int(envs.single_action_space.n), acting.dtype)
        self._version = -1
        self._sampler = Sampler(envs, Agent(self._model), acting.rollout, acting.seed, acting.part(number))
        if state is not None:
            self._sampler.load_state_dict(dict(state))
        self._rollouts = (self._sampler.empty(), self._sampler.empty())  # one is read while the other is filled
        self._turn = 0

    def set_model(self, model: Weights) -> None:
        """Act with these weights from now on."""
        if model.version != self._version:
            self._model.load_state_dict(model.tensors)
            self._version = model.version

    def get_trajectory_segment(self) -> Segment:
        """The next rollout; valid until the next but one is asked for."""
        start, before = time.perf_counter(), self._sampler.steps_done
        rollout = self._rollouts[self._turn]
        self._turn = 1 - self._turn
        self._sampler.sample(rollout)
        num_envs = self._sampler.envs.num_envs
        ended = self._sampler.pop_episodes()
        assert self._sampler.began is not None
        return Segment(
            version=self._version,
            arrays={field.name: getattr(rollout, field.name).numpy() for field in dataclasses.fields(rollout)},
            episodes=[_ended(episode, (episode.step - before) // num_envs - 1) for episode in ended],
            steps_done=self._sampler.steps_done,
            began=self._sampler.began,
            states=self._sampler.states.copy(),
            seconds=time.perf_counter() - start,
        )

    def __str__(self) -> str:
        numbers, steps = self._sampler.part.numbers, self._sampler.steps_done
        return (
            f"Actor {self.number}, with the environments {numbers.start} to {numbers.stop - 1} and the seed "
            f"{self._sampler.seed}, after {steps} steps of its own"
        )


def _ended(episode: Episode, step: int) -> Ended:
    trace = episode.again
    assert isinstance(trace, Trace)
    return Ended(step, episode.total, episode.length, trace.column, trace.no_ops)
