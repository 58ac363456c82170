"""Actors in processes of this machine. Weights and segments go through shared memory."""

import atexit
import time
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import connection
from typing import Any

from lib.actors.contract import Actors, Lost
from lib.actors.process_worker import act
from lib.system import memory
from lib.system.processes import Child, pickled, start_server
from lib.system.shared_memory import SharedWeights, Slots

SERVER_BYTES = 230 * 2**20  # memory of the fork server, measured and rounded up
ACTOR_BYTES = 40 * 2**20  # memory that an actor does not share, measured for CartPole and rounded up
ENDING = 1.0  # seconds in which all actors may end by themselves when they are closed


class ProcessActors(Actors):
    """Actors in processes of this machine; see Actors.

    Args:
        room: bytes of shared memory for the arrays of a segment. A larger segment goes through a pipe.
    """

    def __init__(self, *arguments: Any, room: int = 2**20, **options: Any):
        super().__init__(*arguments, **options)
        memory.require(
            f"{self.count} processes need",
            self.count,
            SERVER_BYTES + self.count * ACTOR_BYTES,
            lambda fitting: f"{fitting} might fit, or use --engine inline",
        )
        start_server()
        # One version per open order, and two more, so that an actor can copy one while the learner publishes the next.
        self._shared_weights = SharedWeights(self.weights.tensors.values(), self.depth + 2)
        # One slot per open order, and one for the segment that the learner is reading.
        self._slots = [Slots(self.depth + 1, room) for _ in range(self.count)]
        self._next_slot = [0] * self.count
        self._children: dict[int, Child] = {}
        self._broadcast()
        atexit.register(self.close)
        try:
            for index in range(self.count):
                self._start(index)
        except BaseException:
            self.close()
            raise

    @property
    def children(self) -> list[Child]:
        """The actors' processes, in the actors' order."""
        return [self._children[index] for index in sorted(self._children)]

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()
        try:
            for child in self._children.values():
                child.hang_up()
            deadline = time.monotonic() + ENDING
            for child in self._children.values():
                child.end(max(0.0, deadline - time.monotonic()))
        finally:  # even if a second Ctrl-C interrupts the waiting
            for child in self._children.values():
                child.kill()

    def _start(self, index: int) -> None:
        child = Child(self.name_of(index))
        payload = pickled((self.make, self.state_of(index)), child.name, "Use --engine inline")
        names = list(self.weights.tensors)
        self._children[index] = child
        child.launch(act, payload, index, names, self._shared_weights, self._slots[index], self._next_slot[index])

    def _kill(self, index: int) -> None:
        self._children[index].kill()

    def _broadcast(self) -> None:
        if self.weights.version not in self._shared_weights.versions:
            self._shared_weights.publish(self.weights.version, self.weights.tensors.values())

    def _order(self, index: int, version: int) -> None:
        with suppress(OSError):  # the process is gone, which `_results` reports
            self._children[index].connection.send(version)

    def _results(self, timeout: float, wanted: int) -> Iterable[tuple[int, Any]]:
        ends = {
            end: index
            for index in self._deadlines()
            for end in (self._children[index].connection, self._children[index].process.sentinel)
        }
        for index in {ends[end] for end in connection.wait(list(ends), timeout)}:
            child = self._children[index]
            try:
                if not child.connection.poll():
                    raise EOFError  # it is dead, but a process that it forked keeps the pipe open
                header, slot, sizes = child.connection.recv()
            except (EOFError, OSError):
                child.kill()
                yield index, Lost(child.fate().removeprefix(f"{child} "))
            else:
                self._next_slot[index] = (slot + 1) % self._slots[index].number
                yield index, self._slots[index].unpack(header, slot, sizes)
