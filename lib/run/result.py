"""The content of result.json."""

import math
from typing import Any

from ignite.engine import Engine

from lib.run.episodes import Episodes
from lib.run.speed import Speed
from lib.system.clock import since_process_start


def describe_result(engine: Engine, stopped: str, episodes: Episodes, speed: Speed) -> dict[str, Any]:
    """What result.json holds: how and where the run ended, and when it first reached its bounds."""
    return {
        "stopped": stopped,
        "steps": episodes.steps(),
        "iterations": engine.state.iteration,
        "episodes": episodes.count,
        "mean_100": _finite(episodes.mean),
        "best_mean": _finite(episodes.best_mean),
        "reached": episodes.reached,
        "seconds": episodes.seconds,
        "this_process": {
            "seconds": since_process_start(),
            "training_steps": speed.trained,
            "training_seconds": speed.seconds,
            "warm_up_steps_per_second": _finite(speed.of_warm_up),
            "steps_per_second": _finite(speed.overall),
            "last_1000_steps_per_second": _finite(speed.now),
            "parts": speed.parts,
        },
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON knows neither NaN nor infinity
