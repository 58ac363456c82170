"""What all engines have in common: orders, deadlines, replacements."""

import logging
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, Self

import torch

from lib.errors import Fault, UsageError

log = logging.getLogger(__name__)


ENGINES = ("inline", "process", "ray")


class Weights(NamedTuple):
    """A model's weights.

    Attributes:
        version: counted by the learner, one more with every update.
        tensors: by name, on the CPU.
    """

    version: int
    tensors: dict[str, torch.Tensor]


class Actor(Protocol):
    """What acts. Its text, str(actor), says in an error what it was and where it stood."""

    def set_model(self, model: Weights) -> None:
        """Act with these weights from now on; they are copied."""

    def get_trajectory_segment(self) -> Any:
        """The next segment; its large arrays are numpy's, so that they need not be copied on their way."""


Make = Callable[[int, Any], Actor]


class Failed(NamedTuple):
    """In place of a segment: the actor raised an error.

    Attributes:
        text: with its traceback; or, where what was asked for cannot be had, the UsageError's own message.
        usage: whether it is the latter.
    """

    text: str
    usage: bool = False


class Lost(NamedTuple):
    """In place of a segment: the actor is gone."""

    how: str


class ActorFailed(Fault):
    """An actor raised an error, or one actor after the other was lost; the message names it and shows its traceback."""


class Stopped(Exception):
    """The learner is to stop, and there is no segment to learn from before that."""


class Actors(ABC):
    """So many actors, numbered from 0.

    Args:
        make: (number, state) -> an Actor; called where it acts, and sent there by cloudpickle.
        number: how many.
        model: the first weights; all later ones have their names, shapes and types.
        state_of: number -> the state that an actor begins with; asked whenever one is started.
        patience: seconds for a segment, after which the actor hangs, and is killed and replaced.
        delay_of: number -> seconds that an actor needs besides to come to its state.
        stop_asked: whether the learner is to stop. Once it is, what is owed is waited for STOPPING seconds more.

    Attributes:
        replaced: how many actors were, so far.
    """

    STOPPING = 10.0
    STARTING = 120.0  # more seconds for the first segment of an actor
    TRIES = 10  # replacements of an actor that has not given a segment since; bad luck needs more than a bug

    def __init__(
        self,
        make: Make,
        number: int,
        model: Weights,
        state_of: Callable[[int], Any] = lambda number: None,
        patience: float = 60.0,
        delay_of: Callable[[int], float] = lambda number: 0.0,
        stop_asked: Callable[[], bool] = lambda: False,
    ):
        self.make = make
        self.number = number
        self.model = model
        self.state_of = state_of
        self.patience = patience
        self.delay_of = delay_of
        self.stop_asked = stop_asked
        self.replaced = 0
        self._deadlines: dict[int, float] = {}  # by actor that owes a segment
        self._ordered: dict[int, float] = {}  # when it was asked
        self._losses: Counter[int] = Counter()  # since its last segment
        self._new = set(range(number))  # have given no segment yet

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def broadcast(self, model: Weights) -> None:
        """Have segments that are ordered from now on made with these weights.

        Raises:
            ValueError: they are older than the last ones.
        """
        if model.version < self.model.version:
            raise ValueError(f"version {model.version} of the weights is older than {self.model.version}, the last one")
        self.model = model
        self._broadcast()

    def order(self, index: int) -> None:
        """Ask an actor for a segment, made with the newest weights; it may owe one at a time.

        Raises:
            RuntimeError: it owes one already.
        """
        if index in self._deadlines:
            raise RuntimeError(f"actor {index} owes a segment already")
        self._begin(index)

    def take(self, least: int = 1) -> list[tuple[int, Any]]:
        """Wait until at least so many segments are there, or, where some are lost or late, fewer.

        Returns:
            The actors' numbers and their segments, in the order in which they came. A segment is valid until its
            actor has given the next but one.

        Raises:
            Stopped: the learner is to stop, and none came for STOPPING seconds.
            RuntimeError: none is owed.
            ActorFailed: an actor raised an error, or was lost and replaced TRIES times without giving a segment.
            UsageError: an actor raised that where it was made.
        """
        taken: list[tuple[int, Any]] = []
        asked: float | None = None  # when it was first seen that the learner is to stop
        while not taken:
            if not self._deadlines:
                raise RuntimeError("no segment was ordered")
            if self.stop_asked():
                asked = asked or time.monotonic()
                if time.monotonic() - asked > self.STOPPING:
                    raise Stopped
            patience = min(1.0, max(0.0, min(self._deadlines.values()) - time.monotonic()))
            for index, said in self._hear(patience, least):
                if isinstance(said, Failed):
                    if said.usage:
                        raise UsageError(said.text)
                    raise ActorFailed(f"an actor raised an error. {said.text}")
                if isinstance(said, Lost):
                    self._replace(index, said.how)
                else:
                    del self._deadlines[index]
                    self._losses[index] = 0
                    self._new.discard(index)
                    taken.append((index, said))
            for index in [index for index, deadline in self._deadlines.items() if time.monotonic() > deadline]:
                self._kill(index)
                waited = time.monotonic() - self._ordered[index]
                self._replace(index, f"gave no segment for {waited:.0f} seconds, and was killed")
        return taken

    def gather(self) -> list[Any]:
        """A segment of each actor, in the actors' order, all made with the newest weights."""
        for index in range(self.number):
            self.order(index)
        segments: dict[int, Any] = {}
        while len(segments) < self.number:
            segments |= dict(self.take(self.number - len(segments)))
        return [segments[index] for index in range(self.number)]

    def close(self) -> None:
        """End all actors."""
        self._deadlines.clear()

    def _begin(self, index: int) -> None:
        more = self.STARTING + self.delay_of(index) if index in self._new else 0.0
        self._ordered[index] = time.monotonic()
        self._deadlines[index] = self._ordered[index] + self.patience + more
        self._order(index)

    def _replace(self, index: int, how: str) -> None:
        self._losses[index] += 1
        if self._losses[index] > self.TRIES:
            raise ActorFailed(f"actor {index} {how}; so did the {self.TRIES} before it, and none gave a segment")
        log.warning("Actor %d %s. It is replaced, and what it owed is made again.", index, how)
        self.replaced += 1
        self._new.add(index)
        self._start(index)
        self._begin(index)

    @abstractmethod
    def _start(self, index: int) -> None:
        """Start an actor, in place of one that is gone, if there was one."""

    @abstractmethod
    def _kill(self, index: int) -> None:
        """End an actor at once."""

    @abstractmethod
    def _broadcast(self) -> None:
        """Make the model known, if it is not sent with the orders."""

    @abstractmethod
    def _order(self, index: int) -> None:
        """Ask for a segment; that the actor is gone may be said later."""

    @abstractmethod
    def _hear(self, patience: float, least: int) -> Iterable[tuple[int, Any]]:
        """What actors have said, or that they are lost; waits so many seconds at most for something.

        Args:
            least: how many are waited for where that is cheaper than to hear each by itself.
        """


def make_actor(number: int, parts: Callable[[], tuple[Make, Any]]) -> Actor | Failed:
    """An actor, or what came of it.

    Args:
        number: the actor's.
        parts: () -> make and the actor's state, perhaps unpickled, which may fail too.
    """
    try:
        make, state = parts()
        return make(number, state)
    except UsageError as error:
        return Failed(str(error), usage=True)
    except Exception:  # noqa: BLE001 - told to the learner
        return Failed(f"Actor {number} could not be made:\n{traceback.format_exc()}")


def next_segment(actor: Actor | Failed) -> Any:
    """A segment, or what came of it."""
    if isinstance(actor, Failed):
        return actor
    try:
        return actor.get_trajectory_segment()
    except Exception:  # noqa: BLE001 - told to the learner
        return Failed(f"{actor}:\n{traceback.format_exc()}")
