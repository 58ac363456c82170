#!/usr/bin/env python3
"""Do long runs stay as they are? Memory, handles, threads and event files of four scripts, half an hour each.

    ./soak.py                  # two hours; --jobs 2 for two scripts at once
    ./soak.py tables           # put the table into docs/reliability.md again

In the run with actor processes, one of them is killed every minute. The slopes are those of straight lines through the
second half of the samples, when the replay is full.
"""

import argparse
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

import lab

NAME = "soak"
PAGE = "docs/reliability.md"
DQN = {"stop_reward": "none", "milestone": "none", "replay_size": 2_000, "replay_initial": 1_000}
SCRIPTS: dict[str, dict[str, Any]] = {
    "02_n_envs --envs 3": DQN,
    "05_native_envs --envs 4": DQN,
    "chapter08/08_dqn_rainbow --envs 4": DQN,
    "distributed/04_ppo_actors --actors 2": {"stop_reward": "none", "milestone": "none"},
}
KILLED = "distributed/04_ppo_actors --actors 2"  # script whose actors are killed
COLUMNS = ("script", "seconds", "steps", "memory_mb", "handles", "threads", "processes", "event_kb", "killed", "report")
INTERVAL = 10.0  # seconds between samples


def sample(process: psutil.Process) -> dict[str, float]:
    """Return memory, handles, threads and the number of a process and its descendants. Shared memory counts once."""
    everyone = [process, *process.children(recursive=True)]
    sums = dict.fromkeys(("memory_mb", "handles", "threads", "processes"), 0.0)
    for each in everyone:
        try:
            with each.oneshot():
                sums["memory_mb"] += each.memory_full_info().pss / 1e6
                sums["handles"] += each.num_fds()
                sums["threads"] += each.num_threads()
                sums["processes"] += 1
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
    return sums


def kill_an_actor(process: psutil.Process) -> int:
    """Kill the oldest process that the fork server has started, and return the number of killed processes, 0 or 1."""
    children = process.children(recursive=True)
    actors = [each for each in children if each.ppid() != process.pid]
    for actor in sorted(actors, key=lambda each: each.create_time())[:1]:
        actor.kill()
    return len(actors[:1])


def soak(script: str, seconds: float, results: lab.Results, lock: threading.Lock) -> None:
    """Run a script for some time, and add a row per sample."""
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--time-limit", str(round(seconds)), "--quiet", "--runs-dir", folder]
        words = lab.command(script, *lab.assignments(SCRIPTS[script]), *limits)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        start, killed = time.monotonic(), 0
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(INTERVAL)
            now = time.monotonic() - start
            if process.poll() is not None or not any(Path(folder).iterdir()):
                continue
            [run] = Path(folder).iterdir()
            if script == KILLED and now > 60 * (killed + 1):
                killed += kill_an_actor(watched)
            row = {"script": script, "seconds": round(now, 1), "steps": steps_of(run), **rounded(sample(watched))}
            events = sum(path.stat().st_size for path in run.glob("events.out.*")) / 1e3
            with lock:
                results.add(**row, event_kb=round(events, 1), killed=killed, report="")
        if process.returncode:
            raise SystemExit(f"{script} ended with exit code {process.returncode}")
        [run] = Path(folder).iterdir()
        begun = time.monotonic()
        subprocess.run(
            [*lab.command("tools/report"), str(run), "--output", folder], check=True, stdout=subprocess.DEVNULL
        )
        last = {name: value for name, value in results.rows[-1].items() if name != "report"}
        with lock:
            results.add(**last | {"script": script, "report": round(time.monotonic() - begun, 1)})


def steps_of(run: Path) -> int:
    """Return the agent steps at the end of the newest episode."""
    file = run / "episodes.csv"
    return int(pd.read_csv(file).step.max()) if file.exists() and file.stat().st_size > 100 else 0


def rounded(sums: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sums.items()}


def table(frame: pd.DataFrame) -> str:
    """Return a row per script: duration, steps, slopes of the second half, and the time of the report."""
    rows = []
    for script, all_rows in frame.groupby("script", sort=False):
        own = all_rows[all_rows.report.isna()]
        late = own[own.seconds > own.seconds.max() / 2]
        slopes = {
            name: 3600 * np.polyfit(late.seconds, late[name], 1)[0] for name in ("memory_mb", "handles", "threads")
        }
        early = own[own.seconds <= own.seconds.max() / 2]
        bytes_per_step = [1e3 * np.ptp(half.event_kb) / max(1, np.ptp(half.steps)) for half in (early, late)]
        rows.append(
            (
                f"`{script}`",
                f"{own.seconds.max() / 60:.0f}",
                f"{own.steps.max():,}",
                f"{late.memory_mb.median():,.0f} ({slopes['memory_mb']:+.0f})",
                f"{late.handles.median():.0f} ({slopes['handles']:+.1f})",
                f"{late.threads.median():.0f} ({slopes['threads']:+.1f})",
                " / ".join(f"{value:.1f}" for value in bytes_per_step),
                f"{own.killed.max():.0f}",
                f"{all_rows.report.max():.1f}",
            )
        )
    header = (
        "script",
        "minutes",
        "steps",
        "MB (per hour)",
        "handles (per hour)",
        "threads (per hour)",
        "event bytes a step, first / second half",
        "actors killed",
        "report, s",
    )
    return lab.table(header, rows)


def blocks() -> Iterator[lab.Block]:
    """Yield the table of the page, if there are results."""
    if lab.path_of(NAME).exists():
        frame, stamped = lab.read(NAME)
        yield lab.Block(PAGE, "soak", f"{table(frame)}\n\n{lab.measured_on([stamped])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.add_experiments(parser, "soak", "tables")
    parser.add_argument("--minutes", type=float, default=30.0, help="duration of each run (default: 30)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default: 1)")
    args = parser.parse_args()
    if "soak" in (args.what or ["soak"]):
        results = lab.Results(NAME, COLUMNS, lab.stamp(threads=1, minutes=args.minutes, jobs=args.jobs))
        lock = threading.Lock()
        with ThreadPoolExecutor(args.jobs) as pool:
            for done in [pool.submit(soak, script, 60 * args.minutes, results, lock) for script in SCRIPTS]:
                done.result()
    lab.write(blocks())


if __name__ == "__main__":
    main()
