"""How this project's processes are started."""

import multiprocessing
from typing import Any

# Not forked from this process: a copy of one in which PyTorch's threads or a GPU are at work can hang. A server that
# has done nothing but import forks quickly and safely; where the system has none, every process imports for itself.
context: Any = multiprocessing.get_context(
    "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
)
