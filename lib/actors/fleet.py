"""The fleet: actors that play segments for a learner, wherever an engine runs them.

If an actor is lost, fewer orders are open, and the caller orders those segments from others. The lost one starts again,
with new episodes, and joins when it is ready.
"""

import csv
import dataclasses
import logging
import math
import pickle
import statistics
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import cloudpickle
import torch

from lib.actors.engines import Engine, InlineEngine, Lost, Make, Played, Weights
from lib.actors.process import ProcessEngine
from lib.errors import Fault, UsageError
from lib.experience.interface import State, Stopped

log = logging.getLogger(__name__)

Segment = TypeVar("Segment", bound=Played)


@dataclasses.dataclass
class Record:
    """What the learner knows about one actor."""

    restart: State | None = None  # state from which it starts: of a checkpoint, or the steps of its last segment
    # Methods of its Worker that were called and not answered yet, oldest first.
    asked: deque[str] = dataclasses.field(default_factory=lambda: deque(["hello", "start"]))
    node: str | None = None  # machine on which it runs; None until it has started
    waited: float = 0.0  # seconds since its last answer, while a call is pending
    last_seconds: float = 0.0  # time that its last segment took
    failures: int = 0  # losses since its last segment
    # Totals for actors.csv.
    steps: int = 0
    segments: int = 0
    seconds: float = 0.0
    losses: int = 0
    lag: int = 0  # in versions of the weights

    @property
    def ready(self) -> bool:
        """Whether the actor has started and accepts orders."""
        return "start" not in self.asked

    @property
    def orders(self) -> int:
        """Number of pending calls for a segment or the state."""
        return len(self.asked) if self.ready else 0


class Fleet(Generic[Segment]):
    """Actors that an engine runs, numbered from 0.

    Args:
        engine: "inline", "process" or "ray".
        names: names of the actors at the start of a message, such as "Actor 1".
        patience: seconds to wait for a segment, or three times as long as the actor's last one took, if that is more.
            Then the actor counts as hanging, and is killed and started again. Also the seconds to wait for room on a
            cluster before other actors play for the one that waits.
        stop_asked: function that returns whether the learner was asked to stop. From then on, `take` waits for at most
            STOPPING seconds.
        address, cpus: see RayEngine.

    Attributes:
        records: the learner's record of each actor.
        makes: functions passed to `start`; empty before.
    """

    STOPPING = 10.0
    TRIES = 5  # losses of an actor in a row, without a segment, that end the run
    TALK_EVERY = 60.0  # seconds between two verdicts
    POLL = 1.0  # seconds

    def __init__(
        self,
        engine: str,
        names: Sequence[str],
        *,
        patience: float = 60.0,
        stop_asked: Callable[[], bool] = lambda: False,
        address: str | None = None,
        cpus: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.records = [Record() for _ in names]
        self.makes: Sequence[Make] = ()
        self._names, self._stop_asked, self._clock = names, stop_asked, clock
        self._patience = math.inf if engine == "inline" else patience  # there, an actor waits until others have played
        self._at_once = 1 if engine == "inline" else len(names)
        self._version = 0  # of the newest weights
        self._weights: object = None  # as the engine sends them
        self._arrived: list[tuple[int, Segment]] = []  # segments for `take`
        self._states: dict[int, State] = {}  # answers for `states`
        self._polled = self._talked = self._began = 0.0
        self._waited = 0.0  # seconds for which the learner has waited
        self._stopping_since: float | None = None
        self._marks = (0, 0.0)  # the actors' steps and seconds at the last call of `speed`
        self._parts: Counter[str] = Counter()  # seconds of all actors by activity
        self._make_engine = partial(make_engine, engine, len(names), address, cpus)
        self._engine: Engine = InlineEngine()  # without actors, until `start`

    def start(self, makes: Sequence[Make]) -> None:
        """Start all actors, each from its record's `restart`.

        Args:
            makes: function (index, state) -> Actor for each actor. cloudpickle sends it to the actor's process.

        Raises:
            UsageError: if the engine cannot be used, or `makes` cannot be sent to another process.
        """
        self.makes = makes
        self._engine = self._make_engine()
        self._polled = self._talked = self._began = self._clock()
        try:
            for index in range(len(makes)):
                self._start(index)
        except BaseException:
            self.close()
            raise

    @property
    def open_orders(self) -> int:
        """Number of ordered segments that have not been taken or lost yet."""
        return sum(record.orders for record in self.records) + len(self._arrived)

    @property
    def lost(self) -> int:
        """Number of losses so far."""
        return sum(record.losses for record in self.records)

    def idle(self) -> list[int]:
        """Return the actors that are ready and have no open order."""
        return [index for index, record in enumerate(self.records) if not record.asked]

    def expected(self) -> list[int]:
        """Return the actors that are still starting for the first time, and that a batch waits for.

        Not awaited: a lost actor, and one that has waited for a free CPU longer than `patience`. Others play for it.
        """
        return [
            index
            for index, record in enumerate(self.records)
            if not (record.ready or record.losses) and (record.node is not None or record.waited <= self._patience)
        ]

    def order(self, index: int, weights: Weights) -> None:
        """Order a segment from a ready actor, to be played with these weights. Its orders are played in turn."""
        if self._weights is None or self._version != weights.version:
            self._version, self._weights = weights.version, self._engine.share(weights.packed())
        self._ask(index, "play", self._weights)

    def take(self, most: int | None = None) -> list[tuple[int, Segment]]:
        """Wait until something changes: a segment comes, an actor becomes ready or is lost, or a second has passed.

        Args:
            most: largest number of segments to return. Others that have arrived are kept for the next call.

        Returns:
            (actor index, segment) in order of arrival; possibly none.

        Raises:
            Stopped: if the learner was asked to stop and no segment has come for STOPPING seconds.
            Fault: if an actor raised an error, was lost TRIES times in a row without a segment, or runs with another
                version of torch.
            UsageError: if an actor raised a UsageError.
        """
        if not self._arrived:
            self._poll()
        came, self._arrived = self._arrived[:most], [] if most is None else self._arrived[most:]
        if came:
            self._stopping_since = None
        elif self._stop_asked():
            self._stopping_since = self._stopping_since or self._clock()
            if self._clock() - self._stopping_since > self.STOPPING:
                late = "; ".join(name for name, record in zip(self._names, self.records, strict=True) if record.orders)
                log.warning("%s sent no segment for %.0f seconds. Its environment may hang.", late, self.STOPPING)
                raise Stopped
        if self._clock() - self._talked > self.TALK_EVERY:
            self._talked = self._clock()
            log.info("%s", self.verdict())
        return came

    def states(self) -> list[State | None]:
        """Return the state of every actor, for a checkpoint. An actor that is not there starts new episodes later.

        Segments that arrive meanwhile are kept for `take`, and are not part of the checkpoint.
        """
        self._states.clear()
        for index, record in enumerate(self.records):
            if record.ready and not (record.orders and self._stopping_since):  # after Stopped, it may hang
                self._ask(index, "state")
        began = self._clock()
        while any("state" in record.asked for record in self.records):
            if self._stop_asked() and self._clock() - began > self.STOPPING:
                break
            self._poll()
        return [self._states.get(index, record.restart) for index, record in enumerate(self.records)]

    def close(self) -> None:
        self._engine.close()

    def _ask(self, index: int, method: str, *arguments: object) -> None:
        self._engine.send(index, method, *arguments)
        self.records[index].asked.append(method)

    def _start(self, index: int) -> None:
        record = self.records[index]
        try:
            make = cloudpickle.dumps(partial(self.makes[index], index, record.restart))
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            raise UsageError(f"{self._names[index]} cannot be sent to another process: {error}") from error
        record.asked.clear()
        record.node, record.waited = None, 0.0
        self._engine.start(index)
        self._ask(index, "hello")  # on a cluster, it waits until there is room
        self._ask(index, "start", make)

    def _poll(self) -> None:
        """Wait up to a second for answers, process them, and kill actors that hang."""
        began = self._clock()
        for index, answer in self._engine.receive(self.POLL):
            self._receive(index, answer)
        self._waited += self._clock() - began
        # A longer gap between two polls, while the learner trained or was suspended, does not count as waiting.
        passed, self._polled = min(self._clock() - self._polled, 2 * self.POLL), self._clock()
        for index, record in enumerate(self.records):
            record.waited += passed if record.asked else 0.0
            if record.orders and record.waited > max(self._patience, 3.0 * record.last_seconds):
                self._engine.kill(index)
                self._lose(index, f"sent no segment for {record.waited:.0f} seconds, and was killed (see --patience)")

    def _receive(self, index: int, answer: Any) -> None:
        record, name = self.records[index], self._names[index]
        record.waited = 0.0
        if isinstance(answer, UsageError):
            raise answer
        if isinstance(answer, Fault):
            raise Fault(f"{name} {answer}", answer.exit_code)
        if isinstance(answer, Lost):
            self._lose(index, str(answer))
            return
        method = record.asked.popleft()
        if method == "hello":
            record.node, theirs = answer
            ours = torch.__version__
            if theirs.partition("+")[0] != ours.partition("+")[0]:
                raise Fault(
                    f"{name} runs on {record.node} with torch {theirs}, and the learner has {ours}; install the same "
                    "version there"
                )
        elif method == "state":
            self._states[index] = answer
        elif method == "play":
            if not any(each.segments for each in self.records):  # the time that the actors took to start does not count
                self._began, self._waited = self._clock() - answer.seconds, answer.seconds
            record.restart, record.last_seconds, record.failures = {"steps_done": answer.steps_done}, answer.seconds, 0
            record.segments += 1
            record.steps += answer.steps
            record.seconds += answer.seconds
            record.lag += self._version - answer.version
            self._parts.update(answer.parts)
            self._arrived.append((index, answer))

    def _lose(self, index: int, reason: str) -> None:
        record, name = self.records[index], self._names[index]
        record.failures += 1
        if record.failures == self.TRIES:
            raise Fault(
                f"{name} {reason}; that was the {self.TRIES}th time in a row without a segment. If its environment is "
                "slow, raise --patience. If it crashes, --engine inline may show where"
            )
        if record.node is not None:  # otherwise it waited for room on a node that has died
            record.losses += 1
            log.warning("%s %s. Its unfinished episodes are lost, and it starts new ones.", name, reason)
            if self.lost == 1:
                log.warning(
                    "From version %d of the weights on, the run differs from one without a loss.", self._version
                )
        self._start(index)

    def speed(self) -> float:
        """Return the agent steps per second that all actors would make without waiting, since the last call."""
        marks = sum(record.steps for record in self.records), sum(record.seconds for record in self.records)
        (steps, seconds), self._marks = (new - old for new, old in zip(marks, self._marks, strict=True)), marks
        return self._at_once * steps / seconds if seconds else math.nan

    def verdict(self) -> str:
        """Say how many actors play, which do not, who waits for whom, and whether more actors would help."""
        sentences = [f"{sum(record.ready for record in self.records)} of {len(self.records)} actors play"]
        for text, has_room in (("waiting for room (see `ray status`)", False), ("making environments", True)):
            away = [i for i, record in enumerate(self.records) if not record.ready and bool(record.node) == has_room]
            if away:
                sentences.append(f"{text}: {', '.join(map(str, away[:10]))}{', ...' if len(away) > 10 else ''}")
        elapsed = max(self._clock() - self._began, 1e-9)
        waiting = min(1.0, self._waited / elapsed)
        working = statistics.fmean(min(1.0, record.seconds / elapsed) for record in self.records)
        sentences.append(f"the learner waits {waiting:.0%} of its time, the actors {1.0 - working:.0%} of theirs")
        if seconds := self._parts.total():
            parts = ", ".join(f"{spent / seconds:.0%} {part}" for part, spent in self._parts.most_common())
            sentences.append(f"playing is {parts}")
        times = {index: each.seconds / each.segments for index, each in enumerate(self.records) if each.segments}
        if times:
            slowest = max(times, key=times.__getitem__)
            factor = times[slowest] / statistics.median(times.values())
            sentences += [f"actor {slowest} takes {factor:.0f} times as long as the median"] if factor > 2.0 else []
            helps = "would" if waiting > 0.5 and working > 0.5 else "would hardly"
            sentences.append(f"more actors {helps} help")
        return "; ".join(sentences) + "."

    def report(self, folder: Path) -> dict[str, object]:
        """Write actors.csv, with a row per actor, and return the verdict, for result.json."""
        if not self.makes:
            return {}
        elapsed = self._clock() - self._began
        with (folder / "actors.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("actor", "node", "steps", "segments", "seconds", "idle", "losses", "lag"))
            for index, each in enumerate(self.records):
                times = f"{each.seconds:.1f}", f"{max(0.0, elapsed - each.seconds):.1f}"
                lag = f"{each.lag / each.segments:.2f}" if each.segments else ""
                rows.writerow((index, each.node or "", each.steps, each.segments, *times, each.losses, lag))
        return {"actors": self.verdict()}


def make_engine(name: str, count: int, address: str | None, cpus: float) -> Engine:
    if name == "ray":
        from lib.actors.ray_engine import RayEngine  # needs an optional package

        return RayEngine(count, address, cpus)
    return InlineEngine() if name == "inline" else ProcessEngine()
