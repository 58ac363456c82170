"""Seeds and the global random generators."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class RandomState:
    """Every global random generator as one object with a state_dict: python's, numpy's, torch's."""

    def state_dict(self) -> dict[str, Any]:
        version, words, gauss = random.getstate()
        numpy_state: Any = np.random.get_state(legacy=True)
        name, keys, position, has_gauss, cached = numpy_state
        return {
            "python": [version, list(words), gauss],
            "numpy": [name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached],
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["python"]
        random.setstate((version, tuple(words), gauss))
        name, keys, position, has_gauss, cached = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, cached))
        torch.set_rng_state(state["torch"])
        if state["cuda"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda"])


@contextmanager
def undisturbed() -> Iterator[None]:
    """Put the global generators back afterwards: the run draws what it would have drawn anyway."""
    random_state = RandomState()
    before = random_state.state_dict()
    try:
        yield
    finally:
        random_state.load_state_dict(before)


def seed_everything(seed: int) -> None:
    """Seed python's, numpy's (ptan draws its random actions from it) and torch's generators."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def hashed_seed(*numbers: int) -> int:
    """A seed of 32 bits, hashed from numbers that name what it is for."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """The reset seed of an environment's n-th episode: 32 bits hashed from all three."""
    return hashed_seed(seed, environment, episode)


def derived_seeds(seed: int, num_envs: int) -> np.ndarray:
    """An own seed for each environment: 31 bits hashed from the seed and the environment's number."""
    return np.array([hashed_seed(seed, number) >> 1 for number in range(num_envs)], np.int64)
