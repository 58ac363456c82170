import random

import numpy as np
import pytest
import torch

from lib.system.seeds import RandomState, hashed_seed, seed_everything, tagged_seed, undisturbed


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
    with pytest.raises(ZeroDivisionError), undisturbed():
        draw()[0] / 0
    assert draw() == expected


def test_undisturbed_restores_all_gpus_and_a_checkpoint_only_the_one_in_use(monkeypatch):
    generators = {0: torch.tensor([10]), 1: torch.tensor([11])}  # of two fake GPUs
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delattr(torch.cuda, "get_rng_state_all")  # a run on a CPU touches none
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: generators[device.index].clone())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, device: generators.update({device.index: state}))
    state = RandomState(torch.device("cuda:1")).state_dict()
    assert state["cuda"] == [torch.tensor([11])]
    RandomState(torch.device("cuda:0")).load_state_dict(state)
    assert generators == {0: 11, 1: 11}
    assert RandomState(torch.device("cpu")).state_dict()["cuda"] == RandomState().state_dict()["cuda"] == []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with undisturbed():
        generators.update({0: torch.tensor([20]), 1: torch.tensor([21])})  # as by torch.manual_seed
    assert generators == {0: 11, 1: 11}


def test_the_seeds_of_an_evaluation_are_apart_from_those_of_training():
    training = {hashed_seed(seed, env, episode) for seed in range(3) for env in range(20) for episode in range(50)}
    evaluated = {tagged_seed("evaluation", seed, number) for seed in range(30) for number in range(50)}
    assert len(evaluated) == 1500
    assert not training & evaluated
    assert tagged_seed("evaluation", 3, 1) != tagged_seed("a", 3, 1)
    assert max(training | evaluated) < 2**31  # the largest seed of a simulator that takes it as a C int
