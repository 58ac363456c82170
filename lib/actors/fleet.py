"""The fleet: actors that play segments for a learner, wherever an engine runs them.

Orders belong to the batch, not to an actor. If an actor is lost, the caller sees that fewer orders are open, and orders
those segments from other actors. The lost one starts again, with new episodes, and joins when it is ready.
"""

import csv
import dataclasses
import logging
import math
import platform
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from lib.actors.engines import Engine, InlineEngine
from lib.actors.process import ProcessEngine
from lib.actors.worker import Failed, Hello, Lost, Make, Ready, State, Weights
from lib.errors import Fault, UsageError
from lib.experience.interface import Stopped
from lib.system.processes import pickled

log = logging.getLogger(__name__)

ENGINES = ("inline", "process", "ray")


@dataclasses.dataclass
class Record:
    """What the learner knows about one actor.

    Attributes:
        restart: state from which it starts: that of a checkpoint, the last segment's `restart`, or None.
        node: machine on which it runs; None until it has started.
        ready: whether it takes orders.
        orders: number of its open orders, of a segment or its state.
        version: version of the weights that it has.
        waited: seconds for which it owes an answer.
        last_seconds: time that its last segment took.
        failures: number of losses since its last segment.
        steps, segments, seconds, losses, lag: totals for actors.csv; lag is in versions of the weights.
    """

    restart: Any = None
    node: str | None = None
    ready: bool = False
    orders: int = 0
    version: int | None = None
    waited: float = 0.0
    last_seconds: float = 0.0
    failures: int = 0
    steps: int = 0
    segments: int = 0
    seconds: float = 0.0
    losses: int = 0
    lag: int = 0


class Fleet:
    """Actors that an engine runs, numbered from 0.

    Args:
        engine: one of ENGINES.
        makes: function (index, state) -> Actor for each actor. cloudpickle sends it to the actor's process.
        states: state from which each actor starts; None for a new run.
        patience: seconds to wait for a segment, or three times as long as the actor's last one took, if that is more.
            Then the actor counts as hanging, and is killed and started again. Also the seconds to wait for room on a
            cluster before other actors play for the one that waits.
        stop_asked: function that returns whether the learner was asked to stop. From then on, `take` waits for at most
            STOPPING seconds.
        name_of: function from an actor's index to its name in messages, such as "actor 1".
        address, cpus: see RayEngine.

    Attributes:
        records: the learner's record of each actor.

    Raises:
        UsageError: if the engine cannot be used, or `makes` cannot be sent to another process.
    """

    STOPPING = 10.0
    TRIES = 5  # losses of an actor in a row, without a segment, that end the run
    TALK_EVERY = 60.0  # seconds between two verdicts
    POLL = 1.0  # seconds

    def __init__(
        self,
        engine: str,
        makes: Sequence[Make],
        states: Sequence[Any],
        *,
        patience: float = 60.0,
        stop_asked: Callable[[], bool] = lambda: False,
        name_of: Callable[[int], str] = "actor {}".format,
        address: str | None = None,
        cpus: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.records = [Record(state) for state in states]
        self._makes, self._stop_asked, self._clock = makes, stop_asked, clock
        self._patience = math.inf if engine == "inline" else patience  # there, an actor waits until others have played
        self._names = [name_of(index) for index in range(len(states))]
        self._weights: tuple[int | None, Any] = (None, None)  # version, and its weights as the engine sends them
        self._arrived: deque[tuple[int, Any]] = deque()  # segments that came while states were collected
        self._polled = self._talked = self._began = clock()
        self._waited = 0.0  # seconds for which the learner has waited
        self._stopping_since: float | None = None
        self._engine = make_engine(engine, len(states), self._names, address, cpus)
        try:
            for index in range(len(states)):
                self._start(index)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.records)

    @property
    def open_orders(self) -> int:
        """Number of segments that are ordered and have neither come nor been lost."""
        return sum(record.orders for record in self.records) + len(self._arrived)

    @property
    def lost(self) -> int:
        """Number of losses so far."""
        return sum(record.losses for record in self.records)

    def idle(self) -> list[int]:
        """Return the actors that are ready and have no open order."""
        return [index for index, record in enumerate(self.records) if record.ready and not record.orders]

    def expected(self) -> list[int]:
        """Return the actors that are still starting for the first time, and that a batch waits for.

        Others play for an actor that was lost, or that has waited for room for longer than the patience.
        """
        return [
            index
            for index, record in enumerate(self.records)
            if not (record.ready or record.losses) and (record.node is not None or record.waited <= self._patience)
        ]

    def order(self, index: int, weights: Weights) -> None:
        """Order a segment from a ready actor, to be played with these weights. Its orders are played in turn."""
        record = self.records[index]
        assert record.ready
        if self._weights[0] != weights.version:
            self._weights = weights.version, self._engine.pack(weights)
        self._engine.send(index, "play", None if record.version == weights.version else self._weights[1])
        record.version = weights.version
        record.orders += 1

    def take(self) -> list[tuple[int, Any]]:
        """Wait until something changes: a segment comes, an actor becomes ready or is lost, or a second has passed.

        Returns:
            (actor index, segment) in order of arrival; perhaps none.

        Raises:
            Stopped: if the learner was asked to stop and no segment has come for STOPPING seconds.
            Fault: if an actor raised an error, was lost TRIES times in a row without a segment, or runs with another
                version of Python or torch.
            UsageError: if an actor raised a UsageError.
        """
        came = list(self._arrived)
        self._arrived.clear()
        if not came:
            began = self._clock()
            came = [(index, answer) for index, answer in self._poll() if not isinstance(answer, State)]
            self._waited += self._clock() - began
        if came:
            self._stopping_since = None
        elif self._stop_asked():
            self._stopping_since = self._stopping_since or self._clock()
            if self._clock() - self._stopping_since > self.STOPPING:
                self._report_awaited()
                raise Stopped
        if self._clock() - self._talked > self.TALK_EVERY:
            self._talked = self._clock()
            log.info("%s", self.verdict())
        return came

    def states(self) -> list[Any]:
        """Return the state of every actor, for a checkpoint. An actor that is not there starts new episodes later.

        Segments that come meanwhile are kept for `take`. They belong to no checkpoint.
        """
        states: dict[int, Any] = {}
        # After Stopped, actors that hang are not asked.
        asked = {
            index
            for index, record in enumerate(self.records)
            if record.ready and not (record.orders and self._stopping_since)
        }
        for index in asked:
            self._engine.send(index, "state")
            self.records[index].orders += 1
        began = self._clock()
        while any(self.records[index].orders for index in asked):
            if self._stop_asked() and self._clock() - began > self.STOPPING:
                break
            for index, answer in self._poll():
                if isinstance(answer, State):
                    states[index] = answer.content
                else:
                    self._arrived.append((index, answer))
        self._waited += self._clock() - began
        return [states.get(index, record.restart) for index, record in enumerate(self.records)]

    def close(self) -> None:
        """End all actors."""
        self._engine.close()

    def _start(self, index: int) -> None:
        record = self.records[index]
        payload = pickled((self._makes[index], record.restart), self._names[index], "Use --engine inline")
        record.ready, record.orders, record.version, record.node, record.waited = False, 0, None, None, 0.0
        self._engine.start(index, payload)

    def _poll(self) -> list[tuple[int, Any]]:
        """Wait for answers up to a second. Return segments and states, and see to everything else."""
        wanted = []
        for index, answer in self._engine.receive(self.POLL):
            record = self.records[index]
            record.waited = 0.0
            if isinstance(answer, Failed):
                if answer.usage:
                    raise UsageError(answer.text)
                raise Fault(f"{capitalised(self._names[index])} failed {answer.text}", answer.exit_code)
            if isinstance(answer, Lost):
                self._lose(index, answer.reason)
            elif isinstance(answer, Hello):
                _require_same(self._names[index], answer)
                record.node = answer.node
            elif isinstance(answer, Ready):
                record.ready = True
            else:
                record.orders -= 1
                if not isinstance(answer, State):
                    self._count(record, answer)
                wanted.append((index, answer))
        self._lose_late()
        return wanted

    def _count(self, record: Record, segment: Any) -> None:
        record.failures = 0
        record.restart, record.last_seconds = segment.restart, segment.seconds
        record.segments += 1
        record.steps += segment.steps
        record.seconds += segment.seconds
        record.lag += (self._weights[0] or 0) - segment.version

    def _lose_late(self) -> None:
        """Add the time since the last poll to the waiting time of each actor, and kill those that hang.

        A longer gap between two polls, while the learner trained or was suspended, does not count as waiting.
        """
        now = self._clock()
        passed, self._polled = min(now - self._polled, 2 * self.POLL), now
        for index, record in enumerate(self.records):
            if record.ready and not record.orders:
                continue
            record.waited += passed
            if record.ready and record.waited > max(self._patience, 3.0 * record.last_seconds):
                self._engine.kill(index)
                self._lose(index, f"sent no segment for {record.waited:.0f} seconds, and was killed (see --patience)")

    def _lose(self, index: int, reason: str) -> None:
        record = self.records[index]
        record.failures += 1
        if record.failures == self.TRIES:
            raise Fault(
                f"{self._names[index]} {reason}; that was the {self.TRIES}th time in a row without a segment. If its "
                "environment is slow, raise --patience. If it crashes, --engine inline may show where"
            )
        if record.node is not None:  # otherwise it waited for room on a node that has died
            record.losses += 1
            log.warning(
                "%s %s. Its unfinished episodes are lost, and it starts new ones.%s",
                capitalised(self._names[index]),
                reason,
                f" From version {self._weights[0]} of the weights on, the run differs from one without a loss."
                if self.lost == 1
                else "",
            )
        self._start(index)

    def _report_awaited(self) -> None:
        for index, record in enumerate(self.records):
            if record.orders:
                log.warning(
                    "%s has sent no segment for %.0f seconds. The run stops without this segment. A call of its "
                    "environment may hang.",
                    capitalised(self._names[index]),
                    record.waited,
                )

    def verdict(self) -> str:
        """Say how many actors play, which do not, who waits for whom, and whether more actors would help."""
        elapsed = max(self._clock() - self._began, 1e-9)
        parts = [f"{sum(record.ready for record in self.records)} of {len(self)} actors play"]
        starting = [(str(index), record.node) for index, record in enumerate(self.records) if not record.ready]
        for text, numbers in (
            ("waiting for room (see `ray status`)", [index for index, node in starting if node is None]),
            ("making or restoring environments", [index for index, node in starting if node is not None]),
        ):
            if numbers:
                parts.append(f"{text}: {', '.join(numbers[:10])}{', ...' if len(numbers) > 10 else ''}")
        waiting = min(1.0, self._waited / elapsed)
        working = statistics.fmean(min(1.0, record.seconds / elapsed) for record in self.records)
        parts.append(f"the learner waits {waiting:.0%} of its time, the actors {1.0 - working:.0%} of theirs")
        times = {index: each.seconds / each.segments for index, each in enumerate(self.records) if each.segments}
        if times:
            slowest = max(times, key=times.__getitem__)
            factor = times[slowest] / statistics.median(times.values())
            parts += [f"actor {slowest} takes {factor:.0f} times as long as the median"] if factor > 2.0 else []
            helps = "would" if waiting > 0.5 and working > 0.5 else "would hardly"
            parts.append(f"more actors {helps} help")
        return "; ".join(parts) + "."

    def report(self, folder: Path) -> dict[str, Any]:
        """Write actors.csv, and return the verdict, for result.json.

        A row per actor: node, agent steps, segments, seconds of playing and without work, losses, and mean lag.
        """
        elapsed = self._clock() - self._began
        with (folder / "actors.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(("actor", "node", "steps", "segments", "seconds", "idle", "losses", "lag"))
            for index, each in enumerate(self.records):
                times = f"{each.seconds:.1f}", f"{max(0.0, elapsed - each.seconds):.1f}"
                lag = f"{each.lag / each.segments:.2f}" if each.segments else ""
                rows.writerow((index, each.node or "", each.steps, each.segments, *times, each.losses, lag))
        return {"actors": self.verdict()}


def make_engine(name: str, count: int, names: list[str], address: str | None, cpus: float) -> Engine:
    """Make an engine.

    Args:
        name: one of ENGINES.
        count: number of actors.
        names: names of the actors in messages.
        address: address of a Ray cluster, or None for a local Ray.
        cpus: CPUs of an actor on Ray.

    Raises:
        UsageError: if the engine is unknown or not installed, or a cluster cannot be joined.
    """
    if name == "inline":
        return InlineEngine()
    if name == "process":
        return ProcessEngine(names)
    if name == "ray":
        from lib.actors.ray_engine import RayEngine  # needs an optional package

        return RayEngine(count, address, cpus)
    raise UsageError(f"engine is {name!r}; it has to be one of {', '.join(ENGINES)}")


def _require_same(name: str, hello: Hello) -> None:
    """Raise a Fault if an actor's process has another version of Python or torch than this one."""
    for package, theirs, ours in (
        ("Python", hello.python.rpartition(".")[0], platform.python_version().rpartition(".")[0]),
        ("torch", hello.torch.partition("+")[0], torch.__version__.partition("+")[0]),
    ):
        if theirs != ours:
            raise Fault(
                f"{name} runs on {hello.node} with {package} {theirs}, and the learner has {ours}; install the same "
                "version there"
            )


def capitalised(name: str) -> str:
    """Return a name with a capital letter, for the start of a sentence."""
    return name[:1].upper() + name[1:]
