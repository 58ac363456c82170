"""From a gymnasium id to states: single and native vector environments, observations, action masks.

May import lib.system and lib.errors.
"""
