"""Run scripts as a person would, from inside their folders, and read the run folders that they write."""

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from forked import ForkedProcess
from lib.experience.transitions import unpack
from lib.run import checkpoint
from lib.run.folder import read_params

PROJECT = Path(__file__).parents[1]
SHOWN = ("--env-id", "fakes:Shown-v0")  # of the fixture original_run
DQNS, PPOS = (  # scripts
    sorted(path.relative_to(PROJECT) for path in PROJECT.glob(f"{folders}/[0-9][0-9]_*.py"))
    for folders in ("chapter0[89]", "distributed")
)
BASELINE = Path("chapter09/01_baseline.py")
PARALLEL = Path("chapter09/03_parallel.py")
# Scripts find the toy environments of fakes.py on PYTHONPATH, and `#!/usr/bin/env python3` finds this Python on PATH.
# They have no display.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")} | {
    "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT / "tests")]),
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
}


def assignments(*fields: str) -> list[str]:
    """Return the options that set hyperparameters: ["--set", field, ...]."""
    return [option for field in fields for option in ("--set", field)]


SMALL_DQN = assignments("replay_initial=200", "replay_size=2000", "batch_size=8")
SMALL_PPO = assignments("envs=4", "rollout=16", "minibatch=32", "epochs=1")
CATCH = (  # images
    *("--env-id", "fakes:Catch-v0", "--seed", 3),
    *assignments("replay_initial=120", "replay_size=2000", "batch_size=2", "target_net_sync=12", "learn_every=12"),
)


def start(
    script: Path,
    *options: object,
    cwd: Path | None = None,
    env: Mapping[str, str] = ENVIRONMENT,
    start_new_session: bool = False,
) -> ForkedProcess:
    """Start a script, forked from a process that has its imports already, and return at once.

    `cwd` is the script's folder by default. The leader of a new session gets Ctrl-C alone, as from a terminal.
    """
    name = f"./{script.name}" if cwd is None else str(PROJECT / script)
    return ForkedProcess(name, list(map(str, options)), cwd or PROJECT / script.parent, env, start_new_session)


def run(script: Path, *options: object, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """Run a script to its end; see `start`."""
    process = start(script, *options, cwd=cwd)
    try:
        stdout, stderr = process.communicate()
    finally:
        process.kill()
    assert process.returncode is not None
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def start_program(code: str, folder: Path, *options: object) -> ForkedProcess:
    """Start a Python program, given as its text, in a folder; see `start`."""
    file = folder / "program.py"
    file.write_text(code)
    return start(file, *options, cwd=folder)


def first_line(process: ForkedProcess) -> str:
    """Wait for the first line that a program prints and return it. Fail if the program ends before that."""
    wait_for(lambda: "\n" in process.read("stdout"), process)
    return process.read("stdout").splitlines()[0]


@contextmanager
def full_disk(size: int = 100) -> Iterator[None]:
    """Let no file of this process grow beyond some bytes, as on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def folder(runs_dir: Path) -> Path:
    """Return the only run folder in `runs_dir`."""
    [path] = runs_dir.iterdir()
    return path


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the content of all files in a folder, without the one that names the process that uses it."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {path: path.read_bytes() for path in files}


def trusting(path: Path) -> tuple[str, str]:
    """Return the option with a run's environment, which allows the import of its module."""
    return "--env-id", read_params(path)["hyperparameters"]["env_name"]


def resuming(path: Path) -> tuple[object, ...]:
    """Return the options that resume a run, whose environment may be one of `fakes`."""
    return "--resume", path, *trusting(path)


def run_in_parts(
    script: Path,
    options: Iterable[object],
    runs_dir: Path,
    stops: Iterable[int],
    devices: Iterable[str] = repeat("cpu"),
) -> Path:
    """Run a script up to each step of `stops` in turn, by resuming it; return the run folder."""
    for stop, device in zip(stops, devices, strict=False):
        new_or_resumed = resuming(folder(runs_dir)) if runs_dir.exists() else ("--runs-dir", runs_dir, *options)
        process = run(script, *new_or_resumed, "--device", device, "--stop-after", stop, "--quiet")
        assert process.returncode == 0, process.stderr
    return folder(runs_dir)


def result_of(path: Path) -> dict[str, Any]:
    """Return the result of a run."""
    result: dict[str, Any] = json.loads((path / "result.json").read_text())
    return result


def checkpoint_of(path: Path) -> dict[str, Any]:
    """Return the state in the newest checkpoint of a run, without what depends on the clock."""
    content = checkpoint.newest(path / "checkpoints")
    assert content, f"{path} has no checkpoint"
    del content["files"], content["episodes"]["seconds"]
    for place in (content["source"], *content["source"].get("actors", ())):
        place.pop("seconds_per_step", None)
    for place in (content.get("replay", {}), *content["source"].get("blocks", ())):
        if "transitions" in place:  # their layout in the file depends on where a run was resumed
            place["transitions"] = [
                [
                    None if part is None else torch.tensor(np.array(part))
                    for part in (t.state, t.action, t.reward, t.last_state)
                ]
                for t in unpack(place["transitions"])
            ]
    return content


def differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Return the names of the entries of two nested checkpoints that are not equal bit for bit."""
    if type(a) is not type(b):
        return [name]
    if isinstance(a, torch.Tensor):
        return [] if a.dtype == b.dtype and torch.equal(a, b) else [name]
    if isinstance(a, dict):
        shared = [d for key in a.keys() & b.keys() for d in differences(a[key], b[key], f"{name}/{key}")]
        return shared + [f"{name}/{key}" for key in a.keys() ^ b.keys()]
    if isinstance(a, list | tuple):
        pairs = zip(a, b, strict=True)
        return [d for i, (x, y) in enumerate(pairs) for d in differences(x, y, f"{name}/{i}")]
    return [] if a == b else [name]


def episodes_of(path: Path) -> list[list[str]]:
    """Return the rows of a run's episodes.csv, without the columns that depend on the clock."""
    lines = (path / "episodes.csv").read_text().splitlines()
    return [line.split(",")[:4] for line in lines]


def assert_equal_runs(one: Path, other: Path) -> None:
    """Compare the newest checkpoints of two runs bit for bit, and their episodes."""
    found = differences(checkpoint_of(one), checkpoint_of(other))
    assert found == [], found
    assert episodes_of(one) == episodes_of(other)


def scalars_of(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Return a run's TensorBoard scalars as {tag: [(step, value)]}, without the tags that depend on the clock."""
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0})
    accumulator.Reload()
    tags = [
        tag for tag in accumulator.Tags()["scalars"] if not tag.startswith(("time/", "result/")) and "fps" not in tag
    ]
    assert {"episodes/reward", "train/loss", "train/avg_loss"} <= set(tags)
    # The files of a run that was stopped and resumed within a second are not read in their order.
    return {tag: sorted((event.step, event.value) for event in accumulator.Scalars(tag)) for tag in tags}


def tags_of(path: Path) -> list[str]:
    """Return the tags of a run's scalars in the order in which they were first written."""
    [file] = path.glob("events.out.tfevents.*")
    values = (value for event in EventFileLoader(str(file)).Load() for value in event.summary.value)
    return list(dict.fromkeys(value.tag for value in values if value.metadata.plugin_data.plugin_name == "scalars"))


def workers_of(process: ForkedProcess) -> list[psutil.Process]:
    """Return the actors, players and learners that the script's fork server has started and that have no children."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if child.ppid() != process.pid and child.children() == []]


def gone(pids: Iterable[int]) -> bool:
    """Wait until these processes have ended, and return whether they have."""
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)], timeout=20)
    return all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


def wait_for(condition: Callable[[], Any], process: ForkedProcess, seconds: float = 120) -> None:
    """Wait until `condition` holds; fail if the process ends or the time is over before that."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
