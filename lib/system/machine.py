"""Processor cores and other facts about the machine that affect speed."""

import os
import platform
from pathlib import Path
from typing import Any

import psutil
import torch


def cores() -> int:
    """How many cores this process may run on, which can be fewer than the machine has."""
    return len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """What the speed depends on: processor, cores, memory, accelerator, threads."""
    cpuinfo = Path("/proc/cpuinfo")
    names = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        if cpuinfo.exists()
        else []
    )
    return {
        "system": platform.platform(),
        "processor": names[0] if names else platform.processor(),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
    }
