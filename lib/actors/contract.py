"""Actors and the orders that a learner gives them: the interface and base class of all engines."""

import dataclasses
import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch

from lib.errors import Fault, UsageError
from lib.experience.interface import Stopped
from lib.system.memory import shortage

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class Weights(NamedTuple):
    """Weights of a model.

    Attributes:
        version: number that grows whenever the learner publishes new weights.
        tensors: tensors by name, on the CPU.
    """

    version: int
    tensors: dict[str, torch.Tensor]


class Actor(Protocol):
    """Interface of an actor, which plays trajectory segments.

    In error messages, str(actor) tells when the error occurred, such as "in block 3".
    """

    def set_model(self, model: Weights) -> None:
        """Copy these weights and act with them from now on."""

    def get_trajectory_segment(self) -> Any:
        """Return the next segment. Its large arrays should be numpy arrays, which are transferred without pickling."""


Make = Callable[[int, Any], Actor]


class Failed(NamedTuple):
    """Result in place of a segment if the actor raised an error.

    Attributes:
        text: when the actor failed, and the error with its traceback. For a UsageError, only its message.
        usage: whether the error is a UsageError.
        exit_code: exit code of a run that ends with the error.
    """

    text: str
    usage: bool = False
    exit_code: int = Fault.exit_code


class Lost(NamedTuple):
    """Result in place of a segment if the actor's process is gone.

    Attributes:
        reason: reason for the loss, such as "was killed by SIGKILL".
    """

    reason: str


@dataclasses.dataclass
class Record:
    """The learner's record of an actor: its open orders and their deadline.

    Attributes:
        orders: versions of its open orders, oldest first.
        waiting_since: start of the wait for its oldest open order.
        deadline: end of that wait; None without an open order.
        losses: number of losses since its last segment.
        is_new: whether it has sent no segment so far.
        last_seconds: time that its last segment took.
    """

    orders: deque[int] = dataclasses.field(default_factory=deque)
    waiting_since: float = 0.0
    deadline: float | None = None
    losses: int = 0
    is_new: bool = True
    last_seconds: float = 0.0

    @property
    def waited(self) -> float:
        """Seconds since the start of the wait."""
        return time.monotonic() - self.waiting_since


class ActorFailed(Fault):
    """An actor has raised an error, or it was replaced too often in a row. The message names the actor.

    Args:
        reason: what happened to which actor.
        advice: what a user of actors can do.
        exit_code: exit code of a run that ends with it.

    Attributes:
        reason: the message without the advice.
    """

    def __init__(self, reason: str, advice: str = "", exit_code: int = Fault.exit_code):
        super().__init__(f"{reason}; {advice}" if advice else reason, exit_code)
        self.reason = reason


class Actors(ABC):
    """Actors that an engine runs, numbered from 0.

    Each actor plays one segment per order. An order names a version of the weights. The actor uses that version, or
    the newest one if the version is no longer available. An actor that dies or exceeds `patience` is replaced. The
    replacement starts from `state_of(index)`, and the open orders are sent again. No segment is lost or comes twice.

    Args:
        make: function (index, state) -> Actor. cloudpickle sends it to the process in which the actor runs.
        count: number of actors.
        weights: first weights; later ones have the same names, shapes and dtypes.
        state_of: function from an actor's index to the state that a new actor starts from.
        patience: seconds to wait for a segment, or three times the `seconds` of the actor's last segment, if it has
            them and that is longer. Then the actor counts as hanging, and is killed and replaced.
        delay_of: function from an actor's index to the extra seconds that it needs to restore its state.
        stop_asked: function that returns whether the learner was asked to stop. From then on, `take` waits for at most
            STOPPING seconds.
        depth: number of orders that an actor may have open.
        name_of: function from an actor's index to its name in messages, such as "actor 1".

    Attributes:
        replaced: number of actors that were replaced so far.
    """

    STOPPING = 10.0
    STARTING = 120.0  # extra seconds for the first segment of an actor
    TRIES = 10  # maximum number of successive replacements of one actor without a segment
    ABSENCE = 10.0  # seconds; a longer gap between two polls means that the learner was suspended, as by Ctrl-Z

    def __init__(
        self,
        make: Make,
        count: int,
        weights: Weights,
        state_of: Callable[[int], Any] = lambda index: None,
        patience: float = 60.0,
        delay_of: Callable[[int], float] = lambda index: 0.0,
        stop_asked: Callable[[], bool] = lambda: False,
        depth: int = 1,
        name_of: Callable[[int], str] = "actor {}".format,
    ):
        self.make = make
        self.count = count
        self.weights = weights
        self.state_of = state_of
        self.patience = patience
        self.delay_of = delay_of
        self.stop_asked = stop_asked
        self.depth = depth
        self.name_of = name_of
        self.replaced = 0
        self._records = [Record() for _ in range(count)]
        self._last_poll = time.monotonic()  # time of the last look for segments

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def broadcast(self, weights: Weights) -> None:
        """Use these weights for all orders from now on.

        Raises:
            ValueError: if they are older than the previous ones.
        """
        if weights.version < self.weights.version:
            raise ValueError(
                f"version {weights.version} of the weights is older than {self.weights.version}, the last one"
            )
        self.weights = weights
        self._broadcast()

    def order(self, index: int) -> None:
        """Order a segment from an actor, to be played with the newest weights.

        Raises:
            RuntimeError: if the actor has `depth` open orders.
        """
        record = self._records[index]
        if len(record.orders) == self.depth:
            orders = "an open order" if self.depth == 1 else f"{self.depth} open orders"
            raise RuntimeError(f"actor {index} already has {orders}")
        record.orders.append(self.weights.version)
        if len(record.orders) == 1:
            self._start_waiting(index)
        self._order(index, self.weights.version)

    def take(self, wanted: int = 1) -> list[tuple[int, Any]]:
        """Wait for at least one segment.

        Args:
            wanted: number of segments to wait for, if the engine can wait for several at once. Fewer may be returned.

        Returns:
            (actor index, segment) in order of arrival. A segment stays valid until the actor's next one has been taken
            and another one ordered. Example with a depth of 1: the first segment is valid until the second has been
            taken and the third ordered.

        Raises:
            Stopped: if the learner was asked to stop and no segment has come for STOPPING seconds.
            RuntimeError: if no segment was ordered.
            ActorFailed: if an actor raised an error, cannot start, or was lost after TRIES replacements in a row, all
                without a segment.
            Fault: if the head of a Ray cluster is lost.
            UsageError: if an actor raised a UsageError.
        """
        taken: list[tuple[int, Any]] = []
        stop_seen: float | None = None
        self._note_poll()
        while not taken:
            deadlines = self._deadlines()
            if not deadlines:
                raise RuntimeError("no segment was ordered")
            if self.stop_asked():
                stop_seen = stop_seen or time.monotonic()
                if time.monotonic() - stop_seen > self.STOPPING:
                    self._report_awaited()
                    raise Stopped
            timeout = min(1.0, max(0.0, min(deadlines.values()) - time.monotonic()))
            for index, result in self._results(timeout, wanted):
                if isinstance(result, Failed):
                    if result.usage:
                        raise UsageError(result.text)
                    reason = f"{capitalised(self.name_of(index))} failed {result.text}"
                    raise ActorFailed(reason, exit_code=result.exit_code)
                if isinstance(result, Lost):
                    self._replace(index, result.reason)
                else:
                    self._records[index].last_seconds = getattr(result, "seconds", 0.0)
                    self._close_order(index)
                    taken.append((index, result))
            self._note_poll()
            self._replace_late()
        return taken

    def gather(self) -> list[Any]:
        """Order one segment from each actor, played with the newest weights, and return them in the actors' order."""
        for index in range(self.count):
            self.order(index)
        segments: dict[int, Any] = {}
        while len(segments) < self.count:
            segments |= dict(self.take(self.count - len(segments)))
        return [segments[index] for index in range(self.count)]

    def close(self) -> None:
        """End all actors."""
        for record in self._records:
            record.deadline = None

    def _deadlines(self) -> dict[int, float]:
        """Return the deadlines of the actors with an open order."""
        return {index: record.deadline for index, record in enumerate(self._records) if record.deadline is not None}

    def _close_order(self, index: int) -> None:
        record = self._records[index]
        record.orders.popleft()
        record.losses, record.is_new = 0, False
        if record.orders:
            self._start_waiting(index)
        else:
            record.deadline = None

    def _start_waiting(self, index: int) -> None:
        record = self._records[index]
        extra = self.STARTING + self.delay_of(index) if record.is_new else 0.0
        record.waiting_since = time.monotonic()
        record.deadline = record.waiting_since + max(self.patience, 3.0 * record.last_seconds) + extra

    def _note_poll(self) -> None:
        """Record the time of this poll. If the learner was suspended since the last one, extend all deadlines."""
        now = time.monotonic()
        away, self._last_poll = now - self._last_poll, now
        if away > self.ABSENCE:
            for record in self._records:
                if record.deadline is not None:
                    absence = min(away, now - record.waiting_since)
                    record.waiting_since += absence
                    record.deadline += absence

    def _report_awaited(self) -> None:
        for index in self._deadlines():
            log.warning(
                "%s has sent no segment for %.0f seconds. The run stops without this segment. A call of its "
                "environment may hang.",
                capitalised(self.name_of(index)),
                self._records[index].waited,
            )

    def _replace_late(self) -> None:
        for index, deadline in self._deadlines().items():
            if time.monotonic() <= deadline:
                continue
            waited = self._records[index].waited
            if reason := self._why_not_started(index):
                raise ActorFailed(f"{self.name_of(index)} has not started for {waited:.0f} seconds: {reason}")
            self._kill(index)
            self._replace(index, f"sent no segment for {waited:.0f} seconds, and was killed (see --patience)")

    def _replace(self, index: int, reason: str) -> None:
        record = self._records[index]
        record.losses += 1
        if record.losses > self.TRIES:
            raise ActorFailed(
                f"{self.name_of(index)} {reason}",
                f"it was replaced {self.TRIES} times without sending a segment. If its environment is slow, raise "
                "--patience. If it crashes, --engine inline may show where",
            )
        log.warning("%s %s. It is replaced; no segment is lost.", capitalised(self.name_of(index)), reason)
        self.replaced += 1
        record.is_new = True
        self._start(index)
        self._start_waiting(index)
        for version in record.orders:
            self._order(index, version)

    def _why_not_started(self, index: int) -> str:
        """Return why an actor that sends no segment cannot start, or "" if it may have started."""
        return ""

    @abstractmethod
    def _start(self, index: int) -> None:
        """Start an actor, or its replacement."""

    @abstractmethod
    def _kill(self, index: int) -> None:
        """Kill an actor."""

    @abstractmethod
    def _broadcast(self) -> None:
        """Make the newest weights available to the actors."""

    @abstractmethod
    def _order(self, index: int, version: int) -> None:
        """Send an order. If the actor is lost, `_results` reports that later."""

    @abstractmethod
    def _results(self, timeout: float, wanted: int) -> Iterable[tuple[int, Any]]:
        """Wait up to `timeout` seconds, and return (actor index, result). A result is a segment, Failed or Lost.

        Args:
            timeout: seconds to wait for the first result.
            wanted: number of results to wait for, if waiting for several at once is cheaper.
        """


def make_actor(index: int, parts: Callable[[], tuple[Make, Any]]) -> Actor | Failed:
    """Make an actor, or describe why that failed.

    Args:
        index: index of the actor.
        parts: function that returns `make` and the actor's state. It may unpickle them, which may raise an error.
    """

    def make_it() -> Actor:
        make, state = parts()
        return make(index, state)

    return attempt(make_it, lambda: "while it was made")


def with_weights(actor: Actor | Failed, weights: Weights) -> Actor | Failed:
    """Give an actor weights. Return the actor, or why it failed."""
    if isinstance(actor, Failed):
        return actor
    given = attempt(lambda: actor.set_model(weights), lambda: "when it was given new weights")
    return given if isinstance(given, Failed) else actor


def next_segment(actor: Actor | Failed) -> Any:
    """Return the actor's next segment, or describe why that failed."""
    return actor if isinstance(actor, Failed) else attempt(actor.get_trajectory_segment, lambda: str(actor))


def attempt(call: Callable[[], Result], describe: Callable[[], str]) -> Result | Failed:
    """Call a function of an actor, or describe its error to the learner.

    Args:
        call: function to call.
        describe: function that returns when the call was made, such as "in block 3".
    """
    try:
        return call()
    except UsageError as error:
        return Failed(str(error), usage=True)
    except Fault as fault:
        return Failed(f"{describe()}: {fault}", exit_code=fault.exit_code)
    except Exception as error:  # noqa: BLE001 - reported to the learner
        return Failed(f"{describe()}:\n{shortage(error) or traceback.format_exc()}")


def capitalised(name: str) -> str:
    """Return a name with a capital letter, for the start of a sentence."""
    return name[:1].upper() + name[1:]
