"""PPO with actors elsewhere: the exchange of weights and segments.

`run` shows its use:

    for segments in Segments(acting, learner):
        learner.train(segments)

k actors that share the environments produce the same rollouts as one actor with all of them, up to rounding.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from lib.actors.fleet import Fleet
from lib.envs.atari import frame_skip
from lib.errors import UsageError, counted
from lib.experience.interface import ExperienceSource, State, Stateful, Stopped
from lib.ppo.actor import ActorSettings, PPOActor, Segment
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner
from lib.system.clock import since_process_start


class Segments(ExperienceSource):
    """Experience source of PPO: each item is a list of segments, as many as there are actors.

    Synchronous: all segments are played with the newest weights, while the learner waits. Every actor plays one. Others
    play for an actor that was lost, until it is back.

    Asynchronous: an idle actor starts a segment at once, with the newest weights. The learner takes segments in order
    of arrival, and corrects their lag by V-trace (see PPOLearner).

    If there are several learners, each has its own actors. The first one, which has the run folder, tells the others
    what to do.

    Args:
        acting: settings of the actors.
        learner: learner whose weights the actors use.
        asynchronous: whether actors play while the learner learns.

    Attributes:
        steps_done: agent steps of all segments so far, those of other learners included.
        fleet: the actors of this learner.

    Raises:
        TypeError: if the learner's model is not a FastModel.
    """

    PARTS = ("wait",)
    METRICS = ("policy_lag", "actor_fps", "lost_episodes")

    def __init__(self, acting: ActorSettings, learner: PPOLearner, asynchronous: bool = False):
        if type(learner.trainer.model) is not FastModel:
            raise TypeError(
                f"the model is of class {type(learner.trainer.model).__name__}, and actors act with "
                "lib.ppo.fast.FastModel; change that class, or copy 02_ppo_fast.py, which has no actors"
            )
        super().__init__()
        self.acting = acting
        self.learner = learner
        self.asynchronous = asynchronous
        self.frame_skip = frame_skip(acting.env)
        self.fleet: Fleet[Segment] = Fleet(
            acting.engine,
            [self._name_of(index) for index in range(acting.actors)],
            patience=acting.patience,
            stop_asked=lambda: self.stop_asked(),
            address=acting.address,
            cpus=acting.cpus,
        )
        self._group = learner.trainer.group
        self._states: list[State | None] = [None] * (acting.actors * acting.learners)  # of all learners' actors
        self._played_with: int | None = None  # version of the learner when the other learners were told to play
        self._lags = [0]  # of the last update's segments, in updates

    def start(self) -> None:
        """Start the actors. The other learners get the weights, and the states of their actors."""
        if self.fleet.makes:
            return
        parts: list[Stateful] = [self.learner.trainer.model, self.learner.trainer.optimizer, self.learner, self]
        if self.acting.learners > 1:
            states = self._group.share([dict(part.state_dict()) for part in parts])
            for part, state in zip(parts, states if self.acting.rank else (), strict=False):
                part.load_state_dict(state)
        own = self._states[self.acting.rank * self.acting.actors :]
        for record, saved in zip(self.fleet.records, own, strict=False):
            record.restart = saved
        make = partial(PPOActor, dataclasses.replace(self.acting, traces=self.traces))
        self.fleet.start([make] * self.acting.actors)

    def close(self) -> None:
        """End the actors, and the other learners."""
        self.fleet.close()
        if self.fleet.makes and not self.acting.rank and self.learner.version != self._played_with:
            self._played_with = self.learner.version
            self._group.share("")  # the others wait for a command

    def __iter__(self) -> Iterator[list[Segment]]:
        """Start the actors, and yield segments until the run is asked to stop."""
        self.start()
        with suppress(Stopped):
            while self._goes_on():
                yield self._batch()

    def _goes_on(self) -> bool:
        """Tell the other learners to play an update's segments, or wait until the first one says so."""
        if not self.acting.rank:
            self._played_with = self.learner.version
            self._group.share("play")
            return True
        while (command := self._group.share("")) == "save":
            self._collect_states()
        return bool(command)

    def follow(self) -> None:
        """Make the first learner's updates until it ends. Other learners call this instead of running an engine."""
        for batch in self:
            self.learner.train(batch)
        self.close()

    def _batch(self) -> list[Segment]:
        weights, arrived = self.learner.get_model(), list[tuple[int, Segment]]()
        with self.clock("wait"):
            while len(arrived) < len(self.fleet.records):
                for index in self.fleet.idle() if self.asynchronous else self._chosen(arrived):
                    self.fleet.order(index, weights)
                arrived += self.fleet.take(len(self.fleet.records) - len(arrived))
        if not self.asynchronous:
            arrived.sort(key=lambda pair: pair[0])
        self._count(arrived)
        return [segment for _, segment in arrived]

    def _chosen(self, arrived: list[tuple[int, Segment]]) -> list[int]:
        """Choose actors for the remaining segments: first those that have not played, then others for lost ones."""
        missing = len(self.fleet.records) - len(arrived) - self.fleet.open_orders
        played = {index for index, _ in arrived}
        idle = self.fleet.idle()
        first = [index for index in idle if index not in played][:missing]
        others = max(0, missing - len(first) - len(self.fleet.expected()))
        return first + [index for index in idle if index in played][:others]

    def _name_of(self, index: int) -> str:
        indices, acting = self.acting.env_indices(index), self.acting
        environments = counted("environment", indices.start, indices.stop - 1)
        return f"Actor {index} ({environments} of {acting.env_name}, seed {acting.seed})"

    def _count(self, segments: list[tuple[int, Segment]]) -> None:
        learners, num_envs = self.acting.learners, len(self.acting.env_indices(0))
        self._lags = [self.learner.version - segment.version for _, segment in segments]
        ended = []
        for index, segment in segments:
            first_env = self.acting.env_indices(index).start
            for episode in segment.episodes:
                number = (episode.step - segment.steps_done + segment.steps) // num_envs
                ended.append((number, first_env + episode.env, episode))
        ended = [each for rank in range(learners) for each in self._group.share(ended, rank)]
        # Within a step, episodes are in the order of the environments.
        for number, _, episode in sorted(ended, key=lambda each: each[:2]):
            step = self.steps_done + number * num_envs * len(segments) * learners
            self._episodes.append(episode._replace(step=step, clock=since_process_start()))
        steps = sum(segment.steps for _, segment in segments)
        self.steps_done += steps * learners
        self.on_step(steps * learners)

    def metrics(self) -> dict[str, float]:
        """Return policy_lag, actor_fps and lost_episodes.

        policy_lag: mean number of updates by which the weights of the last segments were behind the learner's.
        actor_fps: agent steps per second that all actors together would make without waiting, since the last call.
        lost_episodes: unfinished episodes of actors that were lost since this process started.
        """
        return {
            "policy_lag": sum(self._lags) / len(self._lags),
            "actor_fps": self.fleet.speed(),
            "lost_episodes": self.fleet.lost * len(self.acting.env_indices(0)),
        }

    def report(self, folder: Path) -> dict[str, object]:
        return self.fleet.report(folder)

    def state_dict(self) -> State:
        """Return the counters and the state of every actor.

        Between two synchronous updates, actors are idle, so a resumed run is the uninterrupted one. An asynchronous run
        loses the segments that are being played.
        """
        if self.fleet.makes:
            self._group.share("save")
            self._collect_states()
        return super().state_dict() | {"actors": self._states}

    def _collect_states(self) -> None:
        own = self.fleet.states()
        self._states = [each for rank in range(self.acting.learners) for each in self._group.share(own, rank)]

    def load_state_dict(self, state: State) -> None:
        if len(state["actors"]) != len(self._states):
            learners = len(state["actors"]) // self.acting.actors
            raise UsageError(
                f"the run had {learners} learners, and now there are {self.acting.learners}; resume it by its "
                f"launcher, such as torchrun, with {learners}"
            )
        super().load_state_dict(state)
        self._states = list(state["actors"])


def run(
    num_of_actors: int, acting: ActorSettings, learner: PPOLearner, updates: int, asynchronous: bool = False
) -> Iterator[dict[str, float]]:
    """Run distributed PPO without checkpoints, logs or annealing, and yield the metrics of each update.

    Args:
        num_of_actors: number of actors, instead of acting.actors.
        acting, learner, asynchronous: see Segments.
        updates: number of updates. After the last one, the actors are ended.
    """
    segments = Segments(dataclasses.replace(acting, actors=num_of_actors), learner, asynchronous)
    try:
        for _, batch in zip(range(updates), segments, strict=False):
            yield learner.train(batch)
    finally:
        segments.close()
