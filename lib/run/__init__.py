"""One training run: its folder, checkpoints, stopping, speed, console, TensorBoard, videos, evaluation.

May import lib.ppo, the book's four files except lib.common, and what these may import.
"""
