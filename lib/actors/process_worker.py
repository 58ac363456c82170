"""Code that runs in an actor's process. It plays one segment per order until the learner has ended."""

import logging
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import torch

from lib.actors.contract import Actor, Failed, Weights, make_actor, next_segment, with_weights
from lib.envs import checked_env
from lib.system.log import start_console
from lib.system.parent import ParentGone, end_with_learner, receive, send
from lib.system.shared_memory import SharedWeights, Slots


def act(
    connection: "Connection[Any, Any]",
    payload: bytes,
    index: int,
    names: Sequence[str],
    weights: SharedWeights,
    slots: Slots,
    slot: int,
) -> None:
    """Play a segment for each version of the weights that is ordered.

    Args:
        connection: connection to the learner. Versions come in; packed segments go out.
        payload: `make` and the actor's state, pickled.
        index: index of the actor.
        names: names of the weights.
        weights: versions of the weights in shared memory.
        slots: shared memory for the arrays of segments.
        slot: slot of the first segment.
    """
    end_with_learner()
    start_console()
    for module in ("lib.envs.observations", "lib.ppo.fast"):  # the learner has logged the same messages
        logging.getLogger(module).setLevel(logging.ERROR)
    torch.set_num_threads(1)  # other actors and the learner need the other cores
    with suppress(ParentGone), checked_env.closing():
        actor = make_actor(index, lambda: cloudpickle.loads(payload))
        while True:
            version = receive(connection)
            actor = set_model(actor, names, weights, version)
            send(connection, slots.pack(next_segment(actor), slot))
            slot = (slot + 1) % slots.number


def set_model(actor: Actor | Failed, names: Sequence[str], weights: SharedWeights, version: int) -> Actor | Failed:
    """Give an actor the ordered version, or the newest one if that version is no longer available.

    Returns:
        The actor, or the reason why it could not be made or does not accept the weights.
    """
    while True:
        available = weights.versions
        chosen = version if version in available else available[-1]
        try:
            tensors = dict(zip(names, weights.read(chosen), strict=True))
        except LookupError:
            continue
        given = with_weights(actor, Weights(chosen, tensors))
        if isinstance(given, Failed):
            return given
        if chosen in weights.versions:  # otherwise the version was overwritten while it was copied
            return actor
