"""Numeric precision of a network, and torch.compile."""

import functools
import logging
import os
import shutil
from pathlib import Path

import torch
from torch import nn

from lib.errors import UsageError

log = logging.getLogger(__name__)

# Flags in /proc/cpuinfo of processors with bfloat16: the first on Intel and AMD, the second on Intel, the third on Arm.
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device supports bfloat16 in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    cpuinfo = Path("/proc/cpuinfo")
    return device.type == "cpu" and cpuinfo.exists() and bool(BF16_FLAGS & set(cpuinfo.read_text().split()))


@functools.cache
def fast_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 if the device supports it in hardware. Otherwise return float32, and log a warning once."""
    if has_bfloat16(device):
        return torch.bfloat16
    log.warning(
        "No bfloat16 on this %s: float32 is used, and learning from images takes about twice as long.", device.type
    )
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
