"""One training run: its folder, checkpoints, stopping, speed, console, TensorBoard, videos, evaluation.

May import lib.ppo, lib.dqn_model, lib.dqn_extra, lib.atari_wrappers, and what these may import.
"""
