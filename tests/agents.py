"""Agents for PTAN's experience sources. They are not in fakes.py, because importing ptan takes a second."""

import numpy as np
import ptan


class Alternating(ptan.agent.BaseAgent):
    """Agent that ignores the states and alternates between the actions 1 and 0."""

    def __init__(self):
        self.calls = 0

    def __call__(self, states, agent_states):
        self.calls += 1
        return np.full(len(states), self.calls % 2), agent_states
