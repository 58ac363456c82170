"""Processor cores and other facts about the machine that affect speed."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import torch


def cores() -> int:
    """Return the number of cores on which this process may run. A quota of CPU time, as in a container, is ignored."""
    # macOS has no CPU affinity.
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


def has_fast_bfloat16(device: torch.device) -> bool:
    """Return whether the device calculates faster in bfloat16 than in float32.

    AMD's processors do if they have the flag avx512_bf16, Intel's if they have amx_bf16, and Arm's if they have bf16.
    Intel's with avx512_bf16 but no amx_bf16, as in virtual machines that hide AMX, take 1.3 to 1.6 times as long.
    """
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    cpuinfo = Path("/proc/cpuinfo")
    if device.type != "cpu" or not cpuinfo.exists():
        return False
    words = set(cpuinfo.read_text().split())
    return bool({"amx_bf16", "bf16"} & words) or {"AuthenticAMD", "avx512_bf16"} <= words


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Let torch use `number` threads in this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Describe the operating system, processor, cores, memory, PyTorch threads, and a device."""
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
        "fast_bfloat16": has_fast_bfloat16(torch.device(device)),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if "model name" in line), platform.processor())
