"""The network of 2015, and what stands in its place where states are normalised."""

import copy

import pytest
import torch

from fakes import pong_ring
from lib import common, dqn_model
from lib.nets.encoders import make_encoder

SHAPES = {"image": (4, 40, 36), "board": (3, 9, 7), "vector": (5,)}


def states_of(shape, number=7):
    states = torch.rand(number, *shape, generator=torch.Generator().manual_seed(0))
    return (255 * states).byte() if shape == SHAPES["image"] else states


@pytest.mark.parametrize("kind", SHAPES)
def test_a_body_sees_states_less_their_mean_however_they_lie_in_memory(kind):
    torch.manual_seed(0)
    shape = SHAPES[kind]
    net, states = dqn_model.Normalising(shape), states_of(shape)
    before = net(states)
    assert not net.seen
    net.normalise_by(states)
    assert net.seen
    twin = make_encoder(shape)
    twin.load_state_dict(net.body.state_dict())
    last = states.permute(0, 2, 3, 1).contiguous() if states.ndim == 4 else states
    twin.normalise_by(last)
    assert torch.allclose(net(states), twin(last), atol=1e-6)
    assert not torch.allclose(net(states), before, atol=1e-3)
    if states.ndim == 4:  # as a ring's batches lie
        assert torch.allclose(net(last.movedim(-1, 1)), twin(last), atol=1e-6)
    assert twin(last).shape == (len(states), net.features)


@pytest.mark.parametrize(("normalise", "alive"), [(False, False), (True, True)])
def test_at_a_high_rate_all_states_are_soon_worth_the_same_unless_they_are_normalised(normalise, alive):
    """What 07_pong_in_minutes.py did: after some updates it saw no difference between any two states of Pong."""
    torch.manual_seed(1)
    replay = pong_ring()
    states = replay.sample(64).for_net("cpu").states
    net = dqn_model.DQN((4, 84, 84), 6, normalise=normalise)
    if normalise:
        net.conv.normalise_by(states)
    optimizer, target = torch.optim.Adam(net.parameters(), lr=2.5e-4), copy.deepcopy(net)
    for _ in range(15):
        optimizer.zero_grad()
        common.calc_loss_dqn(replay.sample(16), net, target, gamma=0.99).backward()
        optimizer.step()
    with torch.no_grad():
        spread = net(states).std(0).mean().item()
    assert spread > 0.02 if alive else spread < 0.001
