"""Run a script of the book's third edition with some lib, and print its updates a second.

    python run_book.py FOLDER FIRST LAST SCRIPT [OPTIONS]

FOLDER has the lib. The time is taken from the end of update FIRST to the end of update LAST, and the script is ended.

The script is not changed. Atari's games are registered for it, ignite's old module names lead to the new ones, and
`np.array(..., copy=False)` copies where it has to, as before NumPy 2.
"""

import os
import runpy
import sys
import time
from typing import Any

import ale_py
import gymnasium
import ignite.handlers.tensorboard_logger
import numpy as np
from ignite.engine import Engine, Events

run = Engine.run
array = np.array


def array_as_before(*args: Any, copy: bool | None = True, **kwargs: Any) -> np.ndarray:
    """np.array of NumPy 1, whose copy=False means: only if necessary."""
    return array(*args, copy=copy or None, **kwargs)


def timed_run(engine: Engine, *args: Any, **kwargs: Any) -> Any:
    """Run an engine, print its speed after the last timed update, and end the process."""
    times = []

    def start() -> None:
        times.append(time.perf_counter())

    def end() -> None:
        print(f"updates_per_second={(last - first) / (time.perf_counter() - times[0]):.3f}", flush=True)
        os._exit(0)  # no time for checkpoints, videos and child processes

    engine.add_event_handler(Events.ITERATION_COMPLETED(once=first), start)
    engine.add_event_handler(Events.ITERATION_COMPLETED(once=last), end)
    return run(engine, *args, **kwargs)


if __name__ == "__main__":
    gymnasium.register_envs(ale_py)
    sys.modules["ignite.contrib.handlers"] = ignite.handlers
    sys.modules["ignite.contrib.handlers.tensorboard_logger"] = ignite.handlers.tensorboard_logger
    np.array = array_as_before  # type: ignore[assignment]
    Engine.run = timed_run  # type: ignore[method-assign]
    sys.path[0] = sys.argv[1]
    first, last = map(int, sys.argv[2:4])
    sys.argv = sys.argv[4:]
    runpy.run_path(sys.argv[0], run_name="__main__")
