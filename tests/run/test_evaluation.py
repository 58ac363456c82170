"""Evaluation: whole episodes with their own seeds, and no effect on the training around them."""

import multiprocessing
import re
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics
from ignite.engine import Engine, Events

from fakes import Coded, CodedDying, Counting, Slow, draw_actions
from lib.actors.process import ProcessActors
from lib.envs.single_env import make_env
from lib.experience.interface import Stopped
from lib.run import episode_player, evaluation, side_by_side
from lib.run.episode_player import EpisodePlayer
from lib.run.evaluation import PeriodicEvaluation, evaluate, evaluator, is_clearly_below
from lib.run.events import EvaluationEvents


class RandomReturns(gym.Env):
    """Episodes of two steps with random rewards below 1. Action 1 earns 10 more."""

    observation_space = spaces.Box(0, 255, (1,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return np.zeros(1, np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.uint8), self.np_random.random() + 10 * action, False, self.steps == 2, {}


class EqualReturns(RandomReturns):
    """Episodes with the same return, whose states show their seed."""

    observation_space = spaces.Box(0, 2**32, (1,), np.int64)

    def step(self, action):
        self.steps += 1
        return np.full(1, self.seed), 1.0, False, self.steps == 2, {}


def always(action):
    return lambda states, randoms: np.full(len(states), action)


def five(make_env):
    return [make_env() for _ in range(5)]


def test_returns_and_lengths_of_whole_episodes_are_reported():
    metrics = evaluate(always(0), lambda: Counting(3), episodes=4)
    assert metrics["returns"] == [6.0] * 4
    assert metrics["lengths"] == [3] * 4
    assert (metrics["episodes"], metrics["mean"], metrics["std"], metrics["distinct"]) == (4, 6.0, 0.0, 1)


def test_returns_are_not_clipped():
    def make_env():
        return ClipReward(RecordEpisodeStatistics(Counting(3)), -1.0, 1.0)

    assert evaluate(always(0), make_env, episodes=2)["returns"] == [6.0, 6.0]


def test_episodes_with_equal_returns_but_other_states_are_distinct():
    metrics = evaluate(always(0), EqualReturns, episodes=3)
    assert (metrics["returns"], metrics["distinct"]) == ([2.0] * 3, 3)


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


def test_an_episode_of_a_game_with_sticky_actions_does_not_depend_on_the_episodes_before_it():
    def states(*numbers):
        env = make_env("ALE/Pong-v5?noop_max=0")
        for number in numbers:
            state = episode_player._reset(env, 1, number)
        return [np.array(state), *(np.array(env.step(action)[0]) for action in [2, 3] * 30)]

    assert all(np.array_equal(one, two) for one, two in zip(states(10), states(3, 10), strict=True))


def test_an_endless_episode_is_cut(monkeypatch):
    monkeypatch.setattr(episode_player, "MAX_STEPS", 5)
    metrics = evaluate(always(0), lambda: Counting(100), episodes=2)
    assert (metrics["lengths"], metrics["returns"]) == ([5, 5], [15.0, 15.0])


def test_every_episode_has_a_seed_derived_from_that_of_the_evaluation():
    first, again, other = (evaluate(always(0), RandomReturns, episodes=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["distinct"] == 5
    assert not set(first["returns"]) & set(other["returns"])
    for name in ("mean", "std", "min", "max"):
        assert first[name] == getattr(np, name)(first["returns"])


def test_the_policy_chooses_every_action():
    seen = []

    def policy(states, randoms):
        seen.append(states.tolist())
        return np.full(len(states), 1)

    metrics = evaluate(policy, RandomReturns, episodes=2)
    assert seen == [[[0]] * 2, [[1]] * 2]  # both episodes in one batch
    assert all(20.0 < total < 22.0 for total in metrics["returns"])


def test_an_evaluator_can_run_again():
    engine = evaluator(always(0), five(RandomReturns), seed=1)
    first = dict(engine.run([0]).metrics)
    assert dict(engine.run([0]).metrics) == first
    assert first == evaluate(always(0), RandomReturns, episodes=5, seed=1)


def test_an_abandoned_evaluation_reports_nothing_and_can_be_repeated():
    calls = []

    def stopped():
        calls.append(None)
        return len(calls) == 2

    reported = []
    engine = evaluator(always(0), five(RandomReturns), seed=1, stopped=stopped)
    engine.add_event_handler(EvaluationEvents.EVALUATED, lambda engine: reported.append(engine.state.metrics))
    engine.run([0])
    assert len(calls) == 2
    assert not reported
    engine.run([0])
    assert reported[0]["episodes"] == 5


def test_episodes_that_were_all_cut_are_not_below_those_of_training():
    result = {"mean": 10.0, "std": 0.0, "episodes": 2}
    limit = episode_player.MAX_STEPS
    below = [
        is_clearly_below(result | {"lengths": each}, [20.0, 21.0]) for each in ([30, 40], [30, limit], [limit] * 2)
    ]
    assert below == [True, True, False]


def test_one_training_episode_says_nothing_about_greedy_play():
    result = {"mean": 18.0, "std": 2.0, "episodes": 20, "lengths": [1000] * 20}
    assert [is_clearly_below(result, [21.0] * count) for count in (0, 1, 2)] == [False, False, True]


def test_evaluations_during_training_change_neither_random_numbers_nor_the_training_time():
    steps, evaluated_at, untimed_blocks = 0, [], 0

    def train(engine, number):
        nonlocal steps
        steps += 4
        return torch.rand(()).item()

    def drawing_policy(states, randoms):
        evaluated_at.append(steps)
        torch.rand(3)
        return np.zeros(len(states), np.int64)

    @contextmanager
    def untimed():
        nonlocal untimed_blocks
        untimed_blocks += 1
        yield

    def outputs(every):
        nonlocal steps
        steps, collected = 0, []
        torch.manual_seed(1)
        engine = Engine(train)
        if every:
            periodic = PeriodicEvaluation(every)
            periodic.attach(engine, evaluator(drawing_policy, five(RandomReturns)), lambda: steps, untimed)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: collected.append(engine.state.output))
        engine.run(range(10))
        return collected

    assert outputs(None) == outputs(10)
    assert sorted(set(evaluated_at)) == [12, 20, 32, 40]
    assert untimed_blocks == 4


def test_an_evaluation_that_was_abandoned_is_repeated_before_the_next_update_of_the_resumed_run():
    def run(state, step, length, abandoned=()):
        evaluated = []

        def train(engine, number):
            nonlocal step
            step += 5

        evaluating = evaluator(always(0), five(RandomReturns), stopped=lambda: step in abandoned)
        evaluating.add_event_handler(EvaluationEvents.EVALUATED, lambda: evaluated.append(step))
        engine, periodic = Engine(train), PeriodicEvaluation(10)
        periodic.attach(engine, evaluating, lambda: step, nullcontext)
        if state is not None:
            engine.add_event_handler(Events.STARTED, lambda: periodic.load_state_dict(state))
        engine.run(range(length))
        return periodic.state_dict(), evaluated

    state, evaluated = run(None, 0, 4, abandoned=(20,))
    assert evaluated == [10]
    assert run(state, 20, 2)[1] == [20, 30]
    assert run(run(None, 0, 4)[0], 20, 2)[1] == [30]


@pytest.mark.parametrize("count", [1, 3])
def test_all_states_are_watched_including_the_last(count):
    watched = []
    EpisodePlayer(Counting(count)).play(always(0), 0, 0, watch=watched.append)
    assert len(watched) == count + 1


@pytest.fixture
def in_three_processes(warm_fork_server, monkeypatch):
    monkeypatch.setattr(side_by_side, "GROUP", 3)
    return lambda make_env, **options: evaluate(draw_actions, make_env, episodes=11, seed=4, processes=3, **options)


def test_episodes_side_by_side_equal_those_played_one_after_the_other(in_three_processes, caplog):
    together = in_three_processes(Coded)
    assert "continues in a single process" not in caplog.text
    player = EpisodePlayer(Coded())
    alone = [player.play(draw_actions, 4, number) for number in range(11)]
    assert together["returns"] == [result.total for result in alone]
    assert together["lengths"] == [result.length for result in alone]
    assert together["distinct"] == 11
    assert len(set(together["lengths"])) > 3  # the episodes of a group do not end together


def test_an_evaluation_that_takes_long_goes_on_in_processes(warm_fork_server, monkeypatch):
    monkeypatch.setattr(side_by_side, "GROUP", 3)
    monkeypatch.setattr(side_by_side, "cores", lambda: 2)
    expected = evaluate(draw_actions, Coded, episodes=8, seed=4, processes=1)
    started = []
    start_actors = side_by_side.start_actors
    monkeypatch.setattr(
        side_by_side, "start_actors", lambda *args, **options: started.append(args) or start_actors(*args, **options)
    )
    assert evaluate(draw_actions, Coded, episodes=8, seed=4) == expected
    assert not started
    monkeypatch.setattr(side_by_side, "SHORT", 0.0)
    assert evaluate(draw_actions, Coded, episodes=8, seed=4) == expected
    assert started


def test_environments_that_start_slowly_are_left_to_the_processes(warm_fork_server, monkeypatch):
    monkeypatch.setattr(side_by_side, "SHORT", 0.1)
    monkeypatch.setattr(side_by_side, "cores", lambda: 2)
    made = []

    def make():
        made.append(time.sleep(0.06))
        return Coded()

    assert evaluate(draw_actions, make, episodes=11, seed=4, processes=None)["episodes"] == 11
    assert len(made) <= 2  # of ten; those of the processes are not counted here


def test_a_player_that_dies_is_replaced(in_three_processes, tmp_path):
    expected = in_three_processes(Coded)
    assert in_three_processes(partial(CodedDying, tmp_path / "died")) == expected
    assert (tmp_path / "died").exists()


def test_an_evaluation_that_cannot_use_processes_goes_on_in_this_one(in_three_processes, caplog):
    lock = threading.Lock()  # cannot be pickled

    def make_env():
        with lock:
            return Coded()

    assert in_three_processes(make_env) == in_three_processes(Coded)
    assert "continues in a single process" in caplog.text


def test_the_whole_error_of_a_process_is_reported(in_three_processes, caplog):
    def make_env():
        if multiprocessing.parent_process() is not None:
            raise RuntimeError("no screen; no display")
        return Coded()

    assert in_three_processes(make_env) == in_three_processes(Coded)
    assert re.search(r"(?s)Evaluation process \d failed in an episode:.*Error: no screen; no display", caplog.text)


def test_an_interrupted_evaluation_leaves_no_process(in_three_processes, monkeypatch):
    taken = []

    def interrupt(actors, wanted=1):
        taken.extend(actors.children)
        raise KeyboardInterrupt

    monkeypatch.setattr(ProcessActors, "take", interrupt)
    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        in_three_processes(partial(Slow, 5.0))
    assert len(taken) == 3
    assert not any(child.process.is_alive() for child in taken)
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("lengths", "endless"), [([26_995, 27_000, 900], "2 episodes were cut at 27,000 steps."), ([900, 20_000], "")]
)
def test_episodes_without_an_end_are_reported(lengths, endless, caplog):
    result = {"mean": 15.8, "std": 8.4, "min": -1.0, "max": 20.0, "episodes": len(lengths), "distinct": 3}
    evaluation.log_result(result | {"lengths": lengths})
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == bool(endless)
    assert endless in caplog.text


@pytest.mark.parametrize("processes", [1, None, 2])
def test_a_stopped_evaluation_is_abandoned_within_an_episode(processes):
    asked_at = []

    def stopped():
        asked_at.append(time.monotonic())
        return len(asked_at) > 3

    make = partial(Slow, 0.05, length=10_000)
    with pytest.raises(Stopped):
        list(side_by_side.results_of(always(0), make, 20, seed=1, processes=processes, stopped=stopped))
    assert len(asked_at) >= 4
    assert time.monotonic() - asked_at[3] < 8  # actors wait for a segment for ten seconds
