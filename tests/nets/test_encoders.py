"""Encoders: what the normalisation of their input says, and what a board's cell sees."""

import pytest
import torch

from lib.nets.encoders import BoardEncoder, VectorEncoder, make_encoder


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ([1.0, 0.0, 1000.0, 1.0], "entry 2 varies 1,000 times as much as entry 0"),
        ([1.0, 0.0, 50.0, 1.0], ""),
        ([0.0, 0.0, 0.0, 0.0], ""),
    ],
)
def test_entries_in_very_different_units_are_named(caplog, units, message):
    numbers = torch.tensor([[-1.0], [1.0]]).repeat(8, 4)
    encoder = VectorEncoder((4,))
    encoder.normalise_by(numbers * torch.tensor(units))
    assert bool(caplog.text) == bool(message)
    assert message in caplog.text
    VectorEncoder((4,)).normalise_by(numbers[:1] * torch.tensor(units))  # a single state has no spread
    assert len(caplog.records) == bool(message)


def test_a_large_constant_entry_does_not_hide_the_others():
    """float32 holds a Unix time in steps of 128, so that a sum of many is wrong by more than the other entries."""
    torch.manual_seed(0)
    states = torch.cat([torch.randn(1024, 4), torch.full((1024, 1), 1.7e9)], dim=1)
    encoder = VectorEncoder((5,))
    encoder.normalise_by(states)
    normalised = (states - encoder.mean) * encoder.scale
    assert normalised[:, :4].std() == pytest.approx(1.0, rel=0.2)
    assert not normalised[:, 4].any()


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
    torch.manual_seed(0)
    states = (255 * torch.rand(7, *shape)).byte()
    strided = states.movedim(1, -1).contiguous().movedim(-1, 1)  # as in a ring's batches
    encoder, other = make_encoder(shape), make_encoder(shape)
    encoder.normalise_by(states)
    other.load_state_dict(encoder.state_dict())
    other.normalise_by(strided)
    assert torch.allclose(other(strided), encoder(states), atol=1e-6)
    assert encoder(states).shape == (7, encoder.features)
