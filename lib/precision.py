"""What a network may calculate in."""

import logging
from pathlib import Path

import torch

log = logging.getLogger(__name__)

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}  # of processors: Intel and AMD, Intel, Arm


def fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device calculates with it in hardware; else float32, and a line that says so."""
    if device.type == "cuda":
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        cpuinfo = Path("/proc/cpuinfo")
        fast = device.type == "cpu" and cpuinfo.exists() and bool(BF16_FLAGS & set(cpuinfo.read_text().split()))
    if not fast:
        log.warning("No bfloat16 on this %s: float32 is used, and learning takes about twice as long.", device.type)
    return torch.bfloat16 if fast else torch.float32
