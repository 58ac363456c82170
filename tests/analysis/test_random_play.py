"""Random play: which actions are drawn, and when an episode ends."""

from typing import ClassVar

import pytest
from gymnasium import spaces

import fakes
from lib.analysis.random_play import play
from lib.envs.single_env import make_env


class Recorder(fakes.Shape):
    """A Shape that records the actions of all instances."""

    actions: ClassVar[list[tuple[int, int]]] = []

    def step(self, action):
        self.actions.append((self.t, int(action)))
        return super().step(action)


@pytest.mark.parametrize("mask", [None, "info", "method", "observation"])
def test_every_legal_action_is_drawn_and_no_other(register, monkeypatch, mask):
    """Action t % 5 is not legal in step t; it would fail an assertion."""
    monkeypatch.setattr(Recorder, "actions", [])
    register("Recorder-v0", Recorder, kwargs={"space": spaces.Box(0.0, 1.0, (2,)), "mask": mask})
    episodes = play(make_env("Recorder-v0"), 100)
    legal = {(t, action) for t in range(5) for action in range(5) if mask is None or action != t}
    assert set(Recorder.actions) == legal
    assert {episode.legal_share for episode in episodes} == {1.0 if mask is None else 0.8}
    assert [episode.length for episode in episodes] == [5] * 100
    assert all(episode.total == episode.rewards[1.0] for episode in episodes)
