import numpy as np
import torch
from torch import nn

from lib.experience.ring import HeldOutStates, Ring
from rings import eventless, ring_of


def filled_ring(steps, capacity=50):
    ring = ring_of(Ring, capacity, 2)
    for step in range(steps):
        frames = np.array([[step], [100 + step]], np.float32)
        ring.add(eventless(frames))
    return ring


def test_the_states_are_evenly_spaced_and_stay_the_same_also_in_a_restored_object():
    net = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[2.0], [-1.0]]))
    ring = filled_ring(11)  # ten steps of each environment have a next state
    held_out, restored = HeldOutStates(ring, number=4), HeldOutStates(filled_ring(3), number=4)
    assert held_out.state_dict() == {"states": None}
    best = held_out.best_value(net)
    assert best == 2.0 * np.mean([0, 3, 6, 109])
    for step in range(60):
        ring.add(eventless(np.full((2, 1), 1000 + step, np.float32)))
    restored.load_state_dict(held_out.state_dict())
    assert restored.best_value(net) == held_out.best_value(net) == best
