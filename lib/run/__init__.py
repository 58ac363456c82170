"""One training run: its folder, checkpoints, stopping, speed, console, TensorBoard, videos, evaluation.

May import lib.ppo, lib.dqn_model, and what these may import.
"""

import sys
from types import SimpleNamespace

OPTIM = "torch.distributed.optim"
if OPTIM not in sys.modules:
    # ignite imports it for one isinstance check, which would delay the start of every script by a second.
    sys.modules[OPTIM] = SimpleNamespace(ZeroRedundancyOptimizer=type("Unused", (), {}))  # type: ignore[assignment]
    import ignite.handlers  # noqa: F401

    del sys.modules[OPTIM]
