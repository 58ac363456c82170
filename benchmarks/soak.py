#!/usr/bin/env python3
"""Do long runs leak? Memory, handles and threads of four scripts, half an hour each.

    ./soak.py                                     # two hours
    ./soak.py --script "02_n_envs --envs 3"

In the run with actor processes, one of them is killed every minute. The exit code is 1 if killed actors did not come
back, or if memory, handles or threads grow by more than GROWTH of their median (and by more than 1 MB, handle or
thread) in the second half of a run, when the replay is full. Growth is the slope of a straight line. Where actors are
killed, the sums depend on how many of them play, so the peaks of both halves are compared instead.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from measures import command

import numpy as np
import pandas as pd
import psutil

ENDLESS = "--set stop_reward=none --set milestone=none"
DQN = f"{ENDLESS} --set replay_size=2000 --set replay_initial=1000 --set checkpoint_every=2000"
KILLED = "distributed/03_ppo_actors --actors 2"  # script whose actors are killed
SCRIPTS = {
    "02_n_envs --envs 3": DQN,
    "05_native_envs --envs 4": DQN,
    "chapter08/08_dqn_rainbow --envs 4": DQN,
    KILLED: ENDLESS,
}
INTERVAL = 10.0  # seconds between samples
GROWTH = 0.05
GAUGES = ("memory_mb", "handles", "threads")


def sample(process: psutil.Process) -> dict[str, float]:
    """Return memory, handles and threads of a process and its descendants, and their number.

    Memory is the processes' private memory, so without shared libraries, plus what the first one maps of shared
    memory. So it does not depend on what else runs on the machine.
    """
    sums = dict.fromkeys((*GAUGES, "processes"), 0.0)
    with suppress(OSError):
        [kilobytes] = re.findall(r"RssShmem:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        sums["memory_mb"] = int(kilobytes) / 1e3
    for each in (process, *children_of(process)):
        with suppress(psutil.NoSuchProcess), each.oneshot():  # it may end meanwhile
            sums["memory_mb"] += each.memory_full_info().uss / 1e6
            sums["handles"] += each.num_fds()
            sums["threads"] += each.num_threads()
            sums["processes"] += 1
    return sums


def children_of(process: psutil.Process) -> list[psutil.Process]:
    """Return the descendants of a process; none if it has ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def kill_an_actor(process: psutil.Process) -> int:
    """Kill the oldest process that the fork server has started, and return the number of killed processes, 0 or 1."""
    direct = set(children_of(process)) - {each for child in children_of(process) for each in children_of(child)}
    actors = sorted(set(children_of(process)) - direct, key=lambda each: each.create_time())
    for actor in actors[:1]:
        actor.kill()
    return len(actors[:1])


def soak(script: str, seconds: float) -> pd.DataFrame:
    """Run a script for some time, and return a row per sample.

    Raises:
        SystemExit: if the script fails.
    """
    samples = []
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--time-limit", str(round(seconds)), "--quiet", "--runs-dir", folder]
        words = command(f"{script} {SCRIPTS[script]}", *limits)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        start, killed = time.monotonic(), 0
        while process.poll() is None:
            time.sleep(INTERVAL)
            now = time.monotonic() - start
            if process.poll() is None and now <= seconds:
                if script == KILLED and now > 60 * (killed + 1):
                    killed += kill_an_actor(psutil.Process(process.pid))
                samples.append({"seconds": now, **sample(psutil.Process(process.pid)), "killed": killed})
    if process.returncode:
        raise SystemExit(f"{script} ended with exit code {process.returncode}")
    return pd.DataFrame(samples)


def problems(script: str, frame: pd.DataFrame) -> Iterator[str]:
    """Yield what grew, and whether killed actors did not come back."""
    is_late = frame["seconds"] > frame["seconds"].max() / 2
    early, late = frame[~is_late], frame[is_late]
    for name in GAUGES:
        slope = np.polyfit(late["seconds"], late[name], 1)[0]
        growth = late[name].max() - early[name].max() if script == KILLED else slope * np.ptp(late["seconds"])
        print(f"{script}: {name} {late[name].median():,.0f}, grew by {growth:.1f} in the second half")
        if growth > max(1.0, GROWTH * late[name].median()):
            yield f"{script}: {name} grew by {growth:.1f} in the second half"
    if script == KILLED:
        complete = frame[frame["processes"] == frame["processes"].max()]
        # An actor's start may take minutes on a busy machine.
        if complete["killed"].max() < max(1, frame["killed"].max() - 3):
            yield f"{script}: of {frame['killed'].max()} killed actors, only {complete['killed'].max()} came back"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="duration of each run (default: 30)")
    parser.add_argument("--script", action="append", choices=SCRIPTS, help="only this script; repeatable")
    args = parser.parse_args()
    runs = {script: soak(script, 60 * args.minutes) for script in args.script or SCRIPTS}
    sys.exit("\n".join(text for script, frame in runs.items() for text in problems(script, frame)) or 0)


if __name__ == "__main__":
    main()
