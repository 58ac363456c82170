"""The weights of a network, in memory that processes share, or that is sent in one piece."""

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from lib.system.processes import context


def aligned(size: int) -> int:
    """Bytes that a part of a memory takes, so that the next one begins at a multiple of 64."""
    return -(-size // 64) * 64


class TensorLayout:
    """Where each of some tensors lies in one piece of memory.

    Args:
        tensors: whose shapes and types are kept; their values are not read.

    Attributes:
        size: bytes of all.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]):
        self._parts: list[tuple[torch.dtype, torch.Size, int]] = []
        self.size = 0
        for tensor in tensors:
            self._parts.append((tensor.dtype, tensor.shape, self.size))
            self.size += aligned(tensor.numel() * tensor.element_size())

    def views(self, memory: Any, start: int = 0) -> list[torch.Tensor]:
        """The tensors in a buffer, from the byte `start` on; not to be written where the buffer is not."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch's, of a buffer that is not to be written
            return [
                torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=start + offset).view(shape)
                if shape.numel()
                else torch.empty(shape, dtype=dtype)
                for dtype, shape, offset in self._parts
            ]


class SharedWeights:
    """The last versions of a network's weights, in memory that processes share.

    Args:
        tensors: the weights, whose shapes and types are kept; their values are not read.
        size: how many versions are kept.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], size: int):
        self.size = size
        self._layout = TensorLayout(tensors)
        self._memory = context.RawArray("b", max(1, size * self._layout.size))
        self._versions = context.RawArray("q", [-1] * size)
        self._published = 0

    @property
    def versions(self) -> list[int]:
        """The versions that are there, oldest first."""
        return sorted(version for version in self._versions if version >= 0)

    def publish(self, version: int, tensors: Iterable[torch.Tensor]) -> None:
        """Copy the weights in, in place of the oldest of `size` versions.

        Raises:
            ValueError: the version is not newer than all before.
        """
        if self.versions and version <= self.versions[-1]:
            raise ValueError(f"version {version} is not newer than {self.versions[-1]}")
        slot = self._published % self.size
        self._versions[slot] = -1
        for shared, tensor in zip(self._views(slot), tensors, strict=True):
            shared.copy_(tensor)
        self._versions[slot] = version
        self._published += 1

    def read(self, version: int) -> list[torch.Tensor]:
        """A version's weights as views of the shared memory, valid until `size` newer ones are published.

        Raises:
            LookupError: that version is not there.
        """
        there = list(self._versions)
        if version not in there:
            raise LookupError(f"version {version} of the weights is not there; there are {self.versions}")
        return self._views(there.index(version))

    def _views(self, slot: int) -> list[torch.Tensor]:
        return self._layout.views(self._memory, slot * self._layout.size)
