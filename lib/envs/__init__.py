"""Environments: single and native vector environments, observation conversion, and action masks.

May import lib.system and lib.errors.
"""
