"""How this project's processes are started, and how many cores there are for them."""

import multiprocessing
import os
from typing import Any

import psutil

# Not forked from this process: a copy of one in which PyTorch's threads or a GPU are at work can hang. A server that
# has done nothing but import forks quickly and safely; where the system has none, every process imports for itself.
context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)


def cores() -> int:
    """How many cores this process may run on, which can be fewer than the machine has."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
