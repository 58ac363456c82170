"""Run folders as a finished run leaves them, for tests of comparison and report."""

import os
from contextlib import contextmanager

import numpy as np
from filelock import FileLock
from torch.utils.tensorboard import SummaryWriter

from lib.hyperparameters import HYPERPARAMS
from lib.run.arguments import RunOptions, describe
from lib.run.folder import read_params, write_json
from lib.run.videos import Video

PARTS = {"act": 1.0, "environment": 2.0, "sample": 0.5, "learn": 4.0}  # seconds


def improving(episode):
    return 0.2 * episode - 20


def make_run(path, seed=1, returns=improving, episodes=150, script="01_ppo", knobs=None, **hyperparameters):
    """Make a finished run with 100 steps and 6 seconds per episode."""
    path.mkdir(parents=True)
    params = describe(script, HYPERPARAMS["pong"], RunOptions(seed=seed, knobs=knobs or {}))
    params["hyperparameters"] |= hyperparameters
    write_json(path / "params.json", params)
    rows = [f"{n},{100 * n},100,{returns(n):g},{6 * n}.00,\n" for n in range(1, episodes + 1)]
    (path / "episodes.csv").write_text("episode,step,length,return,seconds,video\n" + "".join(rows))
    result = {
        "stopped": "solved",
        "steps": 100 * episodes + 7,
        "seconds": 6.0 * episodes + 3,
        "reached": {"18.0": {"seconds": 60.0 * seed}},
        "this_process": {"steps_per_second": 250.0 + seed, "training_seconds": 8.0, "parts": PARTS if episodes else {}},
    }
    write_json(path / "result.json", result)
    return path


def add_scalars(path, episodes=150):
    """Add TensorBoard's files to a run."""
    with SummaryWriter(path) as writer:
        for step in range(1000, 100 * episodes + 1, 1000):
            writer.add_scalar("train/avg_fps", 250 + step / 1000, step)
            writer.add_scalar("evaluation/mean", step / 1000, step)
            for part, milliseconds in PARTS.items():
                writer.add_scalar(f"time/{part}", milliseconds, step)
    return path


def add_videos(path, *names):
    """Add a short video under each name to a run. Later names are newer."""
    for age, name in enumerate(reversed(names)):
        with Video(path / "videos" / "part.webm", 10) as video:
            for shade in range(0, 250, 25):
                video.write(np.full((64, 64, 3), shade, np.uint8))
            video.keep(name)
        os.utime(path / "videos" / name, (1e9 - age, 1e9 - age))
    return path


def edit_params(path, edit):
    """Change a run's params.json by a function of its content."""
    params = read_params(path)
    edit(params)
    write_json(path / "params.json", params)


@contextmanager
def in_use(run):
    """Lock a run as a process does that works on it."""
    with FileLock(run / "lock", thread_local=False):
        yield
