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


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device calculates faster in bfloat16 than in float32.

    AMD's processors do with the flag avx512_bf16, and Intel's with amx_bf16. Intel's with avx512_bf16 alone, as in
    virtual machines that hide AMX, take 1.3 to 1.6 times as long in bfloat16 as in float32. Arm's flag is bf16.
    """
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    cpuinfo = Path("/proc/cpuinfo")
    if device.type != "cpu" or not cpuinfo.exists():
        return False
    words = set(cpuinfo.read_text().split())
    return bool({"amx_bf16", "bf16"} & words) or {"AuthenticAMD", "avx512_bf16"} <= words


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
