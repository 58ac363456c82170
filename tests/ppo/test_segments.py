"""PPO's actors and segments: any number of actors on any engine plays the same steps as one sampler."""

import hashlib

import numpy as np
import pytest
import torch

from lib.envs import vector_env
from lib.experience.stream import EnvRange
from lib.ppo import actor as actor_module
from lib.ppo import segments as segments_module
from lib.ppo.actor import ActorSettings, PPOActor, Segment
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner, join_segments
from lib.ppo.rollout import Agent, Sampler
from lib.ppo.segments import Segments
from lib.ppo.segments import run as run_ppo
from lib.system.shared_memory import Slots
from ppo_setup import trainer_of

pytestmark = pytest.mark.usefixtures("warm_fork_server")


def learner_of(acting, **options):
    torch.manual_seed(0)
    return PPOLearner(
        trainer_of(FastModel(acting.space, acting.n_actions), minibatch=32, lam=0.95, entropy=0.01, **options)
    )


def acting_of(**options):
    return ActorSettings(**{"env_name": "fakes:Catch-v0", "envs": 4, "actors": 2, "rollout": 16, "seed": 5} | options)


def weights_of(learner):
    return {name: weights.clone() for name, weights in learner.trainer.model.state_dict().items()}


def test_actors_know_their_environments():
    assert list(EnvRange(4, 2, total_envs=8).indices) == [4, 5]
    assert acting_of(envs=8, actors=4).env_range(2) == EnvRange(4, 2, total_envs=8)


@pytest.fixture(scope="module")
def played():
    """Digests of the steps that actors have played, by the number of actors and the update."""
    return {}


@pytest.mark.parametrize(("supported", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_each_actor_decides_by_its_own_machine_whether_it_uses_bfloat16(monkeypatch, supported, dtype):
    monkeypatch.setattr(actor_module, "has_fast_bfloat16", lambda device: supported)
    assert PPOActor(acting_of(env_name="PongNoFrameskip-v4", bfloat16=True), 0)._model.body.dtype == dtype


@pytest.mark.parametrize(
    ("engine", "address", "cpus", "threads"),
    [
        ("ray", None, None, 8),
        ("ray", "h:1", None, 1),
        ("ray", "h:1", 0.5, 1),
        ("ray", "h:1", 3.0, 3),
        ("ray", None, 2.0, 2),
        ("process", None, 3.0, 8),
    ],
)
def test_an_actor_on_ray_steps_games_with_the_cpus_that_it_has(monkeypatch, engine, address, cpus, threads):
    used = []
    monkeypatch.setattr(vector_env, "make_vector_env", lambda env_id, num_envs, threads: used.append(threads))
    monkeypatch.setattr(actor_module, "cores", lambda: 16)
    acting_of(engine=engine, address=address, cpus=cpus).make_envs(2)
    assert used == [threads]


def test_a_segment_stays_valid_while_the_next_one_is_played():
    actor = PPOActor(acting_of(env_name="CartPole-v1"), 1)
    first = actor.get_trajectory_segment()
    kept = {name: array.copy() for name, array in first.arrays.items()}
    second = actor.get_trajectory_segment()
    assert all(np.array_equal(kept[name], first.arrays[name]) for name in kept)
    assert not np.array_equal(first.arrays["states"], second.arrays["states"])


@pytest.mark.parametrize(
    ("env_name", "envs", "actors", "rollout"),
    [("PongNoFrameskip-v4", 8, 4, 16), ("CartPole-v1", 2, 2, 1)],
)
def test_the_arrays_of_a_segment_fit_into_the_segment_size(env_name, envs, actors, rollout):
    acting = acting_of(env_name=env_name, envs=envs, actors=actors, rollout=rollout)
    segment = PPOActor(acting, 0).get_trajectory_segment()
    header, _, sizes = Slots(1, acting.segment_size).pack(segment, 0)
    assert sum(sizes) > segment.arrays["states"].nbytes + segment.final_states.nbytes
    assert len(header) < 4096


def test_a_model_that_actors_do_not_have_is_refused():
    class Own(FastModel):
        pass

    acting = acting_of()
    learner = learner_of(acting)
    learner.trainer.model.__class__ = Own
    with pytest.raises(TypeError, match=r"of class Own, and actors act with lib\.ppo\.fast\.FastModel; .*02_ppo"):
        Segments(acting, learner)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("actors", "engine"), [(1, "inline"), (2, "inline"), (2, "process"), pytest.param(2, "ray", marks=pytest.mark.long)]
)
def test_actors_play_what_one_sampler_plays_with_all_environments(played, actors, engine):
    acting = acting_of(env_name="PongNoFrameskip-v4", envs=2, actors=actors, engine=engine)
    learner = learner_of(acting)
    model = FastModel(acting.space, acting.n_actions)
    sampler = Sampler(acting.make_envs(2), Agent(model), 16, seed=5)
    whole = iter(sampler)
    segments = Segments(acting, learner)
    try:
        batches = iter(segments)
        model.load_state_dict(learner.get_model().tensors)
        first = next(whole).states.clone()  # used only to fit the normalisation
        for update in range(2):
            batch = next(batches)
            model.load_state_dict(learner.get_model().tensors)
            expected, found = next(whole), join_segments(batch)
            for name in vars(expected):
                assert torch.allclose(getattr(expected, name), getattr(found, name), atol=1e-5), name
            assert not torch.equal(expected.states, first)  # the environments have moved on
            digest = hashlib.sha256(b"".join(getattr(found, name).numpy().tobytes() for name in vars(found))).digest()
            assert played.setdefault((actors, update), digest) == digest  # equal bit for bit on every engine
            assert [segment.version for segment in batch] == [learner.version] * actors
            learner.train(batch)
        assert segments.steps_done == sampler.steps_done == 3 * 32
    finally:
        segments.close()


def test_run_learns_the_same_with_any_number_of_actors():
    told, weights = [], []
    for number in (1, 2, 4):
        learner = learner_of(acting_of())
        told.append(list(run_ppo(number, acting_of(), learner, updates=3)))
        weights.append(weights_of(learner))
        assert learner.version == 4  # 3 updates and the fit of the normalisation
    assert [sorted(each) for each in told[0]] == [sorted(told[0][0])] * 3
    for other in (1, 2):
        assert all(torch.allclose(weights[0][name], weights[other][name], atol=1e-5) for name in weights[0])
        assert told[0][2]["loss"] == pytest.approx(told[other][2]["loss"], abs=1e-4)


def test_episodes_come_in_the_order_of_one_sampler():
    acting = acting_of()
    segments = Segments(acting, learner_of(acting))
    sampler = Sampler(acting.make_envs(4), Agent(segments.learner.trainer.model), 16, seed=5)
    batches, whole = iter(segments), iter(sampler)
    next(whole)
    for _ in range(2):
        next(batches)
        next(whole)
    found, expected = segments.pop_episodes(), sampler.pop_episodes()
    assert [each[:3] for each in found] == [each[:3] for each in expected]
    assert len(found) == 4 * 3 * 16 // 6  # Catch's last six steps


@pytest.mark.parametrize("restart", [10**6, 100, 64])
def test_resumed_segments_continue_bit_for_bit(monkeypatch, restart):
    monkeypatch.setattr(Sampler, "RESEED_EVERY", restart)
    acting = acting_of(env_name="CartPole-v1")
    learner = learner_of(acting)
    first, resumed = Segments(acting, learner), Segments(acting, learner)
    batches = iter(first)
    for _ in range(3):
        next(batches)
    resumed.load_state_dict(first.state_dict())
    expected, found = join_segments(next(batches)), join_segments(next(iter(resumed)))
    assert all(torch.equal(getattr(expected, name), getattr(found, name)) for name in vars(expected))
    assert resumed.steps_done == first.steps_done == 5 * 64


def test_an_actor_whose_environments_cannot_be_restored_continues_from_their_reset(caplog):
    acting = acting_of(env_name="CartPole-v1", actors=1)
    handle = segments_module._Handle(acting.seed, acting.env_range(0))
    actor = PPOActor(acting, 0)
    for _ in range(2):
        handle.follow(actor.get_trajectory_segment())
    elsewhere = handle.sampler_state()
    elsewhere["snapshot"]["states"] += 1.0  # not the states that the actions lead to
    actor = PPOActor(acting, 0, elsewhere)
    assert "could not be restored" in caplog.text
    caplog.clear()
    ended = handle.follow(actor.get_trajectory_segment())
    snapshot = handle.state_dict()["snapshot"]
    assert snapshot["resets"].tolist() == [2 * 64] * 4
    assert len(snapshot["actions"]) == 16
    assert ended
    for _, episode in ended:
        assert episode.trace is not None
        trace = episode.trace()
        env = acting.make_envs(1)
        env.reset(seed=[trace.seed])
        for action in trace.actions[:-1]:
            states = env.step(np.array([action]))[0]
        assert np.array_equal(states[0], trace.last_state)
    second = PPOActor(acting, 0, handle.sampler_state())
    assert caplog.text == ""
    expected, found = actor.get_trajectory_segment(), second.get_trajectory_segment()
    assert all(np.array_equal(expected.arrays[name], found.arrays[name]) for name in ("states", "rewards", "ended"))


@pytest.mark.parametrize("engine", ["inline", "process"])
def test_closed_segments_continue_with_new_actors(engine):
    acting = acting_of(env_name="CartPole-v1", engine=engine)
    learner = learner_of(acting)
    whole, closed = Segments(acting, learner), Segments(acting, learner)
    try:
        for segments in (whole, closed):
            batches = iter(segments)
            for _ in range(2):
                next(batches)
        closed.close()
        # Actors reuse the memory of their segments, so each is joined, which copies it, before others play.
        expected = join_segments(next(iter(whole)))
        found = join_segments(next(iter(closed)))
        assert all(torch.equal(getattr(expected, name), getattr(found, name)) for name in vars(expected))
    finally:
        whole.close()
        closed.close()


def test_inline_actors_are_as_fast_as_one(monkeypatch):
    segments = Segments(acting_of(actors=4), learner_of(acting_of()))
    next(iter(segments))
    segments._played, segments._busy = 100, 4.0
    assert segments.metrics()["actor_fps"] == 25.0


class Scripted:
    """Actors whose segments come in a given order."""

    def __init__(self, order):
        self.coming, self.orders, self.model, self.replaced = list(order), [], None, 0

    def broadcast(self, model):
        self.model = model

    def order(self, index):
        assert index not in dict(self.orders)
        self.orders.append((index, self.model.version))

    def take(self):
        index = self.coming.pop(0)
        version = dict(self.orders)[index]
        self.orders.remove((index, version))
        return [(index, segment_of(version))]

    def gather(self):
        return [segment_of(self.model.version)] * 3

    def close(self):
        pass


def segment_of(version):
    arrays = {"actions": np.zeros((2, 1), np.int64), "states": np.zeros((2, 1, 7, 7), np.uint8)}
    return Segment(version, arrays, [], 2, [], np.zeros((1, 7, 7), np.uint8), 0.5)


def test_asynchronous_segments_are_taken_in_order_of_arrival_and_old_ones_dropped(monkeypatch):
    crew = Scripted([0, 1, 0, 1, 1, 0, 1, 0, 2, 1])
    monkeypatch.setattr(segments_module, "start_actors", lambda *arguments, **options: crew)
    acting = acting_of(actors=3, envs=3, rollout=2, engine="process")
    learner = learner_of(acting)
    crew.broadcast(learner.get_model())
    monkeypatch.setattr(learner, "normalise_by", lambda segments: None)
    segments = Segments(acting, learner, max_lag=1)
    batches = iter(segments)
    versions = []
    for _ in range(3):
        versions.append([segment.version for segment in next(batches)])
        learner.version += 1
    # Batch 1: actors 0, 1 and 0. Batch 2: actor 1, ordered during batch 1, then 1 and 0 with newer weights.
    # Batch 3: actors 1 and 0; then 2, which is two updates old and dropped; then 1.
    assert versions == [[0, 0, 0], [0, 1, 1], [2, 1, 2]]
    assert segments.dropped == 1
    assert segments.steps_done == 3 * 2 + 10 * 2
    told = segments.metrics()
    assert told["policy_lag"] == pytest.approx((0 + 1 + 0) / 3)
    assert told["dropped"] == 1
    assert told["actor_fps"] == pytest.approx(3 * 26 / (13 * 0.5))
