import random

import numpy as np
import torch

from lib.system.seeds import RandomState, derived_seeds, hashed_seed, seed_everything, undisturbed


def draw():
    """Draw from each global generator."""
    return random.random(), np.random.random(), np.random.standard_normal(), torch.rand(3).tolist()


def test_all_generators_continue_from_a_saved_state():
    seed_everything(3)
    draw()
    state = RandomState().state_dict()
    expected = draw()
    seed_everything(4)
    assert draw() != expected
    RandomState().load_state_dict(state)
    assert draw() == expected


def test_undisturbed_restores_the_generators_after_an_error():
    seed_everything(3)
    expected = draw()
    seed_everything(3)
    try:
        with undisturbed():
            draw()
            raise ValueError
    except ValueError:
        assert draw() == expected


def test_each_environment_has_a_seed_of_31_bits():
    seeds = derived_seeds(7, 1000)
    assert (seeds.dtype, seeds.shape) == (np.int64, (1000,))
    assert 0 <= seeds.min() <= seeds.max() < 2**31
    assert len(set(seeds.tolist())) == 1000
    assert seeds[3] == hashed_seed(7, 3) >> 1
