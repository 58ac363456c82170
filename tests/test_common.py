import dataclasses
from types import SimpleNamespace

import numpy as np
import ptan
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ptan.experience import ExperienceFirstLast

from fakes import Table
from lib import common, dqn_extra
from lib.envs.frames import LazyFrames
from lib.experience.interface import Stopped
from lib.hyperparameters import HYPERPARAMS
from lib.nets.masking import INVALID
from oracles import td


def lazy(*numbers):
    return LazyFrames(np.stack([np.full((2, 2), n, np.uint8) for n in numbers]), len(numbers), len(numbers))


def test_unpack_batch_stacks_transitions_and_replaces_a_missing_last_state():
    batch = [
        ExperienceFirstLast(lazy(1, 2), 3, 0.5, lazy(2, 9)),
        ExperienceFirstLast(lazy(5, 6), 0, -1.0, None),
    ]
    states, actions, rewards, dones, last_states = common.unpack_batch(batch)
    kinds = [str(array.dtype) for array in (states, actions, rewards, dones, last_states)]
    assert kinds == ["uint8", "int64", "float32", "uint8", "uint8"]
    assert states.shape == last_states.shape == (2, 2, 2, 2)
    assert states[:, :, 0, 0].tolist() == [[1, 2], [5, 6]]
    assert last_states[:, :, 0, 0].tolist() == [[2, 9], [5, 6]]
    assert (actions.tolist(), rewards.tolist(), dones.tolist()) == ([3, 0], [0.5, -1.0], [0, 1])


BATCH = [
    ExperienceFirstLast(np.array([0], np.uint8), 1, 1.0, np.array([2], np.uint8)),
    ExperienceFirstLast(np.array([1], np.uint8), 0, -1.0, None),
]


@pytest.mark.parametrize("no_grad", [True, False])
def test_gradients_reach_only_the_values_of_the_actions_taken(no_grad):
    net = Table([[7.0, 2.0], [0.5, 7.0], [70.0, 70.0]])  # 7 and 70 must not be used
    target = Table([[90.0, 90.0], [90.0, 90.0], [3.0, 4.0]])
    # First: 1 + 0.5 * max(3, 4) = 3 against 2. Second: terminal, so -1 against 0.5.
    loss = common.calc_loss_dqn(BATCH, net, target, gamma=0.5, no_grad=no_grad)
    assert loss.item() == pytest.approx((1.0 + 2.25) / 2)
    loss.backward()
    assert net.rows.grad.tolist() == [[0.0, -1.0], [1.5, 0.0], [0.0, 0.0]]
    assert target.rows.grad is None
    assert common.calc_loss_dqn(BATCH, net, target, gamma=0.5, huber=True).item() == pytest.approx((0.5 + 1.0) / 2)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(0, 2**31), st.floats(0, 1))
def test_calc_loss_dqn_equals_a_loop_over_transitions(size, n_actions, seed, gamma):
    random = np.random.default_rng(seed)
    net, target = (Table(random.normal(size=(20, n_actions)).tolist()) for _ in range(2))
    states, last_states = random.integers(0, 20, (2, size, 1)).astype(np.uint8)
    rows = [(int(random.integers(n_actions)), float(random.normal()), random.random() < 0.3) for _ in range(size)]
    batch = [
        ExperienceFirstLast(state, action, reward, None if done else last_state)
        for state, last_state, (action, reward, done) in zip(states, last_states, rows, strict=True)
    ]
    values, next_values = net.rows[states[:, 0].tolist()].tolist(), target.rows[last_states[:, 0].tolist()].tolist()
    expected = td.dqn_loss(rows, values, next_values, gamma)
    assert common.calc_loss_dqn(batch, net, target, gamma).item() == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_epsilon_decays_linearly_to_its_final_value():
    selector = ptan.actions.EpsilonGreedyActionSelector()
    params = dataclasses.replace(HYPERPARAMS["pong"], epsilon_frames=100, epsilon_final=0.1)
    tracker = common.EpsilonTracker(selector, params)
    for frame, epsilon in ((0, 1.0), (1, 0.99), (50, 0.5), (90, 0.1), (10**9, 0.1)):
        tracker.frame(frame)
        assert selector.epsilon == pytest.approx(epsilon)


def test_a_restored_tracker_sets_epsilon_at_once():
    tracker, resumed = (common.EpsilonTracker(SimpleNamespace(), HYPERPARAMS["pong"]) for _ in range(2))
    tracker.frame(50_000)
    resumed.load_state_dict(tracker.state_dict())
    assert resumed.selector.epsilon == tracker.selector.epsilon == 0.5


class TapedBuffer:
    def __init__(self, tape):
        self.tape = tape

    def __len__(self):
        return sum(int(line.split()[1]) for line in self.tape if line.startswith("populate"))

    def populate(self, samples):
        self.tape.append(f"populate {samples}")

    def sample(self, batch_size):
        self.tape.append(f"sample {batch_size}")
        return self.tape[-1]


def test_batch_generator_fills_the_buffer_once_then_alternates_steps_and_batches():
    tape = []
    batches = common.batch_generator(TapedBuffer(tape), initial=7, batch_size=3, steps=2)
    assert tape == []
    assert [next(batches), next(batches)] == ["sample 3", "sample 3"]
    assert tape == ["populate 7", "populate 2", "sample 3", "populate 2", "sample 3"]
    next(common.batch_generator(TapedBuffer(tape), initial=13, batch_size=3, steps=2))  # as in a resumed run
    assert tape[5:] == ["populate 2", "populate 2", "sample 3"]


def test_the_batches_end_when_the_source_is_stopped_or_a_list_of_transitions_is_used_up():
    class Stopping(TapedBuffer):
        def populate(self, samples):
            super().populate(samples)
            if len(self.tape) > 4:
                raise Stopped

    assert len(list(common.batch_generator(Stopping([]), initial=7, batch_size=3))) == 2
    buffer = dqn_extra.PrioReplayBuffer([BATCH[0]] * 10, 100)
    assert len(list(common.batch_generator(buffer, initial=4, batch_size=2, steps=2))) == 3


def test_random_actions_are_drawn_uniformly_from_the_valid_ones():
    np.random.seed(1)
    scores = np.tile(np.array([INVALID, 1.0, 5.0, INVALID], np.float32), (20_000, 1))
    actions = common.EpsilonGreedyActionSelector(epsilon=0.5)(scores)
    assert np.bincount(actions, minlength=4) / 20_000 == pytest.approx([0.0, 0.25, 0.75, 0.0], abs=0.02)


def test_without_a_mask_the_actions_equal_those_of_ptans_selector():
    scores = np.random.default_rng(1).normal(size=(300, 4))
    actions = []
    for selector in (common.EpsilonGreedyActionSelector, common.EpsilonGreedyActionSelector.__base__):
        np.random.seed(2)
        actions.append(selector(epsilon=0.5)(scores))
    assert np.array_equal(*actions)
