from contextlib import contextmanager

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import ClipReward, RecordEpisodeStatistics
from ignite.engine import Engine, Events

from fakes import Counting
from lib.envs.single_env import make_env
from lib.run import evaluation
from lib.run.curve import draw_curve
from lib.run.events import EvaluationEvents


class Told(gym.Env):
    """Episodes of two steps, whose return is what the seed of the reset draws; action 1 is worth ten more."""

    observation_space = spaces.Box(0, 255, (1,), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seed, self.steps = seed, 0
        return np.zeros(1, np.uint8), {}

    def step(self, action):
        self.steps += 1
        return np.full(1, self.steps, np.uint8), self.np_random.random() + 10 * action, False, self.steps == 2, {}


class Shown(Told):
    """Shows its seed, and its returns are all alike."""

    observation_space = spaces.Box(0, 2**32, (1,), np.int64)

    def step(self, action):
        self.steps += 1
        return np.full(1, self.seed), 1.0, False, self.steps == 2, {}


def always(action):
    return lambda states: np.full(len(states), action)


def test_whole_episodes_are_counted():
    found = evaluation.evaluate(always(0), Counting(3), episodes=4)
    assert found["returns"] == [6.0] * 4
    assert found["lengths"] == [3] * 4
    assert (found["episodes"], found["mean"], found["std"], found["distinct"]) == (4, 6.0, 0.0, 1)


def test_returns_are_those_before_rewards_are_clipped():
    env = ClipReward(RecordEpisodeStatistics(Counting(3)), -1.0, 1.0)
    assert evaluation.evaluate(always(0), env, episodes=2)["returns"] == [6.0, 6.0]


def test_episodes_that_show_something_else_are_distinct_though_their_returns_are_not():
    found = evaluation.evaluate(always(0), Shown(), episodes=3)
    assert (found["returns"], found["distinct"]) == ([2.0] * 3, 3)


def test_the_first_thirty_episodes_of_an_atari_game_begin_after_different_numbers_of_no_ops():
    env = make_env("PongNoFrameskip-v4")
    player = evaluation.EpisodePlayer(env)

    def first_frame(seed, number):
        frames = []
        watch = lambda states: frames.append(env.unwrapped.ale.getEpisodeFrameNumber())  # noqa: E731
        assert player.play(always(0), seed, number, watch, stopped=lambda: True) is None
        return frames[0]

    first, other = ([first_frame(seed, number) for number in range(30)] for seed in (3, 4))
    assert sorted(first) == sorted(other) == list(range(1, 31))
    assert first != other
    assert [first_frame(3, number) for number in (30, 7)] == [first[0], first[7]]


def test_an_episode_without_end_is_cut(monkeypatch):
    monkeypatch.setattr(evaluation, "LONGEST", 5)
    found = evaluation.evaluate(always(0), Counting(100), episodes=2)
    assert (found["lengths"], found["returns"]) == ([5, 5], [15.0, 15.0])


def test_every_episode_has_a_seed_of_its_own_that_the_run_s_seed_decides():
    first, again, other = (evaluation.evaluate(always(0), Told(), episodes=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["distinct"] == 5
    assert not set(first["returns"]) & set(other["returns"])
    assert first["mean"] == pytest.approx(np.mean(first["returns"]))
    assert first["std"] == pytest.approx(np.std(first["returns"]))


def test_the_policy_is_asked_in_every_step():
    seen = []

    def policy(states):
        seen.append(states.tolist())
        return np.array([1])

    found = evaluation.evaluate(policy, Told(), episodes=2)
    assert seen == [[[0]], [[1]]] * 2
    assert all(20.0 < total < 22.0 for total in found["returns"])


def test_the_picture_is_made_of_the_episodes_there_are(tmp_path):
    rows = "".join(f"{n},{100 * n},100,{n - 5},{n}.5,\n" for n in range(1, 8))
    (tmp_path / "episodes.csv").write_text(f"episode,step,length,return,seconds,video\n{rows}")
    path = draw_curve(tmp_path, 18.0)
    assert path == tmp_path / "curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")


def test_an_evaluator_can_be_run_again():
    evaluating = evaluation.evaluator(always(0), Told(), seed=1)
    first = dict(evaluating.run(range(5)).metrics)
    assert dict(evaluating.run(range(5)).metrics) == first
    assert (first["min"], first["max"]) == (min(first["returns"]), max(first["returns"]))


def test_an_evaluation_that_is_left_tells_nothing_and_another_one_can_follow():
    asked = [0]

    def stopped():
        asked[0] += 1
        return asked[0] == 8

    told = []
    evaluating = evaluation.evaluator(always(0), Told(), seed=1, stopped=stopped)
    evaluating.add_event_handler(EvaluationEvents.EVALUATED, lambda engine: told.append(engine.state.metrics))
    evaluating.run(range(5))
    assert asked == [8]
    assert not told
    evaluating.run(range(5))
    assert told[0]["episodes"] == 5


def test_between_the_steps_of_training_it_draws_nothing_and_takes_no_time():
    steps, evaluated, aside = [0], [], []

    def train(engine, number):
        steps[0] += 4
        return torch.rand(()).item()

    def drawing(states):
        evaluated.append(steps[0])
        torch.rand(3)
        return np.zeros(len(states), np.int64)

    @contextmanager
    def apart():
        aside.append("begins")
        yield
        aside.append("ends")

    def outputs(every):
        steps[0] = 0
        torch.manual_seed(1)
        engine, found = Engine(train), []
        if every:
            evaluation.attach(engine, evaluation.evaluator(drawing, Told()), every, lambda: steps[0], apart)
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: found.append(engine.state.output))
        engine.run(range(10))
        return found

    assert outputs(None) == outputs(10)
    assert sorted(set(evaluated)) == [12, 20, 32, 40]
    assert aside == ["begins", "ends"] * 4
