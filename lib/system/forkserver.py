"""Set-up of the fork server. It imports this module first, before the slow ones."""

import gc
import os
import sys

import numpy as np

from lib.system.processes import kill_with_parent

kill_with_parent()
os.environ.pop("PYTHONSAFEPATH", None)  # set for this process; it does not apply to programs that environments start


def _begin_child() -> None:
    gc.freeze()  # a garbage collection would write to the objects of the server, which copies their pages
    # Children would draw the same numbers otherwise. Python seeds its own generator after a fork.
    np.random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()


os.register_at_fork(after_in_child=_begin_child)
