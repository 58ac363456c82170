"""The network of 2015, and its version that normalises states."""

import copy

import pytest
import torch

from fakes import pong_ring
from lib import common, dqn_model
from lib.nets.encoders import make_encoder

SHAPES = {"image": (4, 40, 36), "board": (3, 9, 7), "vector": (5,)}


@pytest.fixture(scope="module")
def replay():
    """A ring with steps of Pong."""
    return pong_ring()


def random_states(shape, number=7):
    states = torch.rand(number, *shape, generator=torch.Generator().manual_seed(0))
    return (255 * states).byte() if shape == SHAPES["image"] else states


@pytest.mark.parametrize("kind", SHAPES)
def test_a_normalising_trunk_equals_its_encoder_in_any_memory_layout(kind):
    torch.manual_seed(0)
    shape = SHAPES[kind]
    trunk, states = dqn_model.NormalisingTrunk(shape), random_states(shape)
    before = trunk(states)
    assert not trunk.seen
    trunk.normalise_by(states)
    assert trunk.seen
    encoder = make_encoder(shape)
    encoder.load_state_dict(trunk.body.state_dict())
    channels_last = states.permute(0, 2, 3, 1).contiguous() if states.ndim == 4 else states
    encoder.normalise_by(channels_last)
    expected = encoder(channels_last)
    assert torch.allclose(trunk(states), expected, atol=1e-6)
    assert not torch.allclose(trunk(states), before, atol=1e-3)
    if states.ndim == 4:  # the layout of a ring's batches
        assert torch.allclose(trunk(channels_last.movedim(-1, 1)), expected, atol=1e-6)
    assert expected.shape == (len(states), trunk.features)


@pytest.mark.parametrize("shape", [(84, 84), (1, 4, 84, 84)])
def test_states_of_other_shapes_are_refused(shape):
    with pytest.raises(ValueError, match=r"it has to be \(channels, height, width\) or \(numbers,\)"):
        dqn_model.DQN(shape, 2)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_high_learning_rate_makes_all_values_equal_unless_states_are_normalised(replay, normalise):
    """Without normalisation, 07_pong_in_minutes.py lost all differences between states of Pong after some updates."""
    torch.manual_seed(1)
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
        deviation = net(states).std(0).mean().item()
    assert deviation > 0.02 if normalise else deviation < 0.001


def test_an_image_with_channels_last_is_refused():
    with pytest.raises(
        ValueError, match=r"\(84, 84, 1\) has its channels last; .* pytorch_img=True or frame_stack=True"
    ):
        dqn_model.DQN((84, 84, 1), 6)
