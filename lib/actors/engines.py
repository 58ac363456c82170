"""Engines: where actors run. An engine only starts, sends, receives and ends; see fleet.py for everything else."""

from collections import deque
from typing import Protocol

from lib.actors.worker import Worker


class Engine(Protocol):
    """Interface of the engines. Actors are numbered from 0; each answers its messages in order."""

    def start(self, index: int) -> None:
        """Start the Worker of an actor, or one in place of a lost one."""

    def share(self, packed: bytes) -> object:
        """Return packed weights in the form in which `send` takes them, once for all actors."""
        return packed

    def send(self, index: int, method: str, *arguments: object) -> None:
        """Call a method of an actor's Worker. If the actor is lost, `receive` says so later. This never waits."""

    def receive(self, timeout: float) -> list[tuple[int, object]]:
        """Wait up to `timeout` seconds for answers. Return (index, answer).

        One Lost stands for all pending answers of a lost actor. It sends nothing more until it is started again.
        """

    def kill(self, index: int) -> None:
        """Kill an actor. `receive` says nothing about it until it is started again."""

    def close(self) -> None:
        """End all actors. This can be called twice."""


class InlineEngine(Engine):
    """Actors in the learner's own process, one after the other. The other engines are tested against it."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}
        self._asked: deque[tuple[int, str, tuple[object, ...]]] = deque()

    def start(self, index: int) -> None:
        self._workers[index] = Worker()

    def send(self, index: int, method: str, *arguments: object) -> None:
        self._asked.append((index, method, arguments))

    def receive(self, timeout: float) -> list[tuple[int, object]]:
        if not self._asked:
            return []
        index, method, arguments = self._asked.popleft()
        return [(index, self._workers[index].answer(method, *arguments))]

    def kill(self, index: int) -> None:
        """Do nothing, because the learner waits while an inline actor plays."""

    def close(self) -> None:
        self._workers.clear()
        self._asked.clear()
