"""Streams of environments that step together, and the rings that they fill."""

from functools import partial

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

import fakes
from lib.envs import vector_env
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Ring
from lib.experience.stream import EnvRange, ExperienceStream, Stream
from lib.nets.masking import MaskSplitter
from ppo_setup import vectorised


def test_environments_that_reject_the_saved_actions_are_reset_on_resume(caplog, monkeypatch):
    def make_stream():
        return Stream(vector_env.make_vector_env("fakes:Refusing-v0", 2), seed=1)

    first = make_stream()
    first.begin()
    for _ in range(4):
        first.step(np.array([0, 1]))
    monkeypatch.setattr(fakes.Refusing, "left", 5)
    resumed = make_stream()
    resumed.load_state_dict(first.state_dict())
    assert "could not be restored" in caplog.text
    assert "(RuntimeError: not allowed)" in caplog.text
    monkeypatch.setattr(fakes.Refusing, "left", 100)
    assert resumed.steps_done == 8
    assert resumed.last_resets.tolist() == [8, 8]
    assert resumed.step(np.array([0, 1])).rewards.tolist() == [0.0, 0.0]


def idle(states, agent_states):
    return np.zeros(len(states), np.int64), agent_states


idle.initial_state = lambda: None  # type: ignore[attr-defined]


def make_stream_and_ring(env_id, kind=Ring):
    source = ExperienceStream(vector_env.make_vector_env(env_id, 2), idle, seed=1)
    return source, kind.for_source(source, 40, n_step=3, gamma=0.5)


def assert_truncated(ring, step, last_states):
    """Assert that the transitions from this step of both environments end and bootstrap from their last states."""
    batch = ring._make_batch(np.full(2, step), np.arange(2), np.ones(2))
    assert np.array_equal(batch.for_net("cpu").next_states.numpy(), last_states)
    assert batch.discounts.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("kind", [Ring, PrioritisedRing])
def test_transitions_end_where_environments_were_reset_on_resume(kind):
    source, ring = make_stream_and_ring("fakes:Forgetful-v0", kind)
    ring.populate(8)
    last = source.states.copy()  # after four of seven steps
    saved = {"source": source.state_dict(), "replay": ring.state_dict()}
    for _ in range(20):  # the new episode may be the same by chance
        resumed, resumed_ring = make_stream_and_ring("fakes:Forgetful-v0", kind)
        resumed.load_state_dict(saved["source"])
        if resumed.interrupted_states is not None:
            break
    assert np.array_equal(resumed.interrupted_states, last)
    resumed_ring.load_state_dict(saved["replay"])
    assert resumed.last_resets.tolist() == [8, 8]
    resumed_ring.populate(8)
    assert_truncated(resumed_ring, 3, last)
    both = np.arange(2)
    next_batch = resumed_ring._make_batch(np.full(2, 4), both, np.ones(2))
    assert np.array_equal(next_batch.states[..., 0].numpy(), next_batch.states[..., -1].numpy())


@pytest.mark.parametrize("num_envs", [2, 16])
def test_games_end_however_many_environments_there_are(monkeypatch, num_envs):
    monkeypatch.setattr(Stream, "RESEED_EVERY", 24)
    stream = Stream(vectorised(lambda: fakes.Counting(10), num_envs), seed=1)
    stream.begin()
    for _ in range(40):
        stream.step(np.zeros(num_envs, np.int64))
    assert [episode.length for episode in stream.pop_episodes()] == [10] * 4 * num_envs
    assert stream.last_resets.min() >= 24


def test_a_game_without_an_end_is_truncated_and_reported(monkeypatch, caplog):
    monkeypatch.setattr(Stream, "RESEED_EVERY", 6)
    monkeypatch.setattr(Stream, "MAX_OVERDUE", 5)
    stream = Stream(vectorised(lambda: fakes.Counting(100), 2), seed=1, env_range=EnvRange(3, 2, 6))
    stream.begin()
    ends = [stream.step(np.zeros(2, np.int64)).truncated.tolist() for _ in range(12)]
    assert ends == ([[False] * 2] * 5 + [[True] * 2]) * 2
    assert stream.pop_episodes() == []
    record = caplog.records[0]
    assert "Environment 3 has not ended its episode for 5 steps" in record.message


@pytest.mark.parametrize(
    ("env_id", "envs", "restart", "saved_at", "until"),
    [("CartPole-v1", 3, 300, 500, 700), ("BreakoutNoFrameskip-v4", 2, 100, 200, 240)],
)
def test_a_stream_is_restored_whose_environments_were_reset_at_different_times(
    monkeypatch, env_id, envs, restart, saved_at, until
):
    monkeypatch.setattr(Stream, "RESEED_EVERY", restart)

    def make_stream():
        return Stream(vector_env.make_vector_env(env_id, envs), seed=1)

    def play(stream, steps):
        return [(stream.step(actions), stream.states.copy()) for actions in steps]

    actions = np.random.default_rng(1).integers(2, size=(until, envs))
    first, resumed = make_stream(), make_stream()
    first.begin()
    play(first, actions[:saved_at])
    saved = first.state_dict()
    starts = saved["snapshot"]["starts"].tolist()
    assert min(starts) == 0
    assert len(set(starts)) == envs
    resumed.load_state_dict(saved)
    rest = actions[saved_at:]
    for (step, states), (other, others) in zip(play(first, rest), play(resumed, rest), strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(step[:3], other[:3], strict=True))
        assert np.array_equal(states, others)
    assert first.last_resets.tolist() == resumed.last_resets.tolist()
    assert [each[:3] for each in first.pop_episodes()] == [each[:3] for each in resumed.pop_episodes()]
    for one, two in ((first.state_dict(), resumed.state_dict()),):
        assert all(torch.equal(one["snapshot"][name], two["snapshot"][name]) for name in one["snapshot"])


def test_environments_that_raise_at_an_illegal_action_are_restored(monkeypatch):
    monkeypatch.setattr(Stream, "RESEED_EVERY", 40)

    def make_stream():
        return Stream(vector_env.make_vector_env("examples.blocks:Blocks-v0", 3), seed=1)

    def step_both(*streams):
        _, allowed = MaskSplitter(streams[0].envs.single_observation_space)(torch.from_numpy(streams[0].states))
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in allowed.numpy()])
        return [stream.step(actions).rewards.tolist() for stream in streams]

    rng = np.random.default_rng(1)
    first, resumed = make_stream(), make_stream()
    first.begin()
    for _ in range(60):
        step_both(first)
    assert len(set(first.state_dict()["snapshot"]["starts"].tolist())) == 3
    resumed.load_state_dict(first.state_dict())
    assert resumed.interrupted_states is None
    for _ in range(20):
        assert np.array_equal(first.states, resumed.states)
        rewards, others = step_both(first, resumed)
        assert rewards == others


@pytest.mark.parametrize("length", [3, 100])
def test_truncated_episodes_are_bootstrapped_from_their_final_states(monkeypatch, length):
    monkeypatch.setattr(Stream, "RESEED_EVERY", 4)
    monkeypatch.setattr(Stream, "MAX_OVERDUE", 1)
    source = ExperienceStream(vectorised(lambda: fakes.Counting(length, truncates=True), 2), idle, seed=1)
    ring = Ring.for_source(source, 40, n_step=2, gamma=0.5)
    ring.populate(24)
    # Observations are 0, 1, 2 and finally 3; rewards are 1, 2, 3. Longer episodes are truncated after two steps of each
    # environment, when a reset is due, and one more.
    lengths = [3, 3, 3, 3]
    expected = [
        (at, min(at + 2, length), at + 1 + (0.5 * (at + 2) if at + 2 <= length else 0), 0.5 ** min(2, length - at))
        for length in lengths
        for at in range(length)
    ]
    for step, (state, next_state, total, discount) in enumerate(expected[:9]):
        batch = ring._make_batch(np.full(2, step), np.arange(2), np.ones(2))
        result = batch.states, batch.next_states, batch.returns, batch.discounts
        assert [tensor.flatten().tolist() for tensor in result] == [
            *([state] * 2, [next_state] * 2),
            *([total] * 2, [discount] * 2),
        ], step


def test_the_agent_state_is_reset_after_each_episode():
    def counting(states, agent_states):
        assert [state + 1 for state in agent_states] == (states[:, 0] + 1).tolist()
        return np.zeros(2, np.int64), [state + 1 for state in agent_states]

    counting.initial_state = lambda: 0  # type: ignore[attr-defined]
    envs = SyncVectorEnv([partial(fakes.Counting, n) for n in (2, 3)], autoreset_mode=AutoresetMode.SAME_STEP)
    steps = iter(ExperienceStream(RecordEpisodeStatistics(vector_env.FinalStates(envs)), counting))
    for _ in range(12):
        next(steps)


@pytest.mark.parametrize("env_id", ["fakes:Board-method-v0", "fakes:Vector-info-v0", "fakes:Image-info-v0"])
def test_sampled_states_have_their_masks(env_id):
    envs = vector_env.make_vector_env(env_id, 3)

    def agent(states, agent_states):
        played.append(states.copy())
        return np.full(3, (len(played) + 1) % 5), agent_states

    played = []
    agent.initial_state = lambda: None  # type: ignore[attr-defined]
    source = ExperienceStream(envs, agent, seed=1)
    ring = Ring.for_source(source, 60)
    ring.populate(48)
    batch = ring.sample(40)
    states = batch.for_net("cpu").states.numpy()
    for index, state in zip(batch.indices.tolist(), states, strict=True):
        step, env = divmod(index, 3)
        assert np.array_equal(state, played[step][env])
