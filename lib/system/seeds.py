"""Seeds and the global random generators."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class RandomState:
    """The global random generators of Python, numpy, torch and its GPUs among `devices`, with one state_dict."""

    def __init__(self, *devices: torch.device):
        self._gpus = [device for device in devices if device.type in ("cuda", "mps")]

    def state_dict(self) -> dict[str, object]:
        version, words, gauss = random.getstate()
        numpy_state: Any = np.random.get_state(legacy=True)
        name, keys, position, has_gauss, cached = numpy_state
        return {
            "python": [version, list(words), gauss],
            "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": [
                torch.mps.get_rng_state() if gpu.type == "mps" else torch.cuda.get_rng_state(gpu) for gpu in self._gpus
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
        torch.set_rng_state(state["torch"])
        for gpu, saved in zip(self._gpus, state["cuda"], strict=False):  # there is none after a change from CPU to GPU
            if gpu.type == "mps":
                torch.mps.set_rng_state(saved)
            else:
                torch.cuda.set_rng_state(saved, gpu)


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the global generators on exit, so that the block does not change the random numbers drawn after it."""
    gpus = [torch.device("mps")] if torch.backends.mps.is_available() else []
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        gpus += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    random_state = RandomState(*gpus)
    before = random_state.state_dict()
    try:
        yield
    finally:
        random_state.load_state_dict(before)


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch. ptan draws random actions from numpy's."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def hashed_seed(*numbers: int) -> int:
    """Hash numbers to a 31-bit seed: simulators written in C take no larger one. Zeros at the end have no effect."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0]) >> 1


def tagged_seed(tag: str, *numbers: int) -> int:
    """Hash a purpose and numbers to a seed apart from those of other purposes."""
    return hashed_seed(int.from_bytes(tag.encode()), *numbers)
