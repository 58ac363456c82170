"""Evaluation: whole episodes with their own seeds, and no effect on the training around them."""

import multiprocessing
import time
from contextlib import nullcontext
from functools import partial
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics
from ignite.engine import Engine

from fakes import Coded, Counting
from lib.envs.single_env import make_env
from lib.run import episode_player, evaluation
from lib.run.episode_player import EpisodePlayer, EpisodeResult, play_together
from lib.run.episodes import TrainingEvents, register_events
from lib.run.evaluation import SPREAD, attach_evaluation, evaluate


def always(action):
    return lambda states, randoms: np.full(len(states), action)


def draw_actions(states, randoms):
    """Draw one of two actions from the generators of the episodes."""
    return np.array([random.integers(2) for random in randoms])


def test_returns_are_those_of_the_game_and_equal_episodes_are_not_distinct():
    metrics = evaluate(always(0), lambda: ClipReward(RecordEpisodeStatistics(Counting(3)), -1.0, 1.0), episodes=4)
    assert (metrics["returns"], metrics["lengths"]) == ([6.0] * 4, [3] * 4)
    assert (metrics["episodes"], metrics["mean"], metrics["std"], metrics["distinct"]) == (4, 6.0, 0.0, 1)


def test_every_episode_has_a_seed_derived_from_that_of_the_evaluation():
    first, again, other = (evaluate(always(1), Coded, episodes=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["distinct"] == 5
    assert not set(first["returns"]) & set(other["returns"])
    assert evaluate(always(0), Coded, episodes=5, seed=1)["returns"] != first["returns"]
    assert [first[name] for name in SPREAD] == [getattr(np, name)(first["returns"]) for name in SPREAD]


def test_each_number_of_no_ops_starts_one_atari_episode_before_any_is_repeated(monkeypatch):
    monkeypatch.setattr(episode_player, "NOOP_MAX", 5)
    env = make_env("PongNoFrameskip-v4")
    player = EpisodePlayer(env)

    def first_frame(seed, number):
        player.start(seed, number)
        return env.unwrapped.ale.getEpisodeFrameNumber()  # type: ignore[attr-defined]

    first, other = ([first_frame(seed, number) for number in range(6)] for seed in (3, 4))
    assert sorted(first[:5]) == sorted(other[:5]) == [1, 2, 3, 4, 5]
    assert first != other
    assert first[5] == first[0]


def test_an_endless_episode_is_cut_and_reported(monkeypatch, caplog):
    monkeypatch.setattr(episode_player, "MAX_STEPS", 5)
    metrics = evaluate(always(0), lambda: Counting(100), episodes=2)
    assert (metrics["lengths"], metrics["returns"]) == ([5, 5], [15.0, 15.0])
    evaluation.log_result(metrics)
    assert "2 episodes were cut at" in caplog.text


def test_evaluations_during_training_change_neither_random_numbers_nor_the_training_time():
    def drawing_policy(states, randoms):
        torch.rand(3)
        return np.zeros(len(states), np.int64)

    drawn, evaluated, untimed = [], [], Mock(side_effect=nullcontext)
    engine = Engine(lambda engine, number: drawn.append(torch.rand(()).item()))
    register_events(engine)
    players = [EpisodePlayer(Coded()) for _ in range(5)]

    def steps():
        return 4 * len(drawn)

    attach_evaluation(engine, 10, drawing_policy, players, 1, steps, untimed, lambda: len(drawn) == 10)
    engine.add_event_handler(TrainingEvents.EVALUATED, lambda: evaluated.append(steps()))
    torch.manual_seed(1)
    engine.run(range(13))
    assert evaluated == [12, 20, 32, 52]  # the one at step 40 is abandoned
    assert untimed.call_count == 5
    expected = evaluate(always(0), Coded, episodes=10, seed=1)
    assert engine.state.metrics == {name: expected[name] for name in SPREAD}
    torch.manual_seed(1)
    assert drawn == [torch.rand(()).item() for _ in range(13)]


@pytest.fixture
def in_processes(monkeypatch):
    """Function that evaluates in three processes, because it takes long, and checks that none is left."""
    monkeypatch.setattr(evaluation, "GROUP", 3)
    monkeypatch.setattr(evaluation, "SHORT", 0.0)
    monkeypatch.setattr(evaluation, "cores", lambda: 3)
    before = set(multiprocessing.active_children())

    def run(make_env):
        try:
            return evaluate(draw_actions, make_env, episodes=11, seed=4)
        finally:
            assert set(multiprocessing.active_children()) <= before

    return run


def test_episodes_side_by_side_equal_those_played_one_after_the_other(in_processes, caplog):
    together = in_processes(Coded)
    assert caplog.text == ""
    alone: list[EpisodeResult] = []
    play_together(draw_actions, [EpisodePlayer(Coded())], 4, range(11), alone.append)
    assert together["returns"] == [result.total for result in alone]
    assert together["lengths"] == [result.length for result in alone]
    assert together["distinct"] == 11
    assert len(set(together["lengths"])) > 3  # the episodes of a group do not end together


def test_an_evaluation_whose_processes_fail_goes_on_in_this_one(in_processes, tmp_path, caplog):
    def make_only_here():
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("no screen; no display")
        return Coded()

    expected = in_processes(Coded)
    assert in_processes(partial(Coded, dies=tmp_path / "died")) == expected
    assert (tmp_path / "died").exists()
    assert in_processes(make_only_here) == expected
    messages = [record.message for record in caplog.records if "continues in a single process" in record.message]
    assert messages[1].endswith("of its own: RuntimeError: no screen; no display")


def test_an_interrupted_evaluation_leaves_no_process(in_processes, monkeypatch):
    def interrupt(futures):
        assert len(multiprocessing.active_children()) >= 3
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluation, "as_completed", interrupt)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_processes(partial(Counting, seconds=5.0))
    assert time.monotonic() - begun < 10
