"""Actors in processes of this machine; weights and segments go through shared memory."""

import atexit
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from lib.actors.contract import Actors, Lost
from lib.actors.process_worker import SLOTS, act, unpacked
from lib.system.processes import Child, context, start_server, to_shared_memory
from lib.system.shared_memory import SharedWeights

VERSIONS = 3  # of the weights that are kept


class ProcessActors(Actors):
    """See Actors.

    Args:
        room: bytes that a segment's arrays take; one that takes more still comes, through a pipe.
    """

    def __init__(self, *arguments: Any, room: int = 2**20, **options: Any):
        super().__init__(*arguments, **options)
        start_server()
        self._weights = SharedWeights(self.model.tensors.values(), VERSIONS)
        self._memory = [context.RawArray("b", SLOTS * room) for _ in range(self.number)]
        self._children: dict[int, Child] = {}
        self._moved: dict[int, Any] = {}
        self._turns = [0] * self.number  # the slot that an actor fills next
        self._broadcast()
        atexit.register(self.close)
        try:
            for index in range(self.number):
                self._start(index)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()
        try:
            for child in self._children.values():
                child.link.close()
            for child in self._children.values():
                child.end()
        finally:  # a second Ctrl-C comes here
            for child in self._children.values():
                child.kill()

    def _start(self, index: int) -> None:
        child = Child(f"actor {index}")
        self._moved[index] = to_shared_memory((self.make, self.state_of(index)), child.name, "Use --engine inline")
        names = list(self.model.tensors)
        child.launch(act, self._moved[index], index, names, self._weights, self._memory[index], self._turns[index])
        self._children[index] = child

    def _kill(self, index: int) -> None:
        self._children[index].kill()

    def _broadcast(self) -> None:
        if self.model.version not in self._weights.versions:
            self._weights.publish(self.model.version, self.model.tensors.values())

    def _order(self, index: int) -> None:
        with suppress(OSError):  # it is gone, which is heard
            self._children[index].link.send(self.model.version)

    def _hear(self, patience: float, least: int) -> Iterable[tuple[int, Any]]:
        ends = {
            end: index
            for index in self._deadlines
            for end in (self._children[index].link, self._children[index].process.sentinel)
        }
        for index in {ends[end] for end in connection.wait(list(ends), patience)}:
            child = self._children[index]
            try:
                header, turn, sizes = child.link.recv()
            except (EOFError, OSError):
                child.kill()
                yield index, Lost(child.fate().removeprefix(f"{child} "))
            else:
                self._turns[index] = (turn + 1) % SLOTS
                yield index, unpacked(header, turn, sizes, self._memory[index])
