"""Acting and learning apart: who asks whom for what, and when.

    for segments in Segments(acting, learner):
        learner.train(segments)

is what `run` does. With k actors that share the environments the segments are those of one actor with all of them.
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
import torch

from lib.actors.contract import Actors, Stopped
from lib.actors.engines import start_actors
from lib.experience.episodes import Episode, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource
from lib.experience.stream import Part, Trace
from lib.ppo.actor import Acting, Ended, PPOActor, Segment
from lib.ppo.learner import PPOLearner
from lib.ppo.progress import Progress
from lib.ppo.rollout import channels_first, require_memory
from lib.system.clock import Stopwatch, since_process_start

log = logging.getLogger(__name__)


class Segments(ExperienceSource):
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
        frame_skip, native: see Stream.
        on_step: called with the agent steps of the segments that came; None for nothing.
        dropped: how many segments were.
        stop_asked: tells whether the learner is to stop, see actors.Actors; the segments end then.
        actors: the actors; None until the first segment is asked for.

    Raises:
        UsageError: what they play would not fit into the memory that is free.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "actor_fps", "replaced", "dropped")

    def __init__(self, acting: Acting, learner: PPOLearner, max_lag: int | None = None):
        if max_lag is not None and acting.engine == "inline":
            log.warning("Inline actors play only when they are waited for; --async changes nothing for them.")
        # Of every rollout there are the segments that came and what joins them for the learner; with actors on this
        # machine also the one that they fill, and from other processes two more on their way.
        copies = 2 if acting.address else 3 if acting.engine == "inline" else 5
        require_memory(acting.space, acting.envs, acting.rollout, copies)
        self.acting = acting
        self.learner = learner
        self.max_lag = max_lag
        self.steps_done = 0
        self.progress = Progress(acting.envs)
        self.clock = Stopwatch()
        self.dropped = 0
        self.actors: Actors | None = None
        self._places = [_Place(acting.seed, acting.part(number)) for number in range(acting.actors)]
        self._episodes: list[Episode] = []
        self._lags: deque[int] = deque([0], maxlen=acting.actors)  # of the last segments
        self._played, self._busy = 0, 0.0
        self.frame_skip = acting.frame_skip
        self.native = self.frame_skip > 1

    def close(self) -> None:
        """End the actors."""
        if self.actors is not None:
            self.actors.close()

    def __iter__(self) -> Iterator[list[Segment]]:
        """Start the actors; the first segments are looked at, to normalise the states, and forgotten.

        Raises:
            UsageError: see actors.start.
        """
        self.actors = start_actors(
            self.acting.engine,
            partial(PPOActor, self.acting),
            self.acting.actors,
            self.learner.get_model(),
            lambda number: self._places[number].state(),
            patience=self.acting.patience,
            stop_asked=self.stop_asked,
            delay_of=lambda number: 2 * self._places[number].seconds,  # which were played beside others
            room=self.acting.segment_size,
            address=self.acting.address,
            cpus=self.acting.cpus,
        )
        with suppress(Stopped):
            if not self.steps_done:
                self.learner.normalise_by(self._gathered(self.actors))
            if self.max_lag is None:
                while True:
                    self.actors.broadcast(self.learner.get_model())
                    yield self._gathered(self.actors)
            yield from self._as_they_come(self.actors, self.max_lag)

    def _gathered(self, crew: Actors) -> list[Segment]:
        with self.clock("wait"):
            segments = crew.gather()
        self._count(list(enumerate(segments)))
        self._lags.extend(self.learner.version - segment.version for segment in segments)
        return segments

    def _as_they_come(self, crew: Actors, max_lag: int) -> Iterator[list[Segment]]:
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
                # Counted only now: one that waits while the state is saved is played again in a resumed run.
                index, segment = waiting.popleft()
                self._count([(index, segment)])
                # The second segment in a batch has to be learnt from before its actor gives a third.
                if index in given:
                    idle.add(index)
                else:
                    crew.order(index)
                lag = self.learner.version - segment.version
                if lag > max_lag:
                    self.dropped += 1
                else:
                    self._lags.append(lag)
                    batch.append(segment)
                    given.add(index)
            yield batch

    def _count(self, came: Sequence[tuple[int, Segment]]) -> None:
        num_envs = self.acting.part(0).num_envs
        ended: list[tuple[Ended, Trace]] = []
        for index, segment in came:
            ended += zip(segment.episodes, self._places[index].goes_on(segment), strict=True)
            self._busy += segment.seconds
        for episode, again in sorted(ended, key=lambda pair: pair[0].step):  # and by actor, as they came
            at = self.steps_done + (episode.step + 1) * num_envs * len(came)
            self._episodes.append(Episode(episode.total, episode.length, at, since_process_start(), again))
            self.progress.add(episode.total)
        steps = sum(len(segment) for _, segment in came)
        self._played += steps
        self.steps_done += steps
        if self.on_step is not None:
            self.on_step(steps)

    def metrics(self) -> dict[str, float]:
        """What there is to log since the last call.

        Returns:
            policy_lag: updates that a segment's weights were behind the learner's when it was taken, mean of the last
            that were learnt from, as many as there are actors; actor_fps: agent steps a second that all actors would
            make if they never had to wait; replaced: actors, and dropped: segments, so far in this process.
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
        self._places = [
            _Place(self.acting.seed, self.acting.part(number), place) for number, place in enumerate(state["places"])
        ]
        self.progress.load_state_dict(state["progress"])
        self._episodes = unpack_episodes(state["episodes"])


class _Place:
    """Where an actor stands: what Sampler.load_state_dict needs to bring another one there."""

    def __init__(self, seed: int, part: Part, state: Mapping[str, Any] | None = None):
        self._seed = seed
        self._part = part
        self._state = None if state is None else dict(state)
        self.seconds: float = 0.0 if state is None else state["seconds"]  # that the actions took
        self._taken = [] if state is None else [state["actions"].numpy()]

    def goes_on(self, segment: Segment) -> list[Trace]:
        """Go on by a segment.

        Returns:
            How each of the episodes that ended in it is played again.
        """
        actions = segment.arrays["actions"].astype(np.int32)
        begun = (segment.began - (segment.steps_done - actions.size)) // actions.shape[1]
        before = [*self._taken, actions[:begun]] if begun > 0 else []
        began_before = 0 if self._state is None else self._state["began"]
        if self._state is None or segment.began != began_before:  # all began anew, within it or right before it
            self._taken, self.seconds = [], 0.0
        self._taken.append(actions[max(0, begun) :])
        self.seconds += segment.seconds
        self._state = {
            "steps_done": segment.steps_done,
            "began": segment.began,
            "seconds": self.seconds,
            "states": torch.from_numpy(segment.states.copy()),
            "episodes": [],
            "progress": Progress(actions.shape[1]).state_dict(),
        }
        return [
            self._trace(segment, ended, before, began_before)
            if ended.step < begun
            else self._trace(segment, ended, self._taken, segment.began)
            for ended in segment.episodes
        ]

    def _trace(self, segment: Segment, ended: Ended, taken: list[np.ndarray], began: int) -> Trace:
        num_envs = self._part.num_envs
        return Trace(
            seed=self._seed,
            began=self._part.of_all(began),
            number=self._part.first + ended.env,
            taken=taken,
            column=ended.env,
            end=(segment.steps_done - len(segment) - began) // num_envs + ended.step + 1,
            length=ended.length,
            last_state=channels_first(segment.arrays["states"][ended.step, ended.env]).copy(),
            no_ops=ended.no_ops,
        )

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
        updates: after which it ends, and with it the actors and the further learners.
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
        learner.close()
