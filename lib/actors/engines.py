"""Which engine it is to be."""

import logging
from collections.abc import Callable
from typing import Any

from lib.actors.contract import ENGINES, Actors, Make, Weights
from lib.actors.inline import InlineActors
from lib.actors.process import ProcessActors
from lib.errors import UsageError

log = logging.getLogger(__name__)


def start_actors(
    engine: str,
    make: Make,
    number: int,
    model: Weights,
    state_of: Callable[[int], Any] = lambda number: None,
    *,
    patience: float = 60.0,
    delay_of: Callable[[int], float] = lambda number: 0.0,
    stop_asked: Callable[[], bool] = lambda: False,
    room: int = 2**20,
    address: str | None = None,
    cpus: float | None = None,
) -> Actors:
    """Start actors.

    Args:
        engine: one of ENGINES.
        make, number, model, state_of, patience, delay_of, stop_asked: see Actors.
        room: see ProcessActors.
        address, cpus: see cluster.RayActors.

    Raises:
        UsageError: there is no such engine, it is not installed, or what is asked of it cannot be had.
    """
    if number < 1:
        raise UsageError(f"{number} actors were asked for; it has to be at least 1")
    if engine != "ray" and (address is not None or cpus is not None):
        log.warning("--address and --actor-cpus are Ray's; the engine is %s, and does without them.", engine)
    common = (make, number, model, state_of, patience, delay_of, stop_asked)
    # Each is imported where it is wanted: Ray is an extra, and its workers import this too.
    if engine == "inline":
        return InlineActors(*common)
    if engine == "process":
        return ProcessActors(*common, room=room)
    if engine == "ray":
        from lib.actors.ray_cluster import RayActors  # Ray is an extra

        return RayActors(*common, address=address, cpus=cpus, room=room)
    raise UsageError(f"engine is {engine!r}; it has to be one of {', '.join(ENGINES)}")
