"""Replay rings against their slow twin: transitions, limits, checkpoints."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import UsageError
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Ring
from lib.system import memory
from rings import batch_at, check, eventless, index_of, places_of, random_steps, ring_and_twin, ring_of


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.integers(1, 3),
    n_step=st.integers(1, 4),
    count=st.integers(1, 40),
    extra=st.integers(0, 8),
)
@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_every_transition_equals_that_of_the_slow_twin(kind, seed, num_envs, n_step, count, extra):
    ring, twin = ring_and_twin(kind, 3 + n_step + extra, num_envs, n_step)
    rng = np.random.default_rng(seed)
    ring.truncate_episodes(np.zeros((num_envs, 1), np.int32))  # does nothing to an empty ring
    for step in random_steps(rng, num_envs, count):
        *before, truncated, final_frames = (array.copy() for array in step)
        ring.add(step)
        for array in step:
            array[:] = 1  # the ring has copied it
        if rng.random() < 0.1:
            ring.truncate_episodes(final_frames)
            truncated = np.ones(num_envs, bool)
        twin.add(*before, truncated, final_frames)
        places = places_of(twin, num_envs)
        assert ring.num_transitions == len(places)
        assert len(ring) == min(len(twin.steps[0]), ring.length) * num_envs
        kept = [own[-ring.length :] for own in twin.steps]
        truncations = [ends and not terminated for own in kept for _, _, _, terminated, ends, _ in own]
        assert len(ring._final_frames) == sum(truncations)
        if places:
            check(batch_at(ring, places), places, twin)
        if kind is PrioritisedRing:
            rows = {index_of(ring, place) for place in places}
            assert set(np.flatnonzero(ring._tree[np.arange(ring._tree.size)]).tolist()) == rows


def test_all_valid_transitions_and_no_others_are_sampled():
    ring, twin = ring_and_twin(Ring, 12, 2, 2)
    for step in random_steps(np.random.default_rng(0), 2, 30):
        ring.add(step)
        twin.add(*step)
    batch = ring.sample(4000)
    assert len(batch) == 4000
    newest_frames = [int(state[0, -1]) for state in batch.states]
    places = [(frame % 1000, frame // 1000 - 1) for frame in newest_frames]
    assert set(places) == set(places_of(twin, 2))
    check(batch, places, twin)
    counts = batch.indices.bincount(minlength=24)
    expected = 4000 / ring.num_transitions
    assert all(0.7 * expected < count < 1.3 * expected for count in counts[counts > 0].tolist())
    assert batch.weights.tolist() == [1.0] * 4000


def test_states_have_their_frames_last_and_are_contiguous():
    ring = ring_of(Ring, 40, 2, (8, 6), 4, np.uint8)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (12, 2, 8, 6)).astype(np.uint8)
    for step in frames:
        ring.add(eventless(step))
    batch = ring._make_batch(np.array([5, 9]), np.array([1, 0]), np.ones(2))
    assert batch.states.is_contiguous()
    assert np.array_equal(batch.states[0], np.moveaxis(frames[2:6, 1], 0, -1))
    assert np.array_equal(batch.next_states[1], np.moveaxis(frames[7:11, 0], 0, -1))
    moved = batch.for_net("cpu")  # with the frames before the pixels
    assert np.array_equal(moved.states[0], frames[2:6, 1])
    assert np.array_equal(moved.next_states[1], frames[7:11, 0])


@pytest.mark.parametrize("shape", [(6,), (2, 5, 4)])
def test_a_vector_or_board_goes_to_the_network_without_a_stack_axis(shape):
    ring = ring_of(Ring, 20, 2, shape)
    frames = np.random.default_rng(0).random((4, 2, *shape), np.float32)
    for step in frames:
        ring.add(eventless(step))
    batch = batch_at(ring, [(1, 0), (2, 1)]).for_net("cpu")
    assert np.array_equal(batch.states, [frames[1, 0], frames[2, 1]])
    assert np.array_equal(batch.next_states, [frames[2, 0], frames[3, 1]])


@pytest.mark.parametrize(("count", "kind"), [(4, PrioritisedRing), (20, Ring)])
def test_a_restored_ring_samples_the_same_batches(tmp_path, kind, count):
    ring, _ = ring_and_twin(kind, 9, 2, 2)
    steps = list(random_steps(np.random.default_rng(1), 2, 40))
    for step in steps[: count - 1]:
        ring.add(step)
    if kind is PrioritisedRing:
        ring.update_priorities(ring.sample(4).indices, torch.tensor([0.5, 2.0, 7.0, 3.0]))
    ring.add(steps[count - 1])  # its priority counts as soon as its next state is in the ring
    torch.save(ring.state_dict(), tmp_path / "ring.pt")
    other, _ = ring_and_twin(kind, 9, 2, 2)
    other.load_state_dict(torch.load(tmp_path / "ring.pt", weights_only=True))
    for step in steps[count:]:
        ring.add(step)
        other.add(step)
        for a, b in zip(*(dataclasses.astuple(each.sample(5)) for each in (ring, other)), strict=True):
            assert torch.equal(a, b)


def test_too_few_steps_missing_final_frames_and_missing_memory_are_refused(monkeypatch):
    ring, _ = ring_and_twin(Ring, 9, 2, 2)
    for step in random_steps(np.random.default_rng(0), 2, 3):
        with pytest.raises(
            UsageError, match=r"transitions of n_step=2 cannot be drawn from [0-2] steps of each of 2 en"
        ):
            ring.sample(6)
        ring.add(step)
    assert len(ring.sample(6)) == 6
    with pytest.raises(UsageError, match=r"has 3 for each of 2 environments; .* need at least 5"):
        ring_of(Ring, 6, 2, stack=4)
    monkeypatch.setattr(memory, "free", lambda: 10**9)
    with pytest.raises(UsageError, match=r"needs 7\.1 GB .*, and 1\.0 GB are free; --set replay_size=113026 would fit"):
        ring_of(Ring, 10**6, 8, (84, 84), 4, np.uint8)


def test_evenly_spaced_transitions_cover_the_ring_without_random_draws():
    ring, _ = ring_and_twin(Ring, 20, 2, 1)
    for step in range(51):
        ring.add(eventless(np.full((2, 1), step)))
    before = ring._generator.bit_generator.state
    newest = ring.evenly_spaced(4).for_net("cpu").states[:, -1, 0].tolist()
    assert ring._generator.bit_generator.state == before
    oldest = 51 - ring.length + ring.stack - 1
    steps = [step for step in range(oldest, 50) for _ in range(ring.num_envs)]
    assert newest == [steps[place] for place in np.linspace(0, len(steps) - 1, 4).astype(int)]


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_the_forecast_equals_the_memory_of_a_ring(kind, monkeypatch):
    forecasts = []
    monkeypatch.setattr(memory, "require", lambda steps, needed: forecasts.append(needed))
    ring = ring_of(kind, 20_000, 4, (3,))
    arrays = [getattr(ring, f"_{name}") for name in ring.ARRAYS]
    if kind is PrioritisedRing:
        arrays += [ring._priorities, *ring._tree._levels]
    assert sum(array.nbytes for array in arrays) == pytest.approx(forecasts[0], rel=0.02)
