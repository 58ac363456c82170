"""Copies of tensors to a device."""

import torch


def to_device(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """Return a tensor on a device.

    A copy to a GPU goes through pinned memory, so that the CPU does not wait for it. A tensor that is pinned already
    must not be overwritten before the next synchronisation.
    """
    if torch.device(device).type == "cuda" and tensor.device.type == "cpu":
        return (tensor if tensor.is_pinned() else tensor.pin_memory()).to(device, non_blocking=True)
    return tensor.to(device)
