"""Arrays and network weights in memory that processes share."""

import pickle
import warnings
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from lib.system.shared_block import SharedBlock


def aligned(size: int) -> int:
    """Round a size in bytes up to a multiple of 64."""
    return -(-size // 64) * 64


class TensorLayout:
    """Positions of tensors in one block of memory.

    Args:
        tensors: tensors of the shapes and dtypes to store. Their values are not read.

    Attributes:
        size: bytes of all tensors.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]):
        self._parts: list[tuple[torch.dtype, torch.Size, int]] = []
        self.size = 0
        for tensor in tensors:
            self._parts.append((tensor.dtype, tensor.shape, self.size))
            self.size += aligned(tensor.numel() * tensor.element_size())

    def views(self, memory: Any, start: int = 0) -> list[torch.Tensor]:
        """Return the tensors as views of a buffer from byte `start` on. Do not write to views of a read-only buffer."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torch warns about read-only buffers
            return [
                torch.frombuffer(memory, dtype=dtype, count=shape.numel(), offset=start + offset).view(shape)
                if shape.numel()
                else torch.empty(shape, dtype=dtype)
                for dtype, shape, offset in self._parts
            ]


class SharedWeights:
    """The latest versions of a network's weights, in memory that processes share.

    Args:
        tensors: weights of the shapes and dtypes to store. Their values are not read.
        size: number of versions that are kept.
    """

    def __init__(self, tensors: Iterable[torch.Tensor], size: int):
        self.size = size
        self._layout = TensorLayout(tensors)
        self._block = SharedBlock(size * self._layout.size)
        self._version_block = SharedBlock(8 * size)
        self._versions[:] = memoryview(array("q", [-1] * size))
        self._published = 0

    @property
    def _versions(self) -> "memoryview[int]":
        """Version in each slot, or -1."""
        return memoryview(self._version_block.memory).cast("q")

    @property
    def versions(self) -> list[int]:
        """Available versions, oldest first."""
        return sorted(version for version in self._versions if version >= 0)

    def publish(self, version: int, tensors: Iterable[torch.Tensor]) -> None:
        """Copy weights of a newer version into the slot of the oldest one."""
        slot = self._published % self.size
        self._versions[slot] = -1
        for shared, tensor in zip(self._views(slot), tensors, strict=True):
            shared.copy_(tensor)
        self._versions[slot] = version
        self._published += 1

    def read(self, version: int) -> list[torch.Tensor]:
        """Return a version's weights as views. They are valid until the `size`-th newer version is published.

        Raises:
            LookupError: if the version is not available.
        """
        available = list(self._versions)
        if version not in available:
            raise LookupError(f"version {version} of the weights is not available; it has to be one of {self.versions}")
        return self._views(available.index(version))

    def _views(self, slot: int) -> list[torch.Tensor]:
        return self._layout.views(self._block.memory, slot * self._layout.size)


class Slots:
    """Shared memory for the arrays of a few objects, so that only a small pickle goes through a pipe.

    Args:
        number: number of slots.
        size: bytes per slot. If an object's arrays take more, the whole object goes through the pipe.
    """

    def __init__(self, number: int, size: int):
        self.number = number
        self.size = size
        self._block = SharedBlock(number * size)

    def pack(self, payload: Any, slot: int) -> tuple[bytes, int, list[int]]:
        """Write the arrays of an object into a slot.

        Returns:
            The pickle of the object without its arrays, the slot, and the sizes of the arrays in bytes. If the arrays
            do not fit, the pickle includes them and the list of sizes is empty.
        """
        buffers: list[pickle.PickleBuffer] = []
        header = pickle.dumps(payload, protocol=5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
        sizes = [len(part) for part in raw]
        if sum(map(aligned, sizes)) > self.size:
            return pickle.dumps(payload, protocol=5), slot, []
        view = memoryview(self._block.memory)
        for part, place in zip(raw, self._places(slot, sizes), strict=True):
            view[place] = part
        return header, slot, sizes

    def unpack(self, header: bytes, slot: int, sizes: Sequence[int]) -> Any:
        """Return the object that was passed to `pack`. Its arrays are read-only views of the slot."""
        view = memoryview(self._block.memory).toreadonly()
        return pickle.loads(header, buffers=[view[place] for place in self._places(slot, sizes)])

    def _places(self, slot: int, sizes: Sequence[int]) -> list[slice]:
        places, start = [], slot * self.size
        for size in sizes:
            places.append(slice(start, start + size))
            start += aligned(size)
        return places
