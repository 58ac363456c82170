"""PPO with remote actors: the exchange of weights and segments.

`run` shows its use:

    for segments in Segments(acting, learner):
        learner.train(segments)

k actors that share the environments produce the same rollouts as one actor with all of them, up to rounding.
"""

import dataclasses
import logging
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from lib.actors.contract import Actors
from lib.actors.engines import start_actors
from lib.errors import counted
from lib.experience.episodes import Episode, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource, Stopped
from lib.experience.snapshot import REPLAYING
from lib.experience.stream import EnvRange, snapshot_of
from lib.ppo.actor import ActorSettings, PPOActor, Reset, Segment
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner
from lib.system.clock import Stopwatch, since_process_start
from lib.system.log import TaskProgress

log = logging.getLogger(__name__)


class Segments(ExperienceSource):
    """Experience source of PPO: yields one segment per actor.

    Synchronous: all segments are played with the newest weights, while the learner waits.

    Asynchronous: an actor that has delivered a segment starts the next one at once, with the newest weights available.
    The learner takes segments in order of arrival. It drops those that are too old. For the others, PPO's probability
    ratio corrects the lag, because its denominator is the policy that chose the actions.

    Args:
        acting: settings of the actors.
        learner: learner whose weights the actors use.
        max_lag: None for synchronous; otherwise the largest number of updates by which a segment's weights may be
            behind the learner's.

    Attributes:
        steps_done: agent steps of all segments so far, including dropped ones.
        clock: seconds that the learner has spent in "wait".
        on_step: function that is called with the number of agent steps in segments that have arrived.
        dropped: number of segments that were dropped.
        actors: the actors, or None before the first segment is requested.

    Raises:
        TypeError: if the learner's model is not a FastModel.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "actor_fps", "replaced", "dropped")
    START_UP_SECONDS = 5  # approximate start-up time of the actors in seconds

    def __init__(self, acting: ActorSettings, learner: PPOLearner, max_lag: int | None = None):
        if type(learner.trainer.model) is not FastModel:
            raise TypeError(
                f"the model is of class {type(learner.trainer.model).__name__}, and actors act with "
                "lib.ppo.fast.FastModel; change that class, or copy 02_ppo_fast.py, which has no actors"
            )
        if max_lag is not None and acting.engine == "inline":
            log.warning("Inline actors play only while the learner waits; --async does not make them faster.")
        self.acting = acting
        self.learner = learner
        self.max_lag = max_lag
        self.steps_done = 0
        self.clock = Stopwatch()
        self.dropped = 0
        self.actors: Actors | None = None
        self._restoring: TaskProgress | None = None
        self.frame_skip = acting.env_facts.frame_skip
        self._handles = [_Handle(acting.seed, acting.env_range(index)) for index in range(acting.actors)]
        self._episodes: list[Episode] = []
        self._lags: deque[int] = deque([0], maxlen=acting.actors)  # lags of the last segments, in updates
        self._played, self._busy = 0, 0.0  # the actors' agent steps and seconds since the last call of `metrics`

    def start(self) -> None:
        """Start the actors.

        Raises:
            UsageError: see start_actors.
        """
        if self.actors is None:
            self.actors = self._start()

    def close(self) -> None:
        """End the actors, and the other learners' processes. The next iteration starts both again."""
        try:
            if self.actors is not None:
                self.actors.close()
        finally:
            self.actors = None
            self.learner.close()

    def __iter__(self) -> Iterator[list[Segment]]:
        """Start the actors, and yield segments until the run is asked to stop.

        The first segments of a new run are used only to fit the model's input normalisation, and are not yielded.

        Raises:
            UsageError: see start_actors.
        """
        self.start()
        actors = self.actors
        assert actors is not None
        with suppress(Stopped):
            if not self.steps_done:
                self.learner.normalise_by(self._gathered(actors))
            if self.max_lag is None:
                while True:
                    actors.broadcast(self.learner.get_model())
                    yield self._gathered(actors)
            yield from self._as_they_come(actors, self.max_lag)

    def _start(self) -> Actors:
        seconds = math.ceil(max(handle.seconds_to_replay for handle in self._handles))
        if seconds > 1 and self.acting.engine != "inline":  # inline actors show their own progress
            self._restoring = TaskProgress(REPLAYING, seconds + self.START_UP_SECONDS, "seconds")
        return start_actors(
            self.acting.engine,
            partial(PPOActor, self.acting),
            self.acting.actors,
            self.learner.get_model(),
            lambda index: self._handles[index].sampler_state(),
            patience=self.acting.patience,
            stop_asked=self._waiting,
            delay_of=lambda number: 2.0 * self._handles[number].seconds_to_replay,
            name_of=self._name_of,
            room=self.acting.segment_size,
            address=self.acting.address,
            cpus=self.acting.cpus,
        )

    def _name_of(self, index: int) -> str:
        indices, acting = self.acting.env_range(index).indices, self.acting
        environments = counted("environment", indices.start, indices.stop - 1)
        return f"actor {index} ({environments} of {acting.env_name}, seed {acting.seed})"

    def _waiting(self) -> bool:
        """Called by the actors about once a second. Return whether the run was asked to stop."""
        if self._restoring is not None:
            self._restoring.update()
        return self.stop_asked()

    def _gathered(self, actors: Actors) -> list[Segment]:
        with self.clock("wait"):
            segments = actors.gather()
        self._count(list(enumerate(segments)))
        self._lags.extend(self.learner.version - segment.version for segment in segments)
        return segments

    def _as_they_come(self, actors: Actors, max_lag: int) -> Iterator[list[Segment]]:
        """Yield segments in order of arrival.

        If waiting fails, segments of the batch that have arrived are counted, but not learnt from. The snapshots are at
        their ends, from which a replaced actor continues.
        """
        idle = set(range(self.acting.actors))
        waiting: deque[tuple[int, Segment]] = deque()
        while True:
            actors.broadcast(self.learner.get_model())
            for index in sorted(idle):
                actors.order(index)
            idle.clear()
            batch: list[Segment] = []
            in_batch: set[int] = set()
            while len(batch) < self.acting.actors:
                if not waiting:
                    with self.clock("wait"):
                        waiting.extend(actors.take())
                # A segment is counted when it leaves this queue. One that is queued during a checkpoint is played again
                # after a resume.
                index, segment = waiting.popleft()
                self._count([(index, segment)])
                # After its second segment in a batch, an actor waits, because its next one would overwrite a segment
                # that the learner has not learnt from.
                if index in in_batch:
                    idle.add(index)
                else:
                    actors.order(index)
                lag = self.learner.version - segment.version
                if lag > max_lag:
                    self.dropped += 1
                else:
                    self._lags.append(lag)
                    batch.append(segment)
                    in_batch.add(index)
            yield batch

    def _count(self, segments: Sequence[tuple[int, Segment]]) -> None:
        """Count the steps and episodes of segments that have arrived, and move the snapshots to their ends."""
        if self._restoring is not None:
            self._restoring.close()
            self._restoring = None
        num_envs = self.acting.env_range(0).num_envs
        ended: list[tuple[int, Episode]] = []
        for index, segment in segments:
            ended += self._handles[index].follow(segment)
            self._busy += segment.seconds
        # Within a step, episodes are in the order of the actors.
        for number, episode in sorted(ended, key=lambda pair: pair[0]):
            step = self.steps_done + number * num_envs * len(segments)
            self._episodes.append(episode._replace(step=step, clock=since_process_start()))
        steps = sum(len(segment) for _, segment in segments)
        self._played += steps
        self.steps_done += steps
        self.on_step(steps)

    def metrics(self) -> dict[str, float]:
        """Return policy_lag, actor_fps, replaced and dropped.

        policy_lag: mean number of updates by which the weights of the last segments were behind the learner's.
        actor_fps: agent steps per second that all actors together would make without waiting, since the last call.
        replaced, dropped: numbers of replaced actors and dropped segments since the actors were started.
        """
        played, busy = self._played, self._busy
        at_once = 1 if self.acting.engine == "inline" else self.acting.actors
        self._played, self._busy = 0, 0.0
        return {
            "policy_lag": sum(self._lags) / len(self._lags),
            "actor_fps": at_once * played / busy if busy else math.nan,
            "replaced": 0 if self.actors is None else self.actors.replaced,
            "dropped": self.dropped,
        }

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended in segments that were counted since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """Return the counters and the snapshot of every actor after its last counted segment."""
        return {
            "steps_done": self.steps_done,
            "actors": [handle.state_dict() for handle in self._handles],
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned. Call this before the first segments are requested."""
        self.steps_done = state["steps_done"]
        for handle, saved in zip(self._handles, state["actors"], strict=True):
            handle.load_state_dict(saved)
        self._episodes = unpack_episodes(state["episodes"])


class _Handle:
    """Learner-side handle of one actor: the snapshot of its environments after its last counted segment.

    Attributes:
        seconds_per_step: time in which the actor plays one step of all its environments.
    """

    def __init__(self, seed: int, env_range: EnvRange):
        self._env_range = env_range
        self._snapshot = snapshot_of(seed, env_range)
        self._steps_done = 0
        self.seconds_per_step = 0.0

    def follow(self, segment: Segment) -> list[tuple[int, Episode]]:
        """Move the snapshot to the end of a segment.

        Returns:
            The episodes that ended in it, each with the number of the segment's steps up to its end.
        """
        actions, states = segment.arrays["actions"], segment.arrays["states"]
        self._snapshot.append(actions)
        before = len(self._snapshot) - len(actions)  # steps before the segment
        resets = deque(segment.resets)
        ended = []
        for episode in segment.episodes:
            number = self._steps_until(episode.step, segment)
            while resets and self._steps_until(resets[0].steps_before, segment) < number:
                self._restart(resets.popleft(), segment, before)
            last_state = np.moveaxis(states[number - 1, episode.env], -1, 0).copy()  # as the environment returned it
            trace = self._snapshot.trace(episode.env, episode.length, last_state, episode.no_ops, before + number)
            ended.append((number, episode._replace(trace=trace)))
        for reset in resets:
            self._restart(reset, segment, before)
        self._snapshot.states = segment.final_states.copy()
        self._steps_done = segment.steps_done
        self.seconds_per_step = segment.seconds / len(actions)
        return ended

    def _restart(self, reset: Reset, segment: Segment, before: int) -> None:
        step = before + self._steps_until(reset.steps_before, segment)
        self._snapshot.restart(reset.steps_before, reset.which, step)

    def _steps_until(self, steps: int, segment: Segment) -> int:
        """Return how many of the segment's steps the actor had played after `steps` agent steps of its own."""
        return (steps - (segment.steps_done - len(segment))) // self._env_range.num_envs

    @property
    def seconds_to_replay(self) -> float:
        """Time in which an actor can replay the actions of the snapshot."""
        return self.seconds_per_step * len(self._snapshot)

    def sampler_state(self) -> dict[str, Any] | None:
        """Return the state from which a Sampler continues after the last segment; None if there was no segment."""
        if self._snapshot.resets is None:
            return None
        return {
            "steps_done": self._steps_done,
            "snapshot": self._snapshot.state_dict(),
            "episodes": [],
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "steps_done": self._steps_done,
            "snapshot": self._snapshot.state_dict(),
            "seconds_per_step": self.seconds_per_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._steps_done = state["steps_done"]
        self._snapshot.load_state_dict(state["snapshot"])
        self.seconds_per_step = state["seconds_per_step"]


def run(
    num_of_actors: int,
    acting: ActorSettings,
    learner: PPOLearner,
    updates: int,
    max_lag: int | None = None,
) -> Iterator[dict[str, float]]:
    """Run distributed PPO without checkpoints or logs: actors play, and the learner trains and sends them weights.

    The trainer's settings stay as they are: there are no goal schedules and no goal.

    Args:
        num_of_actors: number of actors, instead of acting.actors.
        acting, learner, max_lag: see Segments.
        updates: number of updates. After the last one, the actors and the other learners' processes are ended.

    Yields:
        The return value of PPOLearner.train for each update.
    """
    segments = Segments(dataclasses.replace(acting, actors=num_of_actors), learner, max_lag)
    try:
        for _, batch in zip(range(updates), segments, strict=False):
            yield learner.train(batch)
    finally:
        segments.close()
