"""One training run: its folder, checkpoints, stopping, speed, console, TensorBoard, videos, evaluation.

May import lib.ppo, lib.dqn_model, and what these may import.
"""
