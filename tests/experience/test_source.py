"""The experience source: transitions, episodes, seeds and resuming, with tests of ptan's errors that it corrects."""

import gymnasium as gym
import ptan
import pytest
from gymnasium.wrappers import RecordEpisodeStatistics

from agents import Alternating
from fakes import Counting, Forgetful, Random, Refusing
from lib.envs.frames import FrameStack
from lib.experience import snapshot as snapshot_module
from lib.experience.snapshot import Snapshot
from lib.experience.source import ExperienceSourceFirstLast
from sources import last


def source_of(*envs, seed=0):
    return ExperienceSourceFirstLast(list(envs), Alternating(), gamma=0.9, seed=seed)


def take(source, count):
    transitions = iter(source)
    return [next(transitions) for _ in range(count)]


def test_a_truncated_episode_keeps_its_last_state_which_ptan_drops():
    theirs = ptan.experience.ExperienceSourceFirstLast(Counting(truncates=True), Alternating(), gamma=0.9)
    assert last(take(theirs, 4)[-1]) is None
    assert last(take(source_of(Counting(truncates=True)), 4)[-1]) == 4
    assert last(take(source_of(Counting(truncates=False)), 4)[-1]) is None


def test_a_transition_comes_with_its_step_and_ptans_comes_one_step_late():
    theirs, ours = Counting(length=9), Counting(length=9)
    take(ptan.experience.ExperienceSourceFirstLast(theirs, Alternating(), gamma=0.9), 3)
    take(source_of(ours), 3)
    assert (theirs.t, ours.t) == (4, 3)


def test_every_episode_has_its_own_seed_and_ptan_repeats_one():
    theirs = [Counting(length=1), Counting(length=1)]
    take(ptan.experience.ExperienceSourceFirstLast(theirs, Alternating(), gamma=0.9, env_seed=5), 6)
    assert {seed for env in theirs for seed in env.seeds} == {5}
    ours = [Counting(length=1), Counting(length=1)]
    take(source_of(*ours, seed=5), 6)
    seeds = [seed for env in ours for seed in env.seeds]
    assert len(set(seeds)) == len(seeds) >= 6


def test_the_frame_stack_passes_the_seed_on_and_ptans_buffer_wrapper_drops_it():
    for stack, expected in ((ptan.common.wrappers.BufferWrapper, None), (FrameStack, 7)):
        env = Counting()
        stack(env, 2).reset(seed=7)
        assert env.seeds == [expected]


def test_transitions_have_the_right_states_actions_rewards_and_ends():
    transitions = take(source_of(Counting(length=3)), 5)
    seen = [(int(t.state[0]), t.action, t.reward, last(t)) for t in transitions]
    assert seen == [(0, 1, 1.0, 1), (1, 0, 2.0, 2), (2, 1, 3.0, None), (0, 0, 1.0, 1), (1, 1, 2.0, 2)]


def test_environments_take_turns_and_share_one_call_of_the_agent():
    source = source_of(Counting(length=2), Counting(length=3))
    seen = [(int(t.state[0]), last(t)) for t in take(source, 6)]
    assert seen == [(0, 1), (0, 1), (1, None), (1, 2), (0, 1), (2, None)]
    assert source.agent.calls == 3


def test_pop_episodes_returns_each_episode_once_with_return_length_and_step():
    source = source_of(Counting(length=3))
    take(source, 7)
    episodes = source.pop_episodes()
    assert [(e.total, e.length, e.step) for e in episodes] == [(6.0, 3, 3), (6.0, 3, 6)]
    assert source.pop_episodes() == []
    take(source, 3)
    assert source.pop_rewards_steps() == [(6.0, 3)]


class ThreeSteps(gym.Wrapper):
    """End an episode every three steps, and reset the game only when it is over, as a reader's wrapper of lives may."""

    def reset(self, **options):
        over = getattr(self, "over", True)
        self.steps = 0
        return self.env.reset(**options) if over else self.env.step(0)[::4]

    def step(self, action):
        state, reward, self.over, truncated, info = self.env.step(action)
        self.steps += 1
        return state, reward, self.over or self.steps == 3, truncated, info


def test_episodes_without_a_reset_of_the_game_have_their_own_returns():
    source = source_of(ThreeSteps(RecordEpisodeStatistics(Counting(length=9))))
    take(source, 10)
    expected = [(1.0 + 2.0 + 3.0, 3), (5.0 + 6.0 + 7.0, 3), (9.0, 1), (1.0 + 2.0 + 3.0, 3)]  # resets make steps 4 and 8
    assert [(each.total, each.length) for each in source.pop_episodes()] == expected


def test_on_step_is_called_after_every_round():
    watched = []
    source = source_of(Counting(), Counting())
    source.on_step = lambda steps: watched.append(source.steps_done)
    take(source, 5)
    assert watched == [2, 4, 6]
    assert set(source.clock.seconds) == {"act", "environment"}


def test_episodes_depend_on_the_seed_alone():
    def states(seed):
        return [int(t.last_state[0]) for t in take(source_of(Random(length=99), seed=seed), 20)]

    assert states(3) == states(3) != states(4)


@pytest.mark.parametrize("stop_at", [3, 6, 12, 15, 21])
def test_a_resumed_source_equals_the_uninterrupted_one(stop_at):
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


def test_an_environment_that_cannot_be_restored_is_logged(caplog):
    source = source_of(FrameStack(Forgetful()))
    for _ in range(20):  # by chance, the ball may fall in the same column
        take(source, 3)
        resumed = source_of(FrameStack(Forgetful()))
        resumed.load_state_dict(source.state_dict())
    assert "could not be restored from their seeds and actions" in caplog.text


def test_an_environment_that_rejects_earlier_actions_starts_its_next_episode(caplog, monkeypatch):
    source = source_of(FrameStack(Refusing()))
    take(source, 3)
    monkeypatch.setattr(Refusing, "left", 2)
    resumed = source_of(FrameStack(Refusing()))
    resumed.load_state_dict(source.state_dict())
    assert "could not be restored from their seeds and actions, and were reset." in caplog.text
    assert "(RuntimeError: not allowed)" in caplog.text
    monkeypatch.setattr(Refusing, "left", 100)
    assert len(take(resumed, 6)) == 6


def test_an_environment_whose_episode_ends_too_early_starts_its_next_episode(caplog):
    source = source_of(Counting(length=9))
    take(source, 5)
    shorter = source_of(Counting(length=3))
    shorter.load_state_dict(source.state_dict())
    assert "could not be restored from their seeds and actions" in caplog.text
    assert int(take(shorter, 1)[0].state[0]) == 0


def test_many_steps_are_kept_in_few_blocks(monkeypatch):
    monkeypatch.setattr(snapshot_module, "BLOCKS_TO_MERGE", 4)
    snapshot = Snapshot(lambda reset: [reset] * 2, num_envs=2)
    snapshot.restart(0)
    expected, traces = [], []

    def append(count):
        for step in range(len(expected), len(expected) + count):
            snapshot.append([step, -step])
            expected.append([step, -step])
            traces.append(snapshot.trace(1, 1, None))

    append(19)
    assert [len(block) for block in snapshot._blocks] == [4, 4, 4, 4, 1, 1, 1]
    assert snapshot.actions.tolist() == expected
    snapshot.restart(19)
    snapshot.starts[0] = 10  # the last reset of the first environment was earlier
    snapshot._unneeded = 10
    append(9)
    assert snapshot.actions.tolist() == expected[8:]  # whole blocks are dropped
    assert [len(block) for block in snapshot._blocks] == [4, 4, 4, 4, 4]
    assert [trace().actions[-1] for trace in traces] == [-step for step in range(28)]
