"""Encoders: what the normalisation of their input says, and what a board's cell sees."""

import pytest
import torch

from lib.nets.encoders import BoardEncoder, VectorEncoder, make_encoder


def test_vectors_are_normalised_by_the_mean_and_spread_of_all_states_so_far():
    states = torch.randn(300, 4, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 1e4, 0.0]) + 5.0
    encoder = VectorEncoder((4,))
    for batch in states.split([1, 99, 200]):
        encoder.normalise_by(batch)
    assert torch.allclose(encoder.mean, states.mean(0), rtol=1e-12)
    assert torch.allclose(encoder.variance, states.var(0, correction=0), rtol=1e-9)
    normal = (states - encoder.mean) * encoder.scale
    assert torch.allclose(normal.std(0, correction=0), torch.tensor([1.0, 1.0, 1.0, 0.0]).double())
    again = VectorEncoder((4,))
    again.load_state_dict(encoder.state_dict())
    assert torch.equal(again(states), encoder(states))


def test_a_second_of_a_unix_time_can_be_seen():
    """float32 holds such a time in steps of 128 seconds."""
    times = 1.7e9 + torch.arange(60, dtype=torch.float64)[:, None]
    encoder = VectorEncoder((1,))
    with torch.no_grad():
        encoder.first.weight.mul_(1e-3)
    # 01_ppo never fits it, so nothing is clipped.
    assert not torch.equal(encoder(torch.tensor([[20.0]])), encoder(torch.tensor([[500.0]])))
    encoder = VectorEncoder((1,))
    encoder.normalise_by(times)
    features = encoder(times)
    assert (features[1:] - features[:-1]).norm(dim=1).min() > 1e-3
    far = encoder(times + 1e6)
    assert torch.equal(far, encoder(times + 1e9))  # unusual numbers are clipped


def test_a_cell_sees_its_neighbours_its_row_and_its_column():
    torch.manual_seed(1)
    encoder = BoardEncoder((1, 9, 12))
    empty = torch.zeros(1, 1, 9, 12)
    other = empty.clone()
    other[0, 0, 2, 7] = 1.0
    changed = (encoder.encode(other)[1] != encoder.encode(empty)[1]).any(1)[0]
    row, column = torch.arange(9)[:, None], torch.arange(12)
    near = ((row - 2).abs() <= 2) & ((column - 7).abs() <= 2)  # two 3 x 3 convolutions
    lines = ((row - 2).abs() <= 1) | ((column - 7).abs() <= 1)  # means of what the first one has computed
    assert torch.equal(changed, near | lines)


@pytest.mark.parametrize("shape", [(4, 40, 36), (3, 9, 7)], ids=["image", "board"])
def test_states_may_have_their_channels_last_in_memory(shape):
    states = (255 * torch.rand(7, *shape)).byte()
    strided = states.movedim(1, -1).contiguous().movedim(-1, 1)  # as in a ring's batches
    encoder, other = make_encoder(shape), make_encoder(shape)
    encoder.normalise_by(states)
    other.load_state_dict(encoder.state_dict())
    other.normalise_by(strided)
    assert torch.allclose(other(strided), encoder(states), atol=1e-6)
    assert encoder(states).shape == (7, encoder.features)
