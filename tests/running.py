"""Scripts as a person runs them: processes of their own, started from inside their folders; and what they leave."""

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from forked import Server
from lib.run import checkpoint

PROJECT = Path(__file__).parents[1]
BASELINE = Path("chapter09/01_baseline.py")
PARALLEL = Path("chapter09/03_parallel.py")
# The scripts find the toy environments and this Python as a person's shell would.
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "tests")]),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


FORKED = Server()


def assignments(*fields):
    return [option for field in fields for option in ("--set", field)]


CATCH = ("--env-id", "fakes:Catch-v0", *assignments("replay_initial=700", "replay_size=2000", "batch_size=8"))
ROUNDS = ("--set", "replay_initial=720", "--stop-after", 780)  # multiples of every rung's steps an iteration


def start(script, *options, env=ENVIRONMENT, start_new_session=False):
    """A script that has just been started, forked from what has all imports."""
    return FORKED.start(f"./{script.name}", list(map(str, options)), PROJECT / script.parent, env, start_new_session)


def run(script, *options, env=ENVIRONMENT):
    """Run a script to its end, forked."""
    process = start(script, *options, env=env)
    try:
        stdout, stderr = process.communicate()
    finally:
        process.kill()
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def run_by_itself(script, *options, env=ENVIRONMENT):
    """Run a script to its end, as a process that imports all it needs."""
    command = [f"./{script.name}", *map(str, options)]
    return subprocess.run(
        command, cwd=PROJECT / script.parent, env=env, capture_output=True, text=True, timeout=300, check=False
    )


def two_at_a_time(tmp_path_factory, do, names):
    """{name: do(name)}, for fixtures: most of a script's time is waiting."""
    tmp_path_factory.getbasetemp()  # which two threads at once would both make
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(do, names), strict=True))


def folder(runs_dir):
    [path] = runs_dir.iterdir()
    return path


def checkpoint_of(path):
    """The newest checkpoint, less what differs by the clock."""
    content = checkpoint.newest(path / "checkpoints")
    del content["files"], content["episodes"]["seconds"]
    for place in content["source"].get("actors", ()):
        del place["seconds"]
    return content


def differences(a, b, name=""):
    """Names of the entries in which two nested checkpoints are not bit for bit the same."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [name]
    if isinstance(a, dict):
        return [d for key in a.keys() | b.keys() for d in differences(a.get(key), b.get(key), f"{name}/{key}")]
    if isinstance(a, list | tuple):
        pairs = zip(a, b, strict=True)
        return [d for i, (x, y) in enumerate(pairs) for d in differences(x, y, f"{name}/{i}")]
    return [] if a == b else [name]


def episodes_of(path):
    lines = (path / "episodes.csv").read_text().splitlines()
    return [line.split(",")[:4] for line in lines]


def scalars_of(path):
    """TensorBoard's scalars by tag, those left out that depend on the clock."""
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = [
        tag for tag in accumulator.Tags()["scalars"] if not tag.startswith(("time/", "final/")) and "fps" not in tag
    ]
    assert {"episodes/reward", "train/loss", "train/avg_loss"} <= set(tags)
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
