"""The experience source: transitions, episodes and seeds, with tests of ptan's errors that it corrects.

test_stream.py tests how it is resumed.
"""

import ptan
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit

from fakes import Counting
from lib.experience.source import ExperienceSourceFirstLast
from sources import Alternating, last


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


def test_environments_take_turns_and_share_one_call_of_the_agent():
    source = source_of(Counting(length=2), Counting(length=3))
    seen = [(int(t.state[0]), t.action, t.reward, last(t)) for t in take(source, 6)]
    assert seen[::2] == [(0, 1, 1.0, 1), (1, 0, 2.0, None), (0, 1, 1.0, 1)]
    assert seen[1::2] == [(0, 1, 1.0, 1), (1, 0, 2.0, 2), (2, 1, 3.0, None)]
    assert source.agent.calls == 3


def test_an_episode_that_a_wrapper_ends_has_its_return():
    source = source_of(TimeLimit(RecordEpisodeStatistics(Counting(length=9)), 3))
    take(source, 7)
    assert [each[:3] for each in source.pop_episodes()] == [(6.0, 3, 3), (6.0, 3, 6)]
    assert source.pop_episodes() == []
