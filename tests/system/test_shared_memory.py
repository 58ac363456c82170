"""Arrays and weights in shared memory."""

import numpy as np
import pytest
import torch

from lib.system.shared_memory import SharedWeights, Slots


@pytest.mark.parametrize("sizes", [[], [1], [64, 65, 0, 3]])
def test_slots_keep_arrays_apart(sizes):
    slots = Slots(2, 1024)
    arrays = {
        slot: [np.full(size, 10 * slot + number, np.uint8) for number, size in enumerate(sizes, 1)] for slot in (0, 1)
    }
    messages = [slots.pack(arrays[slot], slot) for slot in (0, 1)]
    for slot, message in enumerate(messages):
        assert [array.tolist() for array in slots.unpack(*message)] == [array.tolist() for array in arrays[slot]]


def test_unpacked_arrays_are_read_only_views_of_the_slot():
    slots = Slots(1, 1024)
    [array] = slots.unpack(*slots.pack([np.arange(5)], 0))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    slots.pack([np.arange(5) + 1], 0)
    assert array.tolist() == [1, 2, 3, 4, 5]


def test_an_object_that_is_too_large_for_a_slot_is_pickled_as_a_whole():
    slots = Slots(1, 100)
    message = slots.pack([np.arange(100)], 0)
    assert message[2] == []
    assert slots.unpack(*message)[0].tolist() == list(range(100))


def test_the_kept_versions_of_weights_are_available():
    tensors = [torch.zeros(2, 3), torch.zeros((), dtype=torch.int64), torch.zeros(0), torch.zeros(5, dtype=torch.bool)]
    weights = SharedWeights(tensors, size=2)
    assert weights.versions == []
    for version in (0, 1, 5):  # versions may skip
        weights.publish(version, [torch.full_like(tensor, version) for tensor in tensors])
        for shared, tensor in zip(weights.read(version), tensors, strict=True):
            assert torch.equal(shared, torch.full_like(tensor, version))
            assert shared.dtype == tensor.dtype
    assert weights.versions == [1, 5]
    with pytest.raises(LookupError, match="version 4 of the weights is not available"):
        weights.read(4)


def test_while_weights_are_copied_their_slot_has_no_version():
    weights, seen = SharedWeights([torch.zeros(1)], size=2), []

    def tensors(value):
        seen.append(weights.versions)
        yield torch.full((1,), value)

    for version in range(4):
        weights.publish(version, tensors(float(version)))
    assert seen == [[], [0], [1], [2]]
