"""An actor as it runs in a process of its own: it gives segments on order, until the learner is gone."""

import pickle
from typing import Any

import cloudpickle
import torch

from lib.actors.contract import Failed, Weights, make_actor, next_segment
from lib.system.console_log import start_console
from lib.system.parent import ParentGone, end_with_learner, receive, send
from lib.system.shared_memory import SharedWeights, aligned

SLOTS = 2  # segments of an actor that there is room for


def act(link: Any, moved: Any, number: int, names: list[str], weights: SharedWeights, memory: Any, turn: int) -> None:
    """Give a segment for each version that is ordered.

    Args:
        link: to the learner. In come versions, out go segments.
        moved: make and the actor's state, pickled, in shared memory.
        number: the actor's.
        names: of the weights.
        weights: where the versions are.
        memory: shared, for the arrays of SLOTS segments.
        turn: which of them is filled first.
    """
    end_with_learner()
    start_console()
    torch.set_num_threads(1)  # there are other actors, and the learner
    try:
        actor = make_actor(number, lambda: cloudpickle.loads(moved.raw))
        while True:
            version = receive(link)
            if not isinstance(actor, Failed):
                _set_model(actor, names, weights, version)
            send(link, packed(next_segment(actor), memory, turn))
            turn = (turn + 1) % SLOTS
    except ParentGone:
        return


def _set_model(actor: Any, names: list[str], weights: SharedWeights, version: int) -> None:
    """The version ordered; or the newest, where the learner has gone on so far that it is not there any more."""
    while True:
        there = weights.versions
        chosen = version if version in there else there[-1]
        try:
            actor.set_model(Weights(chosen, dict(zip(names, weights.read(chosen), strict=True))))
        except LookupError:
            continue
        if chosen in weights.versions:  # else it was written over while it was copied
            return


def packed(segment: Any, memory: Any, turn: int) -> tuple[bytes, int, list[Any]]:
    """A segment, pickled, whose arrays lie in the shared memory, or are in the pickle where there is no room.

    Returns:
        The pickle, in which slot, and the sizes of its arrays there in bytes.
    """
    buffers: list[pickle.PickleBuffer] = []
    header = pickle.dumps(segment, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(part) for part in raw]
    room = len(memory) // SLOTS
    if sum(map(aligned, sizes)) > room:
        return pickle.dumps(segment, protocol=5), turn, []
    view, place = memoryview(memory).cast("B"), turn * room
    for part, size in zip(raw, sizes, strict=True):
        view[place : place + size] = part
        place += aligned(size)
    return header, turn, sizes


def unpacked(header: bytes, turn: int, sizes: list[int], memory: Any) -> Any:
    """What `packed` was given; its arrays are views of the shared memory, and are not to be written."""
    view, place = memoryview(memory).cast("B").toreadonly(), turn * (len(memory) // SLOTS)
    parts = []
    for size in sizes:
        parts.append(view[place : place + size])
        place += aligned(size)
    return pickle.loads(header, buffers=parts)
