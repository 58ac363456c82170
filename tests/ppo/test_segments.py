"""PPO's actors and segments: any number of actors on any engine plays the same steps as one sampler."""

import hashlib
import pickle
from contextlib import closing

import numpy as np
import pytest
import torch

from fakes import FakeEngine
from lib.actors import fleet
from lib.errors import UsageError
from lib.ppo.actor import ActorSettings, PPOActor
from lib.ppo.fast import FastModel
from lib.ppo.learner import PPOLearner, join_segments
from lib.ppo.rollout import Sampler
from lib.ppo.segments import Segments
from lib.ppo.segments import run as run_ppo
from ppo_setup import trainer_of


def learner_of(acting, **options):
    torch.manual_seed(0)
    return PPOLearner(
        trainer_of(
            FastModel(acting.env.single_observation_space, acting.env.single_action_space),
            minibatch=32,
            lam=0.95,
            entropy=0.01,
            **options,
        )
    )


def acting_of(**options):
    return ActorSettings(**{"env_name": "fakes:Catch-v0", "envs": 4, "actors": 2, "rollout": 16, "seed": 5} | options)


@pytest.fixture(scope="module")
def played():
    """Digests of the steps that actors have played, by the number of actors and the update."""
    return {}


def test_a_segment_stays_valid_while_the_next_one_is_played():
    actor = PPOActor(acting_of(env_name="CartPole-v1"), 1)
    first = actor.get_trajectory_segment()
    kept = {name: column.copy() for name, column in first.columns.items()}
    second = actor.get_trajectory_segment()
    assert all(np.array_equal(kept[name], first.columns[name]) for name in kept)
    assert not np.array_equal(first.columns["states"], second.columns["states"])


def test_stacks_of_frames_that_are_sent_once_are_the_real_states():
    """Episodes of Coded have 2 to 9 steps."""
    actor = PPOActor(acting_of(env_name="fakes:Coded-v0", envs=2, actors=1), 0)
    for _ in range(3):
        segment = actor.get_trajectory_segment()
        states, found = actor._rollout.states, join_segments([segment]).states  # the actor keeps its stacks
        assert segment.columns["ended"].any()
        assert torch.equal(states, found)
        assert len(pickle.dumps(segment)) < 1.6 * 84 * 84 * segment.steps


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
    ("actors", "engine"), [(2, "inline"), (2, "process"), pytest.param(2, "ray", marks=pytest.mark.long)]
)
def test_actors_play_what_one_sampler_plays_with_all_environments(played, actors, engine):
    acting = acting_of(env_name="PongNoFrameskip-v4", envs=2, actors=actors, engine=engine)
    learner = learner_of(acting)
    model = FastModel(acting.env.single_observation_space, acting.env.single_action_space)
    sampler = Sampler(acting.make_envs(2), model, 16, seed=5)
    whole = iter(sampler)
    with closing(Segments(acting, learner)) as segments:
        batches = iter(segments)
        model.load_state_dict(learner.get_model().tensors)
        first = torch.zeros(0)
        for update in range(2):
            batch = next(batches)
            model.load_state_dict(learner.get_model().tensors)
            expected, found = next(whole), join_segments(batch)
            for name in vars(expected):
                assert torch.allclose(getattr(expected, name), getattr(found, name), atol=1e-5), name
            assert not torch.equal(expected.states, first)  # the environments have moved on
            first = expected.states.clone()
            digest = hashlib.sha256(b"".join(getattr(found, name).numpy().tobytes() for name in vars(found))).digest()
            assert played.setdefault((actors, update), digest) == digest  # equal bit for bit on every engine
            assert [segment.version for segment in batch] == [learner.version] * actors
            learner.train(batch)
        assert segments.steps_done == sampler.steps_done == 2 * 32


def test_run_learns_the_same_with_any_number_of_actors():
    losses, weights = [], []
    for number in (1, 4):
        learner = learner_of(acting_of())
        losses.append([metrics["loss"] for metrics in run_ppo(number, acting_of(), learner, updates=3)])
        weights.append(learner.trainer.model.state_dict())
        assert learner.version == 3
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-5) for name in weights[0])


def segments_of(monkeypatch, engine, asynchronous=False, **options):
    """Segments whose actors play on a fake clock."""
    monkeypatch.setattr(fleet, "make_engine", lambda *_: engine)
    acting = acting_of(engine="process", **options)
    return Segments(acting, learner_of(acting), asynchronous)


def test_asynchronous_segments_are_taken_in_order_of_arrival_and_none_is_dropped(monkeypatch):
    engine = FakeEngine(lambda index, method: 1.0 if index == 1 else 2.0)
    segments = segments_of(monkeypatch, engine, asynchronous=True, actors=3, envs=3, rollout=2)
    versions = []
    for _, batch in zip(range(3), segments, strict=False):
        versions.append([segment.version for segment in batch])
        segments.learner.version += 1
    assert versions == [
        [0, 0, 0],
        [0, 0, 1],
        [1, 1, 2],
    ]  # two come at the end of the first batch, and belong to the second
    assert segments.steps_done == 3 * 3 * 2
    assert segments.metrics()["policy_lag"] == pytest.approx((1 + 1 + 0) / 3)


def test_others_play_for_a_lost_actor_until_it_is_back_with_new_episodes(monkeypatch):
    def delay(index, method):
        if (index, method) == (0, "play") and not segments.fleet.lost:
            engine.lose(0)
            return None
        return 3.5 if segments.fleet.lost and method == "start" else 1.0

    engine = FakeEngine(delay)
    segments = segments_of(monkeypatch, engine, env_name="CartPole-v1")
    batches = []
    for _, batch in zip(range(3), segments, strict=False):
        batches.append([segment.steps_done for segment in batch])
        assert segments.steps_done == len(batches) * 64
        assert segments.learner.train(batch)
    # Steps of an actor with its segment: actor 1 played the first four, and actor 0 begins anew.
    assert batches == [[32, 64], [96, 128], [32, 160]]
    assert segments.metrics()["lost_episodes"] == 2


def test_a_state_of_another_number_of_learners_is_refused():
    acting = acting_of()
    segments = Segments(acting, learner_of(acting))
    with pytest.raises(UsageError, match="the run had 2 learners, and now there are 1; resume it by its launcher"):
        segments.load_state_dict(segments.state_dict() | {"actors": [None] * 4})
