"""Processor cores and other facts about the machine that affect speed."""

import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch


def cores() -> int:
    """Return the number of cores that this process may use, which can be fewer than the machine has."""
    # macOS has no CPU affinity.
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Describe the operating system, processor, cores, memory, PyTorch threads and a device.

    Args:
        device: torch device; a GPU is described by its name.
    """
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if "model name" in line:
                return line.split(":")[1].strip()
    return platform.processor()
