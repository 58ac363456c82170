from collections import Counter

import numpy as np
import ptan
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from ptan.experience import ExperienceFirstLast

from fakes import Catch, Counting, Forgetful, Random, Refusing
from lib import common
from lib.envs.frames import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.experience.replay_buffer import ReplayBuffer
from lib.experience.source import ExperienceSourceFirstLast
from lib.system import memory
from oracles.replay import ListReplay


class Scripted(ptan.agent.BaseAgent):
    """Acts by its own count of calls, 0, 1, 0, 1, ..., whatever it sees."""

    def __init__(self):
        self.calls = 0

    def __call__(self, states, agent_states):
        self.calls += 1
        return np.full(len(states), self.calls % 2), agent_states


def source_of(*envs, seed=0):
    return ExperienceSourceFirstLast(list(envs), Scripted(), gamma=0.9, seed=seed)


def take(source, count):
    transitions = iter(source)
    return [next(transitions) for _ in range(count)]


def last(transition):
    return None if transition.last_state is None else int(transition.last_state[0])


# What was wrong in ptan, shown on ptan, and its repair.


def test_ptan_takes_a_truncation_for_a_terminal_state_and_we_do_not():
    theirs = ptan.experience.ExperienceSourceFirstLast(Counting(truncates=True), Scripted(), gamma=0.9)
    assert last(take(theirs, 4)[-1]) is None
    assert last(take(source_of(Counting(truncates=True)), 4)[-1]) == 4
    assert last(take(source_of(Counting(truncates=False)), 4)[-1]) is None


def test_ptan_is_a_step_late_and_we_are_not():
    theirs, ours = Counting(length=9), Counting(length=9)
    take(ptan.experience.ExperienceSourceFirstLast(theirs, Scripted(), gamma=0.9), 3)
    take(source_of(ours), 3)
    assert (theirs.t, ours.t) == (4, 3)


def test_ptan_repeats_one_seed_and_we_give_every_episode_its_own():
    theirs = [Counting(length=1), Counting(length=1)]
    take(ptan.experience.ExperienceSourceFirstLast(theirs, Scripted(), gamma=0.9, env_seed=5), 6)
    assert {seed for env in theirs for seed in env.seeds} == {5}
    ours = [Counting(length=1), Counting(length=1)]
    take(source_of(*ours, seed=5), 6)
    seeds = [seed for env in ours for seed in env.seeds]
    assert len(set(seeds)) == len(seeds) >= 6


def test_ptans_buffer_wrapper_drops_the_seed_and_our_frame_stack_does_not():
    for stack, expected in ((ptan.common.wrappers.BufferWrapper, None), (FrameStack, 7)):
        env = Counting()
        stack(env, 2).reset(seed=7)
        assert env.seeds == [expected]


# The source.


def test_transitions_rewards_and_ends_in_order():
    transitions = take(source_of(Counting(length=3)), 5)
    seen = [(int(t.state[0]), t.action, t.reward, last(t)) for t in transitions]
    assert seen == [(0, 1, 1.0, 1), (1, 0, 2.0, 2), (2, 1, 3.0, None), (0, 0, 1.0, 1), (1, 1, 2.0, 2)]


def test_environments_take_turns_and_share_one_call_of_the_agent():
    source = source_of(Counting(length=2), Counting(length=3))
    seen = [(int(t.state[0]), last(t)) for t in take(source, 6)]
    assert seen == [(0, 1), (0, 1), (1, None), (1, 2), (0, 1), (2, None)]
    assert source.agent.calls == 3


def test_episodes_are_told_with_return_length_and_step():
    source = source_of(Counting(length=3))
    take(source, 7)
    episodes = source.pop_episodes()
    assert [(e.total, e.length, e.step) for e in episodes] == [(6.0, 3, 3), (6.0, 3, 6)]
    assert source.pop_episodes() == []
    take(source, 3)
    assert source.pop_rewards_steps() == [(6.0, 3)]


def test_counts_steps_and_calls_whoever_watches_them():
    watched = []
    source = source_of(Counting(), Counting())
    source.on_step = lambda steps: watched.append(source.steps_done)
    take(source, 5)
    assert watched == [1, 2, 3, 4, 5, 6]
    assert set(source.clock.seconds) == {"act", "environment"}


def test_the_same_seed_gives_the_same_episodes_and_another_does_not():
    def states(seed):
        return [int(t.last_state[0]) for t in take(source_of(Random(length=99), seed=seed), 20)]

    assert states(3) == states(3) != states(4)


@pytest.mark.parametrize("stop_at", [1, 2, 3, 4, 5, 7, 11])
def test_a_resumed_source_goes_on_as_the_one_that_did_not_stop(stop_at):
    def make():
        return source_of(Random(length=4), Random(length=3), Random(length=50, truncates=True), seed=9)

    def content(transitions):
        return [(int(t.state[0]), t.action, t.reward, last(t)) for t in transitions]

    straight = make()
    expected = content(take(straight, 30))

    stopped = make()
    before = content(take(stopped, stop_at))
    saved = stopped.state_dict()
    resumed = make()
    resumed.load_state_dict(saved)
    resumed.agent.calls = stopped.agent.calls
    assert before + content(take(resumed, 30 - stop_at)) == expected
    assert resumed.steps_done == straight.steps_done


def test_an_environment_that_does_not_repeat_itself_is_said_so(caplog):
    source = source_of(FrameStack(Forgetful()))
    for _ in range(20):  # by chance the ball may fall where it fell before
        take(source, 3)
        resumed = source_of(FrameStack(Forgetful()))
        resumed.load_state_dict(source.state_dict())
    assert "Environment 0 does not repeat itself" in caplog.text


def test_an_environment_that_refuses_what_it_took_begins_its_next_episode(caplog, monkeypatch):
    source = source_of(FrameStack(Refusing()))
    take(source, 3)
    monkeypatch.setattr(Refusing, "left", 2)
    resumed = source_of(FrameStack(Refusing()))
    resumed.load_state_dict(source.state_dict())
    assert "does not repeat itself" in caplog.text
    monkeypatch.setattr(Refusing, "left", 100)
    assert len(take(resumed, 6)) == 6


def test_an_environment_whose_replay_ends_early_begins_its_next_episode(caplog):
    source = source_of(Counting(length=9))
    take(source, 5)
    shorter = source_of(Counting(length=3))
    shorter.load_state_dict(source.state_dict())
    assert "Environment 0 does not repeat itself" in caplog.text
    assert int(take(shorter, 1)[0].state[0]) == 0


def test_another_number_of_environments_is_refused():
    with pytest.raises(UsageError, match="has 2 environments, asked for 1"):
        source_of(Counting()).load_state_dict(source_of(Counting(), Counting()).state_dict())


# The buffer.


def numbered(n):
    return ExperienceFirstLast(
        np.array([n % 256], np.uint8), n % 5, float(n), None if n % 3 == 0 else np.array([n + 1])
    )


class RingTwin(RuleBasedStateMachine):
    """Random operations on the ring and on a list that forgets; after each they hold the same transitions."""

    def __init__(self):
        super().__init__()
        self.count = 0
        self.capacity = 7
        self.ring = self.fresh()
        self.twin = ListReplay(self.capacity)

    def fresh(self):
        ring = ReplayBuffer(source_of(Counting()), self.capacity)
        ring.experience_source_iter = iter(self.endless())
        return ring

    def endless(self):
        while True:
            self.count += 1
            item = numbered(self.count)
            self.twin.add(item)
            yield item

    @rule(samples=st.integers(0, 20))
    def populate(self, samples):
        self.ring.populate(samples)

    @rule()
    def save_and_load(self):
        state = self.ring.state_dict()
        self.ring = self.fresh()
        self.ring.load_state_dict(state)

    @rule(batch_size=st.integers(1, 9))
    def sample(self, batch_size):
        if len(self.twin.items) < batch_size:
            with pytest.raises(UsageError, match=f"a batch of {batch_size} cannot be drawn"):
                self.ring.sample(batch_size)
        else:
            held = {item.reward for item in self.twin.items}
            assert {item.reward for item in self.ring.sample(batch_size)} <= held

    @invariant()
    def same_transitions(self):
        oldest = self.ring.pos if len(self.ring) == self.capacity else 0
        held = [self.ring.buffer[(oldest + i) % self.capacity] for i in range(len(self.ring))]
        assert [(t.action, t.reward, last(t)) for t in held] == [(t.action, t.reward, last(t)) for t in self.twin.items]


TestRingTwin = RingTwin.TestCase
TestRingTwin.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_sampling_reaches_every_slot_about_equally_often():
    np.random.seed(0)
    ring = ReplayBuffer(source_of(Counting(length=1000)), 10)
    ring.populate(25)
    counts = Counter(t.reward for _ in range(1000) for t in ring.sample(9))
    assert len(counts) == 10
    chi_square = sum((count - 900) ** 2 / 900 for count in counts.values())
    assert chi_square < 27.9  # 99.9 % of a chi-square with 9 degrees of freedom


def stacked_ring(capacity, steps):
    ring = ReplayBuffer(source_of(FrameStack(Counting(length=50))), capacity)
    ring.populate(steps)
    return ring


def test_a_saved_ring_holds_each_frame_once_and_comes_back_the_same():
    ring = stacked_ring(30, 40)
    state = ring.state_dict()
    assert len(state["transitions"]["frames"]) == 30 + 4  # four frames of the oldest state, then one a step
    back = stacked_ring(30, 0)
    back.load_state_dict(state)
    for ours, theirs in zip(ring.buffer, back.buffer, strict=True):
        assert isinstance(theirs.state, LazyFrames)
        assert np.array_equal(ours.state, theirs.state)
        assert np.array_equal(ours.last_state, theirs.last_state)
    assert all(torch.equal(a, b) for a, b in _tensors(state, back.state_dict()))


def _tensors(a, b):
    pairs = ((a["transitions"][name], b["transitions"][name]) for name in a["transitions"])
    return [(x, y) for x, y in pairs if isinstance(x, torch.Tensor)]


def test_loaded_frames_leave_memory_one_by_one():
    back = stacked_ring(30, 0)
    back.load_state_dict(stacked_ring(30, 40).state_dict())
    assert all(frame.base is None for t in back.buffer for frame in t.state.frames)


@pytest.mark.parametrize(("capacity", "initial", "kept"), [(100, 9, 11), (10, 50, 10)])
def test_a_batch_that_can_never_be_drawn_is_refused_before_a_step(capacity, initial, kept):
    env = Counting()
    ring = ReplayBuffer(source_of(env), capacity)
    with pytest.raises(UsageError, match=f"a batch of 12 cannot be drawn from {kept} transitions"):
        common.batch_generator(ring, initial, 12, steps=2)
    assert not ring.buffer
    assert env.seeds == []
    assert len(next(common.batch_generator(ring, initial, kept, steps=2))) == kept


def test_a_ring_that_cannot_fit_is_refused_with_one_that_would(monkeypatch):
    monkeypatch.setattr(memory, "free", lambda: 10_000_000)
    source = source_of(FrameStack(Counting()))
    with pytest.raises(UsageError, match=r"replay of 1,000,000 transitions needs 0\.702 GB .* 0\.01 GB are free"):
        ReplayBuffer(source, 1_000_000)
    fitting = int(0.8 * 10_000_000 / 702)
    assert ReplayBuffer(source, fitting).capacity == fitting
    saved, unsaved = (ReplayBuffer.forecast(FrameStack(Catch(9)), 1000, saved) for saved in (True, False))
    assert saved - unsaved == 1000 * 81
