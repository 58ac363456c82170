"""Helpers for tests of experience sources and of the run around them."""

import numpy as np
import ptan

from lib.experience.interface import Episode, ExperienceSource


def last(transition):
    """Return the number in a transition's last_state, or None if the episode is over."""
    return None if transition.last_state is None else int(transition.last_state[0])


class Alternating(ptan.agent.BaseAgent):
    """Agent that ignores the states and alternates between the actions 1 and 0."""

    def __init__(self):
        self.calls = 0

    def __call__(self, states, agent_states):
        self.calls += 1
        return np.full(len(states), self.calls % 2), agent_states


class CountingSource(ExperienceSource):
    """Each batch is one agent step.

    Args:
        returns: returns of episodes, by the step in which they end.
        length: steps of an episode.
    """

    def __init__(self, returns=None, length=10):
        super().__init__()
        self.returns = returns or {}
        self.length = length

    def batches(self):
        while True:
            self.steps_done += 1
            yield self.steps_done

    def pop_episodes(self):
        if self.steps_done not in self.returns:
            return []
        return [Episode(self.returns[self.steps_done], self.length, self.steps_done, 5.0)]
