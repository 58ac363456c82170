"""Contract of experience sources in this process: resumed at any step, they equal uninterrupted ones bit for bit."""

import io
import itertools
import zlib
from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

import fakes
from lib.envs import vector_env
from lib.envs.single_env import make_env
from lib.errors import Fault, UsageError
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Ring
from lib.experience.stream import ExperienceStream, Snapshot, Stream, without_actions
from lib.experience.transitions import ExperienceSourceFirstLast
from lib.nets.masking import MaskSplitter
from ppo_setup import vectorised


class ByState:
    """Agent whose actions depend on the states alone, and are allowed."""

    def __init__(self, space, n_actions):
        self.split, self.n_actions = MaskSplitter(space), n_actions

    def __call__(self, states, agent_states):
        _, allowed = self.split(torch.from_numpy(states))
        choices = np.ones((len(states), self.n_actions), bool) if allowed is None else allowed.numpy()
        numbers = [zlib.crc32(state.tobytes()) for state in states]
        actions = [np.flatnonzero(row)[number % row.sum()] for row, number in zip(choices, numbers, strict=True)]
        return np.array(actions), agent_states


def stream(env_id, num_envs, seed=1, **options):
    envs = vector_env.make_vector_env(env_id, num_envs, **options)
    agent = ByState(envs.single_observation_space, int(envs.single_action_space.n))
    return ExperienceStream(envs, agent, seed=seed)


def single(*envs, seed=1):
    agent = ByState(envs[0].observation_space, int(envs[0].action_space.n))
    return ExperienceSourceFirstLast(list(envs), agent, gamma=0.9, seed=seed)


def of_random_numbers(seed=1):
    return single(fakes.Random(length=4), fakes.Random(length=3), fakes.Random(length=50, truncates=True), seed=seed)


SOURCES = {  # function that makes a source, RESEED_EVERY, and the number of items to take
    "one by one": (partial(stream, "CartPole-v1", 3), 100, 120),
    "with masks": (partial(stream, "examples.blocks:Blocks-v0", 3), 40, 90),
    "with a curriculum": (partial(stream, "fakes:Curriculum-v0", 3), 40, 90),
    "curricula in processes": (partial(stream, "fakes:Levels-v0", 3, processes=True), 40, 90),
    "processes": (partial(stream, "fakes:Catch-v0", 3, processes=True), 60, 60),
    "list": (of_random_numbers, 0, 60),
    "list of images": (lambda seed=1: single(make_env("fakes:Coded-v0"), make_env("fakes:Coded-v0"), seed=seed), 0, 40),
}


def content(item):
    """Return the bytes of a step or a transition."""
    values = item if isinstance(item, tuple) else (item.state, item.action, item.reward, item.last_state)
    return [None if each is None else np.asarray(each).tobytes() for each in values]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SOURCES)
def test_a_resumed_source_equals_the_uninterrupted_one(kind, monkeypatch):
    make, reseed_every, count = SOURCES[kind]
    if reseed_every:
        monkeypatch.setattr(Stream, "RESEED_EVERY", reseed_every)
    straight, stopped, resumed = make(), make(), make()
    expected = list(map(content, itertools.islice(iter(straight), count)))
    taken = list(map(content, itertools.islice(iter(stopped), count // 2)))
    file = io.BytesIO()
    torch.save(stopped.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    starts = saved["snapshot"]["starts"]
    assert min(starts) == 0
    assert len(set(starts.tolist())) > 1 or kind == "processes"  # reset at different steps
    resumed.load_state_dict(saved)
    assert taken + list(map(content, itertools.islice(iter(resumed), count - count // 2))) == expected
    assert resumed.interrupted_states is None
    assert resumed.steps_done == straight.steps_done
    episodes = [[each[:3] for each in source.pop_episodes()] for source in (straight, resumed)]
    assert episodes[0] == episodes[1] != []
    for name, value in straight.state_dict()["snapshot"].items():
        assert torch.equal(resumed.state_dict()["snapshot"][name], value)
    assert list(map(content, itertools.islice(iter(make(seed=2)), 9))) != expected[:9]


def test_a_state_that_no_checkpoint_can_hold_is_left_out_with_a_warning(monkeypatch, caplog):
    monkeypatch.setattr(fakes.Curriculum, "state_dict", lambda env: {"first": {env.first}})
    source = stream("fakes:Curriculum-v0", 2)
    source.begin()
    assert source.state_dict()["carried"] is None
    assert "is lost on resume: its state_dict holds a set" in caplog.text


@pytest.mark.parametrize("kind", ["one by one", "list of images"])
def test_without_the_actions_of_its_state_a_source_starts_new_episodes_at_once(kind, monkeypatch):
    make, _, count = SOURCES[kind]
    source, resumed, new = make(), make(), make()
    for _ in zip(range(count), source, strict=False):
        pass
    monkeypatch.setattr(Stream, "_replay", None)
    saved = source.state_dict()
    resumed.load_state_dict(without_actions({"actors": [saved]})["actors"][0])
    assert "actions" in saved["snapshot"]
    assert resumed.steps_done == source.steps_done
    assert np.array_equal(resumed.interrupted_states, source.states)
    assert (resumed.state_dict()["snapshot"]["resets"] > saved["snapshot"]["resets"]).all()
    new.begin()
    assert (resumed.states != new.states).any()  # not the episodes of a new run


def test_environments_that_reach_other_states_are_reset(caplog):
    source, resumed = (single(make_env("fakes:Forgetful-v0"), make_env("fakes:Forgetful-v0")) for _ in range(2))
    for _ in zip(range(8), source, strict=False):
        pass
    resumed.load_state_dict(source.state_dict())
    assert np.array_equal(resumed.interrupted_states, source.states)
    assert "the level of a curriculum, is lost" in caplog.text
    assert resumed.steps_done == source.steps_done
    next(iter(resumed))


@pytest.mark.slow
@pytest.mark.parametrize("processes", [False, True])
def test_a_resume_that_an_environment_refuses_says_what_to_do(processes):
    first, resumed = (stream("fakes:Number-info-v0", 3, processes=processes) for _ in range(2))
    first.begin()
    first.step(np.ones(3, np.int64))
    saved = first.state_dict()
    saved["snapshot"]["actions"][:] = 0  # the game has changed, and forbids this action
    with pytest.raises(Fault, match=r"could not be restored .*not allowed.* Resume once with --new-episodes"):
        resumed.load_state_dict(saved)
    first.close()
    resumed.close()


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_transitions_end_where_environments_were_reset_on_resume(kind):
    def make():
        source = stream("fakes:Forgetful-v0", 2)
        return source, kind(source, 40, n_step=3, gamma=0.5)

    source, ring = make()
    ring.populate(8)
    last = source.states.copy()  # after four of seven steps
    resumed, resumed_ring = make()
    resumed.load_state_dict(source.state_dict())
    resumed_ring.load_state_dict(ring.state_dict())
    assert resumed.state_dict()["snapshot"]["resets"].tolist() == [8, 8]
    resumed_ring.populate(8)
    batch = resumed_ring._make_batch(np.full(2, 3), np.arange(2), np.ones(2))
    assert np.array_equal(batch.for_net("cpu").next_states.numpy(), last)
    assert batch.discounts.tolist() == [0.5, 0.5]
    next_batch = resumed_ring._make_batch(np.full(2, 4), np.arange(2), np.ones(2))
    assert np.array_equal(next_batch.states[..., 0].numpy(), next_batch.states[..., -1].numpy())


def test_truncated_episodes_are_bootstrapped_from_their_final_states(monkeypatch):
    monkeypatch.setattr(Stream, "RESEED_EVERY", 4)
    envs = vectorised(lambda: fakes.Counting(3, truncates=True), 2)
    source = ExperienceStream(envs, ByState(envs.single_observation_space, 2), seed=1)
    ring = Ring(source, 40, n_step=2, gamma=0.5)
    ring.populate(24)
    # Observations are 0, 1, 2 and finally 3; rewards are 1, 2, 3.
    expected = [(0, 2, 1 + 0.5 * 2, 0.25), (1, 3, 2 + 0.5 * 3, 0.25), (2, 3, 3, 0.5)] * 3
    for step, (state, next_state, total, discount) in enumerate(expected):
        batch = ring._make_batch(np.full(2, step), np.arange(2), np.ones(2))
        result = batch.states, batch.next_states, batch.returns, batch.discounts
        assert [tensor.flatten().tolist() for tensor in result] == [
            *([state] * 2, [next_state] * 2),
            *([total] * 2, [discount] * 2),
        ], step


@pytest.mark.parametrize("env_id", ["fakes:Board-method-v0", "fakes:Image-info-v0"])
def test_sampled_states_have_their_masks(env_id):
    source, played = stream(env_id, 3), []
    ring = Ring(source, 60)
    act = source.agent
    source.agent = lambda states, *rest: (played.append(states.copy()), act(states, *rest))[1]
    ring.populate(48)
    batch = ring.sample(40)
    for index, state in zip(batch.indices.tolist(), batch.for_net("cpu").states.numpy(), strict=True):
        step, env = divmod(index, 3)
        assert np.array_equal(state, played[step][env])


def test_a_ring_keeps_actions_of_a_box_as_they_were_played():
    played, random = [], np.random.default_rng(0)

    def agent(states, agent_states):
        played.append(random.uniform(-2, 2, (3, 1)).astype(np.float32))
        return played[-1], agent_states

    ring = Ring(ExperienceStream(vector_env.make_vector_env("Pendulum-v1", 3, any_actions=True), agent), 30)
    ring.populate(30)
    batch = ring.sample(40)
    steps, envs = divmod(batch.indices.numpy(), 3)
    assert np.array_equal(batch.actions.numpy(), np.stack(played)[steps, envs])


def test_environments_that_reset_one_step_late_are_refused():
    with pytest.raises(UsageError, match="resets one step late; use make_vector_env"):
        Stream(SyncVectorEnv([lambda: fakes.Counting(3)]))


STEPS = st.tuples(st.just("append"), st.integers(1, 6))
RESETS = st.tuples(st.just("restart"), st.lists(st.booleans(), min_size=2, max_size=2).filter(any))
SAVES = st.tuples(st.just("save"), st.none())


def seed_of(env, reset):
    return 1000 * reset + env


def new_snapshot():
    snapshot = Snapshot(seed_of, 2, Discrete(9))
    snapshot.ROOM = 4
    return snapshot


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(STEPS, STEPS, RESETS, SAVES), max_size=40))
def test_a_snapshot_equals_lists(operations):
    """Its seeds, actions and traces. Steps before all resets are dropped."""
    snapshot = new_snapshot()
    snapshot.restart(0)
    resets, lists, traces, count, longest = [0, 0], [[], []], [], 0, 0
    for operation, argument in operations:
        if operation == "append":
            for step in range(count, count + 2 * argument, 2):
                chosen = np.array([step, step + 1])
                snapshot.append(chosen)
                chosen[:] = -1  # an agent may overwrite its array
            for env, actions in enumerate(lists):
                actions.extend(range(count + env, count + 2 * argument, 2))
                traces.append((snapshot.trace(env, argument, "last"), resets[env], list(actions), argument))
            count += 2 * argument
        elif operation == "restart":
            snapshot.restart(count, np.array(argument))
            for env in np.flatnonzero(argument).tolist():
                resets[env], lists[env] = count, []
        else:
            saved = snapshot.state_dict()
            assert len(saved["actions"]) == max(map(len, lists))
            snapshot = new_snapshot()
            snapshot.load_state_dict(saved)
            assert all(
                torch.equal(snapshot.state_dict()[name], saved[name]) for name in ("resets", "starts", "actions")
            )
        kept = [snapshot.actions[start:, env].tolist() for env, start in enumerate(snapshot.starts)]
        assert kept == lists
        longest = max(longest, *map(len, lists))
        assert len(snapshot.actions) <= 2 * longest + snapshot.ROOM
        assert snapshot.seeds() == [1000 * resets[0], 1000 * resets[1] + 1]
    for env, (trace, reset, actions, length) in enumerate(traces):
        assert (trace.seed, trace.actions.tolist()) == (seed_of(env % 2, reset), actions)
        assert (trace.first, trace.last_state) == (len(actions) - length, "last")


def test_an_error_names_the_environment_by_its_number_in_the_run():
    stream = Stream(vector_env.make_vector_env("fakes:Failing-nan-v0", 2), first_env=4, total_envs=6)
    stream.begin()
    with pytest.raises(Fault, match=r"^environment [45] of fakes:Failing-nan-v0 \(episode \d+ from seed \d+, at step"):
        list(map(stream.step, np.zeros((200, 2), np.int64)))
