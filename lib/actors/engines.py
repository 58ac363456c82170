"""Choice of the engine that runs the actors."""

import logging
from collections.abc import Callable
from typing import Any

from lib.actors.contract import Actors, Make, Weights
from lib.actors.inline import InlineActors
from lib.actors.process import ProcessActors
from lib.actors.ray_cluster import RayActors
from lib.errors import UsageError

log = logging.getLogger(__name__)

ENGINES: dict[str, Callable[..., Actors]] = {"inline": InlineActors, "process": ProcessActors, "ray": RayActors}


def start_actors(
    engine: str,
    make: Make,
    count: int,
    weights: Weights,
    state_of: Callable[[int], Any] = lambda index: None,
    *,
    room: int = 2**20,
    address: str | None = None,
    cpus: float | None = None,
    **options: Any,
) -> Actors:
    """Start actors.

    Args:
        engine: key of ENGINES.
        make, count, weights, state_of: see Actors.
        room: see ProcessActors.
        address, cpus: see RayActors.
        options: further arguments of Actors.

    Raises:
        UsageError: if the engine is unknown or not installed, if it cannot run that many actors, or if `count` is
            below 1.
    """
    if engine not in ENGINES:
        raise UsageError(f"engine is {engine!r}; it has to be one of {', '.join(ENGINES)}")
    if count < 1:
        raise UsageError(f"{count} actors were asked for; there has to be at least 1")
    if engine != "ray" and (address is not None or cpus is not None):
        log.warning("--address and --actor-cpus are options of --engine ray; --engine %s ignores them.", engine)
    own: dict[str, dict[str, Any]] = {
        "process": {"room": room},
        "ray": {"room": room, "address": address, "cpus": cpus},
    }
    return ENGINES[engine](make, count, weights, state_of, **options, **own.get(engine, {}))
