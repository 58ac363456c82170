"""Encoders, losses and numeric precision, shared by the DQN and PPO networks.

May import lib.envs, lib.system and lib.errors.
"""
