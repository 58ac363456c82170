"""Acting and learning apart: actors that play segments, wherever they are, and the learner that trains on them.

    for segments in Segments(acting, learner):
        learner.train(segments)

is what `run` does. With k actors that share the environments the segments are those of one actor with all of them.
"""

import dataclasses
import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from lib import actors, vector_env
from lib.actors import Weights
from lib.errors import UsageError
from lib.experience import Episode, pack_episodes, unpack_episodes
from lib.ppo.learners import Learners
from lib.ppo.model import Model
from lib.ppo.sampler import Agent, Progress, Rollout, Sampler
from lib.ppo.trainer import Trainer
from lib.stream import Part, frame_skip
from lib.timing import Stopwatch, since_process_start


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
        threads: native ones that step an actor's Atari games; None for the actor's share of the cores.

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
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.actors < 1 or self.envs % self.actors:
            fitting = ", ".join(str(n) for n in range(1, self.envs + 1) if self.envs % n == 0)
            raise UsageError(f"{self.actors} actors cannot share {self.envs} environments; take one of {fitting}")

    @cached_property
    def _looked_at(self) -> tuple[spaces.Box, int, int]:
        envs = self.make_envs(1)
        found = envs.single_observation_space, int(envs.single_action_space.n), frame_skip(envs)
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

    def part(self, number: int) -> Part:
        """The environments of an actor."""
        each = self.envs // self.actors
        return Part(number * each, each, self.envs)

    def make_envs(self, num_envs: int) -> Any:
        """So many of the environments."""
        threads = self.threads
        if threads is None:
            threads = 0 if self.engine == "inline" else max(1, (os.cpu_count() or 1) // self.actors)
        return vector_env.make_vector_env(self.env_name, num_envs, threads, vectors=True)


@dataclasses.dataclass
class Segment:
    """What an actor has played, T steps of N environments.

    Attributes:
        version: of the weights that it was played with.
        arrays: Rollout's fields, (T, N, ...).
        episodes: (step of the segment, return, length) of those that ended in it.
        steps_done: the actor's agent steps at its end; began: when its environments began anew, see Stream.
        states: (N, ...) what the environments showed at its end.
        seconds: that it took.
    """

    version: int
    arrays: dict[str, np.ndarray]
    episodes: list[tuple[int, float, int]]
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
            episodes=[((episode.step - before) // num_envs - 1, episode.total, episode.length) for episode in ended],
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


class PPOLearner:
    """Learns from what actors have played.

    Args:
        trainer: with the model.
        learners: how many make each update together; see learners.Learners.

    Attributes:
        version: of the weights, one more with every update.
    """

    def __init__(self, trainer: Trainer, learners: int = 1):
        self.trainer = trainer
        if learners > 1:
            Learners(trainer, learners)
        self.version = 0

    def train(self, segments: Sequence[Segment], progress: float = 0.0) -> dict[str, float]:
        """An update from all segments together.

        Args:
            segments: whose environments lie beside each other in the order given.
            progress: see Trainer.update.

        Returns:
            What Trainer.update does.
        """
        told = self.trainer.update(joined(segments), progress)
        self.version += 1
        return told

    def look_at(self, segments: Sequence[Segment]) -> None:
        """Have the model normalise states by those of these segments."""
        self.trainer.model.body.look_at(joined(segments).states.flatten(0, 1))
        self.version += 1

    def get_model(self) -> Weights:
        """The weights as they are, not to be changed while they are used."""
        return Weights(self.version, {name: each.cpu() for name, each in self.trainer.model.state_dict().items()})

    def state_dict(self) -> dict[str, int]:
        return {"version": self.version}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.version = state["version"]


def joined(segments: Sequence[Segment]) -> Rollout:
    """A rollout of all their environments."""
    arrays = {name: np.concatenate([each.arrays[name] for each in segments], axis=1) for name in segments[0].arrays}
    return Rollout(**{name: torch.from_numpy(array) for name, array in arrays.items()})


class Segments:
    """What all actors play, as an experience source: an iterable of a segment of each.

    Synchronous, all segments are played with the newest weights, while the learner waits. Asynchronous, an actor that
    has given a segment begins the next at once, with the newest weights that there are, and the learner takes segments
    in the order in which they come; ones that are too old are dropped. PPO's ratio corrects the rest: it is taken to
    the policy that chose the actions.

    Args:
        acting: how many actors, and how they play.
        learner: whose weights they get.
        max_lag: None for synchronous; else the updates that a segment's weights may be behind the learner's.

    Attributes:
        steps_done: agent steps of the segments so far, dropped ones included.
        progress: of the last episodes, as many as there are environments.
        clock: seconds that the learner has spent in "wait".
        frame_skip: see Stream.
        on_step: called with the agent steps of the segments that came; None for nothing.
        dropped: how many segments were.
        actors: the actors; None until the first segment is asked for.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "actor_fps", "replaced", "dropped")

    def __init__(self, acting: Acting, learner: PPOLearner, max_lag: int | None = None):
        self.acting = acting
        self.learner = learner
        self.max_lag = max_lag
        self.steps_done = 0
        self.progress = Progress(acting.envs)
        self.clock = Stopwatch()
        self.on_step: Callable[[int], Any] | None = None
        self.dropped = 0
        self.actors: actors.Actors | None = None
        self._places: list[_Place] = [_Place() for _ in range(acting.actors)]
        self._episodes: list[Episode] = []
        self._lags: deque[int] = deque([0], maxlen=acting.actors)  # of the last segments
        self._played, self._busy = 0, 0.0
        self.frame_skip = acting.frame_skip
        self._room = acting.part(0).num_envs * acting.rollout * (_bytes(acting.space) + 64) + 2**16

    def close(self) -> None:
        """End the actors."""
        if self.actors is not None:
            self.actors.close()

    def __iter__(self) -> Iterator[list[Segment]]:
        """Start the actors; the first segments are looked at, to normalise the states, and forgotten."""
        self.actors = actors.start(
            self.acting.engine,
            partial(PPOActor, self.acting),
            self.acting.actors,
            self.learner.get_model(),
            lambda number: self._places[number].state(),
            patience=self.acting.patience,
            delay_of=lambda number: 2 * self._places[number].seconds,  # which were played beside others
            room=self._room,
            address=self.acting.address,
            cpus=self.acting.cpus,
        )
        if not self.steps_done:
            self.learner.look_at(self._gathered(self.actors))
        if self.max_lag is None:
            while True:
                self.actors.broadcast(self.learner.get_model())
                yield self._gathered(self.actors)
        yield from self._as_they_come(self.actors, self.max_lag)

    def _gathered(self, crew: actors.Actors) -> list[Segment]:
        with self.clock("wait"):
            segments = crew.gather()
        self._count(list(enumerate(segments)))
        return segments

    def _as_they_come(self, crew: actors.Actors, max_lag: int) -> Iterator[list[Segment]]:
        idle = set(range(self.acting.actors))
        waiting: deque[tuple[int, Segment]] = deque()
        while True:
            crew.broadcast(self.learner.get_model())
            for index in sorted(idle):
                crew.order(index)
            idle.clear()
            batch: list[Segment] = []
            given: set[int] = set()
            while len(batch) < self.acting.actors:
                if not waiting:
                    with self.clock("wait"):
                        waiting.extend(crew.take())
                    self._count(list(waiting))
                index, segment = waiting.popleft()
                # The second segment in a batch has to be learnt from before its actor gives a third.
                if index in given:
                    idle.add(index)
                else:
                    crew.order(index)
                if self.learner.version - segment.version > max_lag:
                    self.dropped += 1
                else:
                    batch.append(segment)
                    given.add(index)
            yield batch

    def _count(self, came: Sequence[tuple[int, Segment]]) -> None:
        each = self.acting.part(0).num_envs
        ended = [episode for _, segment in came for episode in segment.episodes]
        for step, total, length in sorted(ended, key=lambda episode: episode[0]):  # and by actor, as they came
            at = self.steps_done + (step + 1) * each * len(came)
            self._episodes.append(Episode(total, length, at, since_process_start()))
            self.progress.add(total)
        for index, segment in came:
            self._places[index].goes_on(segment)
            self._lags.append(self.learner.version - segment.version)
            self._busy += segment.seconds
        steps = sum(len(segment) for _, segment in came)
        self._played += steps
        self.steps_done += steps
        if self.on_step is not None:
            self.on_step(steps)

    def metrics(self) -> dict[str, float]:
        """What there is to log since the last call.

        Returns:
            policy_lag: updates that a segment's weights were behind the learner's when it came, mean of the last ones,
            as many as there are actors; actor_fps: agent steps a second that all actors would make if they never had
            to wait; replaced: actors, and dropped: segments, so far in this process.
        """
        played, busy = self._played, self._busy
        self._played, self._busy = 0, 0.0
        return {
            "policy_lag": sum(self._lags) / len(self._lags),
            "actor_fps": self.acting.actors * played / busy if busy else math.nan,
            "replaced": 0 if self.actors is None else self.actors.replaced,
            "dropped": self.dropped,
        }

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended in the segments that came since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Where every actor stood at the end of the last segment that came."""
        return {
            "steps_done": self.steps_done,
            "places": [place.state() for place in self._places],
            "progress": self.progress.state_dict(),
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """To be called before the first segments are asked for."""
        self.steps_done = state["steps_done"]
        self._places = [_Place(place) for place in state["places"]]
        self.progress.load_state_dict(state["progress"])
        self._episodes = unpack_episodes(state["episodes"])


class _Place:
    """Where an actor stands: what Sampler.load_state_dict needs to bring another one there."""

    def __init__(self, state: Mapping[str, Any] | None = None):
        self._state = None if state is None else dict(state)
        self.seconds: float = 0.0 if state is None else state["seconds"]  # that the actions took
        self._taken = [] if state is None else [state["actions"].numpy()]

    def goes_on(self, segment: Segment) -> None:
        """Go on by a segment."""
        actions = segment.arrays["actions"].astype(np.uint8)
        begun = (segment.began - (segment.steps_done - actions.size)) // actions.shape[1]
        if begun > 0 or self._state is None:  # all environments began anew within it
            self._taken, self.seconds = [], 0.0
        self._taken.append(actions[max(0, begun) :])
        self.seconds += segment.seconds
        self._state = {
            "steps_done": segment.steps_done,
            "began": segment.began,
            "seconds": self.seconds,
            "states": torch.from_numpy(segment.states.copy()),
            "episodes": [],
            "progress": {"recent": [], "first_mean": None},
        }

    def state(self) -> dict[str, Any] | None:
        """None at the beginning."""
        if self._state is None:
            return None
        self._taken = [np.concatenate(self._taken)]
        return self._state | {"actions": torch.from_numpy(self._taken[0])}


def run(
    num_of_actors: int,
    acting: Acting,
    learner: PPOLearner,
    updates: int,
    goal: float | None = None,
    max_lag: int | None = None,
) -> Iterator[dict[str, float]]:
    """Distributed PPO without anything around it: actors play, the learner trains, and they get its weights.

    Args:
        num_of_actors: in place of what `acting` says.
        acting, learner, max_lag: see Segments.
        updates: after which it ends, and with it the actors.
        goal: see Progress.

    Yields:
        What PPOLearner.train tells of each update.
    """
    segments = Segments(dataclasses.replace(acting, actors=num_of_actors), learner, max_lag)
    try:
        for _, batch in zip(range(updates), segments, strict=False):
            yield learner.train(batch, segments.progress(goal))
    finally:
        segments.close()


def _bytes(space: Any) -> int:
    return int(np.prod(space.shape)) * space.dtype.itemsize
