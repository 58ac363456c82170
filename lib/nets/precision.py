"""Numeric precision of a network, and torch.compile."""

import functools
import logging
import os
import shutil

import torch
from torch import nn

from lib.errors import UsageError
from lib.system.machine import has_fast_bfloat16

log = logging.getLogger(__name__)


@functools.cache
def fast_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 if the device is faster with it. Otherwise return float32, and log a warning once."""
    if has_fast_bfloat16(device):
        return torch.bfloat16
    log.warning("This %s is not faster in bfloat16: float32 is used.", device.type)
    return torch.float32


def compile_networks(*nets: nn.Module) -> None:
    """Compile networks with torch.compile. The first call of each network then takes some seconds longer.

    Raises:
        UsageError: if there is no C++ compiler, which torch.compile needs.
    """
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++", "c++")):
        raise UsageError("--compile needs a C++ compiler, and none was found; install g++, or leave --compile out")
    for net in nets:
        net.compile()
