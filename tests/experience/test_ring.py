import contextlib
import dataclasses
import functools
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.errors import UsageError
from lib.experience.priority_ring import PrioritisedRing, priorities
from lib.experience.ring import Batch, Ring
from lib.experience.sum_tree import SumTree
from lib.system import memory
from oracles.ring import ListOfSteps

GAMMA = 0.5


def steps_of(rng, num_envs, count, ends=0.25):
    """Random steps whose frames are numbered in the order in which they were shown."""
    for step in range(count):
        terminated, truncated = rng.random((2, num_envs)) < ends / 2
        frames = (1000 * np.arange(1, num_envs + 1) + step).astype(np.int32)[:, None]
        yield (
            frames,
            rng.integers(0, 5, num_envs),
            rng.integers(-3, 4, num_envs).astype(np.float32),
            terminated,
            truncated,
            frames + 500,
        )


def rings_of(kind, length, num_envs, n_step, stack=3):
    ring = kind((length - 1) * num_envs + 1, num_envs, (1,), stack, n_step, GAMMA, np.int32, seed=3)
    return ring, ListOfSteps(length, num_envs, stack, n_step, GAMMA)


def draws(ring, count, size=20):
    """So many transitions, drawn batch by batch, as one batch."""
    batches = [dataclasses.asdict(ring.sample(size)) for _ in range(count // size)]
    return Batch(**{name: torch.cat([batch[name] for batch in batches]) for name in batches[0]})


def index_of(ring, place):
    """Where a (step, environment) lies, as in Batch.indices."""
    step, n = place
    return step % ring.length * ring.num_envs + n


def batch_of(ring, places):
    """The transitions that begin at these (step, environment)."""
    return ring._batch(*(np.array(numbers) for numbers in zip(*places, strict=True)), np.ones(len(places)))


def check(batch, places, twin):
    for place, (step, n) in enumerate(places):
        state, action, total, next_state, discount = twin.transition(step, n)
        assert batch.states[place, 0].tolist() == np.ravel(state).tolist()
        assert batch.actions[place] == action
        assert batch.returns[place] == total
        assert batch.discounts[place] == discount
        if next_state is not None:
            assert batch.next_states[place, 0].tolist() == np.ravel(next_state).tolist()


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.integers(1, 3),
    n_step=st.integers(1, 4),
    count=st.integers(1, 40),
    extra=st.integers(0, 8),
)
@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_every_transition_is_the_one_of_the_slow_twin(kind, seed, num_envs, n_step, count, extra):
    ring, twin = rings_of(kind, 3 + n_step + extra, num_envs, n_step)
    for step in steps_of(np.random.default_rng(seed), num_envs, count):
        ring.add(*step)
        twin.add(*step)
        places = [(s, n) for s in twin.valid() for n in range(num_envs)]
        assert ring.drawable == len(places)
        assert len(ring) == min(len(twin.steps[0]), ring.length) * num_envs
        kept = [own[-ring.length :] for own in twin.steps]
        truncations = [ends and not terminated for own in kept for _, _, _, terminated, ends, _ in own]
        assert len(ring._final) == sum(truncations)
        if places:
            check(batch_of(ring, places), places, twin)
        if kind is PrioritisedRing:
            rows = {index_of(ring, place) for place in places}
            assert set(np.flatnonzero(ring._tree[np.arange(ring._tree.size)]).tolist()) == rows


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    num_envs=st.integers(1, 3),
    n_step=st.integers(1, 4),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
)
def test_priorities_are_those_of_a_slow_twin_whatever_is_added_and_learnt_from_in_between(
    seed, num_envs, n_step, alpha
):
    ring, twin = rings_of(functools.partial(PrioritisedRing, alpha=alpha), 8 + n_step, num_envs, n_step)
    rng, priorities, highest = np.random.default_rng(seed), {}, 1.0
    for number, step in enumerate(steps_of(rng, num_envs, 40)):
        ring.add(*step)
        twin.add(*step)
        priorities |= {(number, n): highest for n in range(num_envs)}
        places = [(s, n) for s in twin.valid() for n in range(num_envs)]
        if places and rng.random() < 0.5:
            chosen = [places[each] for each in rng.integers(len(places), size=rng.integers(1, 2 * len(places) + 1))]
            given = rng.uniform(0.01, 3.0, len(chosen))
            rows = [index_of(ring, place) for place in chosen]  # some of them twice: the last one counts
            ring.update(torch.tensor(rows), torch.from_numpy(given))
            priorities |= dict(zip(chosen, given.tolist(), strict=True))
            highest = max(highest, given.max())
        expected = np.zeros(ring._tree.size)
        for place in places:
            expected[index_of(ring, place)] = priorities[place] ** alpha
        assert ring._tree[np.arange(ring._tree.size)] == pytest.approx(expected)
        assert ring._tree.total == pytest.approx(expected.sum())


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("cut", [1, 2, 7, 20])
def test_an_episode_that_is_cut_off_is_truncated_there(kind, n_step, cut):
    ring, twin = rings_of(kind, 9, 2, n_step)
    ring.cut(np.zeros((2, 1), np.int32))  # before there is anything
    for number, step in enumerate(steps_of(np.random.default_rng(7), 2, 26), 1):
        ring.add(*step)
        frames, actions, rewards, terminated, truncated, final_frames = step
        if number == cut:
            ring.cut(final_frames)
            truncated = np.ones(2, bool)
        twin.add(frames, actions, rewards, terminated, truncated, final_frames)
    places = [(s, n) for s in twin.valid() for n in range(2)]
    check(batch_of(ring, places), places, twin)


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_all_that_can_be_drawn_is_and_nothing_else(kind):
    ring, twin = rings_of(kind, 12, 2, 2)
    for step in steps_of(np.random.default_rng(0), 2, 30):
        ring.add(*step)
        twin.add(*step)
    batch = draws(ring, 4000)
    assert len(batch) == 4000
    drawn = {(int(frames[0, -1]) % 1000, int(frames[0, -1]) // 1000 - 1) for frames in batch.states}
    assert drawn == {(s, n) for s in twin.valid() for n in range(2)}
    check(batch, [(int(frames[0, -1]) % 1000, int(frames[0, -1]) // 1000 - 1) for frames in batch.states], twin)
    counts = batch.indices.bincount(minlength=24)
    expected = 4000 / ring.drawable
    assert all(0.7 * expected < count < 1.3 * expected for count in counts[counts > 0].tolist())
    assert batch.weights.tolist() == [1.0] * 4000
    assert batch.states.shape == batch.next_states.shape == (4000, 1, 3)
    assert batch.returns.dtype == batch.discounts.dtype == batch.weights.dtype == torch.float32
    assert batch.actions.dtype == batch.indices.dtype == torch.int64
    assert batch.states.dtype == batch.next_states.dtype == torch.int32  # the frames'


def test_states_have_their_frames_last_and_are_contiguous():
    ring = Ring(40, 2, (8, 6), stack=4)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (12, 2, 8, 6)).astype(np.uint8)
    nothing = np.zeros(2, bool)
    for step in frames:
        ring.add(step, np.zeros(2, int), np.zeros(2), nothing, nothing)
    batch = ring._batch(np.array([5, 9]), np.array([1, 0]), np.ones(2))
    assert batch.states.is_contiguous()
    assert np.array_equal(batch.states[0], np.moveaxis(frames[2:6, 1], 0, -1))
    assert np.array_equal(batch.next_states[1], np.moveaxis(frames[7:11, 0], 0, -1))


@contextlib.contextmanager
def branching(branches):
    """Sum trees of so many children a node, so that few numbers make many rows."""
    before, SumTree.BRANCHES = SumTree.BRANCHES, branches
    try:
        yield
    finally:
        SumTree.BRANCHES = before


@settings(max_examples=80, deadline=None)
@given(size=st.integers(1, 40), branches=st.sampled_from([2, 3, 4, 128]), data=st.data())
def test_the_sum_tree_is_a_running_sum(size, branches, data):
    with branching(branches):
        check_running_sum(size, data)


def check_running_sum(size, data):
    tree, numbers = SumTree(size), np.zeros(size)
    for _ in range(5):
        indices = np.array(data.draw(st.lists(st.integers(0, size - 1), min_size=1)))
        values = np.array(data.draw(st.lists(st.integers(0, 9), min_size=len(indices), max_size=len(indices))), float)
        tree[indices], numbers[indices] = values, values
        assert tree.total == numbers.sum()
        assert tree[np.arange(size)].tolist() == numbers.tolist()
        if numbers.sum():
            targets = np.arange(0, numbers.sum(), 0.5)
            expected = np.searchsorted(numbers.cumsum(), targets, side="right")
            assert tree.find(targets).tolist() == expected.tolist()


def test_a_tree_of_three_rows_finds_what_a_running_sum_does():
    rng = np.random.default_rng(0)
    tree, numbers = SumTree(20_000), rng.integers(0, 9, 20_000).astype(float)
    tree[np.arange(20_000)] = numbers
    changed = rng.integers(0, 20_000, 32)
    tree[changed] = numbers[changed] = np.arange(32.0)[np.argsort(np.argsort(changed))]
    assert len(tree._levels) == 3
    assert tree.total == numbers.sum()
    targets = rng.integers(0, int(numbers.sum()), 5000) + 0.5
    assert tree.find(targets).tolist() == np.searchsorted(numbers.cumsum(), targets, side="right").tolist()


@pytest.mark.parametrize("branches", [2, 3, 128])
def test_rounding_never_leads_to_an_empty_place(branches):
    rng = np.random.default_rng(0)
    for _ in range(300):
        numbers = rng.random(16) * (rng.random(16) < 0.4)
        if not numbers.any():
            continue
        with branching(branches):
            tree = SumTree(16)
            tree[np.arange(16)] = numbers
            edges = np.concatenate([numbers.cumsum(), [tree.total]])
            targets = np.concatenate([np.nextafter(edges, 0), edges[edges < tree.total]])
            assert (numbers[tree.find(targets[targets >= 0])] > 0).all()


def proportional(beta_steps=10**9):
    """A ring of 8 drawable steps with the chances 1, 2, 3, 4, 1, 1, 1, 1 of 14."""
    ring = PrioritisedRing(10, 1, (1,), 1, alpha=0.5, beta=0.4, beta_steps=beta_steps, seed=3)
    nothing = np.zeros(1, bool)
    for step in range(9):
        ring.add(np.full((1, 1), step), np.zeros(1, int), np.zeros(1), nothing, nothing)
    ring.update(torch.arange(8), torch.tensor([1.0, 4.0, 9.0, 16.0, 1.0, 1.0, 1.0, 1.0]))
    return ring


CHANCES = np.array([1, 2, 3, 4, 1, 1, 1, 1]) / 14


def test_steps_are_drawn_in_proportion_to_their_priorities():
    drawn = draws(proportional(), 28_000, size=1).indices.bincount(minlength=8).numpy()
    expected = 28_000 * CHANCES
    # Chi-square with 7 degrees of freedom: above 24.3 in one of a thousand, at this seed 5 or so.
    assert ((drawn - expected) ** 2 / expected).sum() < 24.3
    assert drawn[-1] > 0


def test_a_batch_is_stratified():
    # Of 7 equal parts of 14, each lies within the chances of one or two steps: 2 of step 3 in every batch.
    ring = proportional()
    for _ in range(200):
        counts = ring.sample(7).indices.bincount(minlength=8)
        assert counts[3] == 2
        assert 1 <= counts[2] <= 2
        assert counts[4] + counts[5] == counts[6] + counts[7] == 1


def test_each_part_of_a_batch_is_drawn_by_itself():
    ring, _ = rings_of(lambda *options, **more: PrioritisedRing(*options, alpha=0.0, **more), 5000, 1, 1)
    for step in steps_of(np.random.default_rng(1), 1, 4000):
        ring.add(*step)
    gaps = ring.sample(50).indices.diff()  # of parts of 80 steps: 80 apart each, were they drawn as one
    assert gaps.unique().numel() > 25
    assert ((gaps > 0) & (gaps < 160)).all()


def test_weights_undo_the_priorities():
    ring = proportional()
    for _ in range(5):
        batch = ring.sample(8)
        expected = (8 * CHANCES) ** -0.4
        expected = expected[batch.indices] / expected[batch.indices].max()
        assert batch.weights.tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_they_do_so_more_and_more_by_agent_steps_from_the_first_batch_on():
    ring, _ = rings_of(lambda *options, **more: PrioritisedRing(*options, beta_steps=20, **more), 9, 2, 1)
    steps = list(steps_of(np.random.default_rng(0), 2, 30))
    for step in steps[:10]:
        ring.add(*step)
    assert ring.beta == 0.4
    for number, step in enumerate(steps[10:]):
        ring.sample(4)
        assert ring.beta == pytest.approx(min(1.0, 0.4 + 0.6 * 2 * number / 20))
        ring.add(*step)


@pytest.mark.parametrize("later", [(), (2.0,)])
def test_a_new_step_has_the_highest_priority_so_far(later):
    ring, nothing = proportional(), np.zeros(1, bool)
    for priority in later:  # a lower one than was there before
        ring.update(torch.tensor([4]), torch.tensor([priority]))
    for step in (9, 10):
        ring.add(np.full((1, 1), step), np.zeros(1, int), np.zeros(1), nothing, nothing)
    assert ring._tree[np.array([8, 9])].tolist() == [1.0, 4.0]  # of priority 1 when it came, and 16


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": -0.1}, r"alpha is -0\.1; it has to be between 0 and 1"),
        ({"alpha": float("nan")}, "alpha is nan; it has to be between 0 and 1"),
        ({"beta": 1.5}, r"beta is 1\.5; it has to be between 0 and 1"),
        ({"alpha": 1.0000001}, r"alpha is 1\.0000001; it has to be between 0 and 1"),
        ({"beta_steps": 0}, r"beta_steps is 0; it has to be between 1 and 2\*\*63: beta rises to 1 within them"),
        ({"beta_steps": float("nan")}, r"beta_steps is nan; it has to be between 1 and 2\*\*63"),
        ({"beta_steps": 10**400}, r"beta_steps is 10+; it has to be between 1 and 2\*\*63"),
        ({"n_step": 20}, "transitions of n_step=20 need 24 at least"),
        ({"n_step": 0}, "n_step is 0; it has to be at least 1"),
        ({"stack": 0}, "stack is 0; it has to be at least 1"),
        ({"gamma": 1.5}, r"gamma is 1\.5; it has to be between 0 and 1"),
    ],
)
def test_what_is_out_of_its_range_is_named(options, message):
    with pytest.raises(UsageError, match=message):
        PrioritisedRing(20, 1, (1,), **options)


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_a_batch_larger_than_the_ring_is_refused(kind):
    ring, _ = rings_of(kind, 9, 2, 2)
    for step in steps_of(np.random.default_rng(1), 2, 30):
        ring.add(*step)
    with pytest.raises(
        UsageError,
        match="a batch of 19 cannot be drawn from 18 steps; batch_size, times the environments, has to be at most that",
    ):
        ring.sample(19)
    assert len(ring.sample(18)) == 18


def test_a_batch_goes_to_the_network_with_its_frames_first():
    ring, _ = rings_of(Ring, 9, 2, 2)
    for step in steps_of(np.random.default_rng(1), 2, 12):
        ring.add(*step)
    batch = ring.sample(5)
    moved = batch.for_net("cpu")
    assert moved.states.shape == moved.next_states.shape == (5, 3, 1)
    assert torch.equal(moved.states[:, :, 0], batch.states[:, 0, :])
    assert torch.equal(moved.next_states[:, :, 0], batch.next_states[:, 0, :])
    assert torch.equal(moved.returns, batch.returns)


def test_priorities_of_steps_that_have_left_the_ring_are_passed_over():
    ring, twin = rings_of(PrioritisedRing, 8, 1, 1)
    for step in steps_of(np.random.default_rng(0), 1, 20):
        ring.add(*step)
        twin.add(*step)
    before = ring._tree.total
    ring.update(torch.arange(8), torch.full((8,), 5.0))
    assert (ring._tree[np.arange(8)] > 0).sum() == len(twin.valid())
    assert ring._tree.total == pytest.approx(before * 5.0**0.6)


def test_what_would_be_spread_over_all_environments_is_refused():
    ring, _ = rings_of(Ring, 9, 2, 2)
    given = list(next(steps_of(np.random.default_rng(1), 2, 1)))
    for place, right in enumerate(given):
        for wrong in (right[0], right[:1], np.concatenate([right, right], -1), np.int32(3)):
            with pytest.raises(ValueError, match=rf"it has to be {re.escape(str(right.shape))}"):
                ring.add(*given[:place], wrong, *given[place + 1 :])
    assert len(ring) == 0
    with pytest.raises(UsageError, match="num_envs is 0; it has to be at least 1"):
        Ring(20, 0, (1,))
    ring.add(*given)
    with pytest.raises(UsageError, match="batch_size is 0; it has to be at least 1"):
        ring.sample(0)


def test_priorities_are_absolute_errors_and_a_little_and_no_number_is_no_error():
    errors = torch.tensor([0.0, -2.0, 3.0, float("nan")], requires_grad=True)
    found = priorities(errors)
    assert not found.requires_grad
    assert found.tolist() == pytest.approx([1e-5, 2.00001, 3.00001, 1e-5])


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_priority_that_is_no_positive_number_is_refused(bad):
    ring, _ = rings_of(PrioritisedRing, 8, 1, 1)
    with pytest.raises(ValueError, match="all have to be finite and above 0"):
        ring.update(torch.tensor([0, 1]), torch.tensor([1.0, bad]))
    with pytest.raises(ValueError, match=r"priorities \(1,\) of indices \(2,\); one for each"):
        ring.update(torch.tensor([0, 1]), torch.tensor([1.0]))


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
@pytest.mark.parametrize("count", [4, 20])
def test_a_saved_ring_goes_on_as_the_first_one_does(tmp_path, kind, count):
    ring, _ = rings_of(kind, 9, 2, 2)
    steps = list(steps_of(np.random.default_rng(1), 2, 40))
    for step in steps[: count - 1]:
        ring.add(*step)
    if kind is PrioritisedRing:
        ring.update(ring.sample(4).indices, torch.tensor([0.5, 2.0, 7.0, 3.0]))
    ring.add(*steps[count - 1])  # of the highest priority, which counts once its next state is there
    torch.save(ring.state_dict(), tmp_path / "ring.pt")
    other, _ = rings_of(kind, 9, 2, 2)
    other.load_state_dict(torch.load(tmp_path / "ring.pt", weights_only=True))
    for step in steps[count:]:
        ring.add(*step)
        other.add(*step)
        for a, b in zip(*(dataclasses.astuple(each.sample(5)) for each in (ring, other)), strict=True):
            assert torch.equal(a, b)


def test_a_ring_keeps_copies_of_what_it_is_given():
    ring, twin = rings_of(Ring, 9, 2, 2)
    for step in steps_of(np.random.default_rng(5), 2, 7):
        twin.add(*(array.copy() for array in step))
        ring.add(*step)
        for array in step:
            array[:] = 1
    places = [(s, n) for s in twin.valid() for n in range(2)]
    assert ring._final
    check(batch_of(ring, places), places, twin)


def test_wrong_use_is_told(monkeypatch):
    ring, _ = rings_of(Ring, 9, 2, 2)
    step = next(steps_of(np.random.default_rng(1), 2, 1))
    with pytest.raises(UsageError, match=r"cannot be drawn from 0 steps of each of 2 .* take a larger replay_initial"):
        ring.sample(1)
    with pytest.raises(UsageError, match=r"n_step=2 cannot be drawn from 2 steps .* n_step \(-n\) of 1 at most, or"):
        ring.require(1, more=4)
    ring.require(6, more=5)
    with pytest.raises(UsageError, match="a batch of 7 cannot be drawn from 6 steps"):
        ring.require(7, more=5)
    with pytest.raises(ValueError, match="its final frame is needed"):
        ring.add(*step[:3], np.zeros(2, bool), np.ones(2, bool), None)
    with pytest.raises(UsageError, match=r"has 3 for each of 2 environments; .* need 5 at least"):
        Ring(6, 2, (1,), stack=4)
    monkeypatch.setattr(memory, "free", lambda: 10**9)
    with pytest.raises(UsageError, match=r"needs 7\.08 GB .*, and 1 GB are free; --set replay_size=113026 would fit"):
        Ring(10**6, 8, (84, 84))


def test_states_are_spread_over_what_a_ring_keeps_and_nothing_is_drawn_for_it():
    ring, _ = rings_of(Ring, 20, 2, 1)
    nothing = np.zeros(2, bool)
    for step in range(51):
        ring.add(np.full((2, 1), step), np.zeros(2, int), np.zeros(2), nothing, nothing)
    before = ring._generator.bit_generator.state
    newest = ring.spread(4)[:, -1, 0].tolist()
    assert ring._generator.bit_generator.state == before
    oldest = 51 - ring.length + ring.stack - 1
    assert newest == np.linspace(oldest, 49, 4).astype(int).tolist()


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_the_forecast_is_what_a_ring_takes(kind):
    ring = kind(20_000, 4, (3,), stack=1, dtype=np.float32)
    arrays = [getattr(ring, f"_{name}") for name in ring.ARRAYS]
    if kind is PrioritisedRing:
        arrays += [ring._priorities, *ring._tree._levels]
    assert sum(array.nbytes for array in arrays) == pytest.approx(kind.forecast(20_000, (3,), np.float32), rel=0.02)
