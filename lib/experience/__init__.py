"""From environment steps to batches: experience sources, streams, replay rings, the sum tree, episodes.

May import lib.envs, lib.nets, lib.system and lib.errors.
"""
