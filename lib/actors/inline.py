"""Actors in the learner's own process, one after the other; what the other engines are held to."""

import math
from collections import deque
from collections.abc import Iterable
from typing import Any

from lib.actors.contract import Actor, Actors, Failed, make_actor, next_segment


class InlineActors(Actors):
    """See Actors. An actor cannot be lost here, nor be killed when it hangs."""

    def __init__(self, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        self._actors: dict[int, Actor | Failed] = {}
        self._owing: deque[int] = deque()
        for index in range(self.number):
            self._start(index)

    def _start(self, index: int) -> None:
        self._actors[index] = make_actor(index, lambda: (self.make, self.state_of(index)))

    def _kill(self, index: int) -> None:
        """Nobody is late here: the learner plays the segment itself."""

    def _begin(self, index: int) -> None:
        self._deadlines[index] = math.inf  # it waits for its turn
        self._order(index)

    def _broadcast(self) -> None:
        """The model is read when a segment is made."""

    def _order(self, index: int) -> None:
        self._owing.append(index)

    def _hear(self, patience: float, least: int) -> Iterable[tuple[int, Any]]:
        index = self._owing.popleft()
        actor = self._actors[index]
        if not isinstance(actor, Failed):
            actor.set_model(self.model)
        yield index, next_segment(actor)
