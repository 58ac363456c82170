"""Actors in the learner's own process, one after the other. The other engines are tested against them."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from lib.actors.contract import Actor, Actors, Failed, Weights, make_actor, next_segment, with_weights


class InlineActors(Actors):
    """Actors in this process; see Actors. They cannot be lost, and an actor that hangs is not killed."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._versions: deque[Weights] = deque([self.weights], maxlen=self.depth)
        self._actors: dict[int, Actor | Failed] = {}
        self._queue: deque[tuple[int, int]] = deque()  # open orders of all actors: (actor, version)
        for index in range(self.count):
            self._start(index)

    def _start(self, index: int) -> None:
        self._actors[index] = make_actor(index, lambda: (self.make, self.state_of(index)))

    def _kill(self, index: int) -> None:
        """Do nothing, because deadlines are infinite."""

    def _start_waiting(self, index: int) -> None:
        self._records[index].deadline = math.inf  # because an actor may have to wait for its turn

    def _broadcast(self) -> None:
        if self.weights.version != self._versions[-1].version:
            self._versions.append(self.weights)

    def _order(self, index: int, version: int) -> None:
        self._queue.append((index, version))

    def _results(self, timeout: float, wanted: int) -> Iterable[tuple[int, Any]]:
        index, version = self._queue.popleft()
        kept = {weights.version: weights for weights in self._versions}
        self._actors[index] = with_weights(self._actors[index], kept.get(version, self.weights))
        yield index, next_segment(self._actors[index])
