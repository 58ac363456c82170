"""Cores, threads and devices of the machine."""

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import torch
from torch import nn


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


def choose_threads(net: nn.Module) -> None:
    """Let torch use one thread for a network without convolutions, unless OMP_NUM_THREADS says otherwise.

    Threads that share so little work wait for each other: beside other programs, DQN on CartPole took three times as
    long with two threads.
    """
    if "OMP_NUM_THREADS" not in os.environ and not any(isinstance(part, nn.Conv2d) for part in net.modules()):
        torch.set_num_threads(1)


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return a tensor on a device. The CPU does not wait for a copy to a GPU, which goes through pinned memory.

    A tensor that is pinned already must not be overwritten before the next synchronisation.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
    return tensor.to(device)


def machine(device: torch.device | str = "cpu") -> dict[str, object]:
    """Describe the operating system, processor, cores, memory, PyTorch threads, and a device."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = (line.split(":")[1].strip() for line in lines if "model name" in line)
    return {
        "system": platform.platform(),
        "processor": next(models, platform.processor()),
        "cores": cores(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "torch_threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if torch.device(device).type == "cuda" else str(device),
        "fast_bfloat16": has_fast_bfloat16(torch.device(device)),
    }
