"""Seeds and the global random generators."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch


class RandomState:
    """The global random generators of Python, numpy and torch as one object with a state_dict."""

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
    """Restore the global generators on exit, so that the block does not change the random numbers drawn after it."""
    random_state = RandomState()
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
    """Hash numbers to a 32-bit seed."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """Return the 32-bit seed for the reset at which an episode starts.

    Args:
        seed: seed of the run.
        environment: environment index.
        episode: episode index of that environment.
    """
    return hashed_seed(seed, environment, episode)


def derived_seeds(seed: int, num_envs: int) -> np.ndarray:
    """Return a 31-bit seed for each environment, hashed from the seed and the environment index.

    Returns:
        (num_envs,) int64.
    """
    return np.array([hashed_seed(seed, index) >> 1 for index in range(num_envs)], np.int64)
