"""The content of result.json."""

import math
from collections.abc import Mapping
from typing import Any

from ignite.engine import Engine

from lib.run.episodes import Episodes
from lib.run.speed import Speed
from lib.system.clock import since_process_start


def describe_result(
    engine: Engine, stopped: str, episodes: Episodes, speed: Speed, previous: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of result.json.

    Args:
        engine: training engine.
        stopped: reason for the end, a key of stopping.EXIT_CODES.
        episodes: counter of the episodes.
        speed: speed of this process.
        previous: content of the existing result.json, or {}. Its duration, speed and evaluation are kept if it belongs
            to the same agent step.
    """
    result = _describe(engine, stopped, episodes, speed)
    if previous.get("steps") != episodes.steps:
        return result
    result["this_process"] |= previous.get("this_process", {})
    return result | {name: previous[name] for name in ("seconds", "evaluation") if name in previous}


def _describe(engine: Engine, stopped: str, episodes: Episodes, speed: Speed) -> dict[str, Any]:
    return {
        "stopped": stopped,
        "steps": episodes.steps,
        "iterations": engine.state.iteration,
        "episodes": episodes.count,
        "mean_100": _finite(episodes.mean),
        "best_mean": _finite(episodes.best_mean),
        "reached": episodes.reached,
        "seconds": episodes.seconds,
        "this_process": {
            "seconds": since_process_start(),
            "learning_since": speed.learning_since,
            "training_steps": speed.training_steps,
            "training_seconds": speed.training_seconds,
            "warm_up_steps_per_second": _finite(speed.warm_up_speed),
            "steps_per_second": _finite(speed.overall),
            "last_1000_steps_per_second": _finite(speed.recent),
            "parts": speed.parts,
        },
    }


def _finite(value: float) -> float | None:
    # JSON has neither NaN nor infinity.
    return value if math.isfinite(value) else None
