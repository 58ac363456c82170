#!/usr/bin/env python3
"""Do long runs leak? Memory, handles, threads and event files of four scripts, half an hour each.

    ./soak.py                           # two hours; --jobs 2 for two scripts at once
    ./soak.py --script "02_n_envs --envs 3"
    ./soak.py tables                    # put the table into benchmarks/notes/measurements.md again

In the run with actor processes, one of them is killed every minute. The slopes are those of straight lines through the
second half of the samples, when the replay is full. The exit code is 1 if memory, handles or threads grow by more than
GROWTH of their median in that half (and by more than 1 MB, handle or thread), or if a killed actor did not come back.
Where actors are killed, the sums depend on how many of them are up, so the peaks of both halves are compared.
"""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import lab
import launch
import markup
from lib import cli

import numpy as np
import pandas as pd
import psutil

NAME = "soak"
ENDLESS = {"stop_reward": "none", "milestone": "none"}
DQN = {**ENDLESS, "replay_size": 2_000, "replay_initial": 1_000, "checkpoint_every": 2_000}
SCRIPTS: dict[str, dict[str, Any]] = {
    "02_n_envs --envs 3": DQN,
    "05_native_envs --envs 4": DQN,
    "chapter08/08_dqn_rainbow --envs 4": DQN,
    "distributed/03_ppo_actors --actors 2": ENDLESS,
}
KILLED = "distributed/03_ppo_actors --actors 2"  # script whose actors are killed
COLUMNS = ("script", "seconds", "steps", "memory_mb", "handles", "threads", "processes", "event_kb", "killed", "report")
INTERVAL = 10.0  # seconds between samples
GROWTH = 0.05
GAUGES = ("memory_mb", "handles", "threads")


def sample(process: psutil.Process) -> dict[str, float]:
    """Return memory, handles and threads of a process and its descendants, and their number.

    Memory is the processes' private memory, so without shared libraries, plus what the first one maps of shared
    memory. So it does not depend on what else runs on the machine.
    """
    sums = dict.fromkeys(("memory_mb", "handles", "threads", "processes"), 0.0)
    with suppress(OSError):
        [kilobytes] = re.findall(r"RssShmem:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text())
        sums["memory_mb"] = int(kilobytes) / 1e3
    for each in (process, *children_of(process)):
        try:
            with each.oneshot():
                sums["memory_mb"] += each.memory_full_info().uss / 1e6
                sums["handles"] += each.num_fds()
                sums["threads"] += each.num_threads()
                sums["processes"] += 1
        except psutil.NoSuchProcess:
            continue  # it ended meanwhile
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


def soak(script: str, seconds: float, jobs: int) -> None:
    """Run a script for some time. Then write a row per sample into a file of its own, which replaces an older one."""
    stamped = lab.stamp(threads=1, minutes=seconds / 60, jobs=jobs)
    results = lab.Results(file_of(script), COLUMNS, stamped)  # before the run, so that it can be refused
    samples: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        limits = ["--time-limit", str(round(seconds)), "--quiet", "--runs-dir", folder]
        words = launch.command(script, *launch.assignments(SCRIPTS[script]), *limits)
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"})
        start, killed = time.monotonic(), 0
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(INTERVAL)
            now = time.monotonic() - start
            if process.poll() is not None or now > seconds or not any(Path(folder).iterdir()):
                continue
            [run] = Path(folder).iterdir()
            if script == KILLED and now > 60 * (killed + 1):
                killed += kill_an_actor(watched)
            row = {"script": script, "seconds": round(now, 1), "steps": steps_of(run), **rounded(sample(watched))}
            events = sum(path.stat().st_size for path in run.glob("events.out.*")) / 1e3
            samples.append({**row, "event_kb": round(events, 1), "killed": killed, "report": ""})
        if process.returncode:
            raise SystemExit(f"{script} ended with exit code {process.returncode}")
        [run] = Path(folder).iterdir()
        begun = time.monotonic()
        subprocess.run(
            [*launch.command("tools/report"), str(run), "--output", folder], check=True, stdout=subprocess.DEVNULL
        )
        if not samples:
            raise SystemExit(f"{script} ended before the first sample; give more --minutes")
        samples.append(samples[-1] | {"report": round(time.monotonic() - begun, 1)})
    for row in samples:
        results.add(**row)


def file_of(script: str) -> str:
    """Return the name of a script's results, such as "soak/02_n_envs"."""
    return f"{NAME}/{Path(script.split()[0]).name}"


def steps_of(run: Path) -> int:
    """Return the agent steps at the end of the newest episode."""
    file = run / "episodes.csv"
    return int(pd.read_csv(file).step.max()) if file.exists() and file.stat().st_size > 100 else 0


def rounded(sums: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sums.items()}


def halves(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the samples of the first and of the second half of a run."""
    samples = frame[frame.report.isna()]
    late = samples.seconds > samples.seconds.max() / 2
    return samples[~late], samples[late]


def slope(late: pd.DataFrame, name: str) -> float:
    """Return the slope of a gauge per hour."""
    return float(3600 * np.polyfit(late.seconds, late[name], 1)[0])


def gauge(script: str, early: pd.DataFrame, late: pd.DataFrame, name: str) -> str:
    """Return a cell of the table: the median and its slope, or the peaks of both halves if actors are killed."""
    if script == KILLED:
        return f"{early[name].max():,.0f}, then {late[name].max():,.0f}"
    per_hour = slope(late, name)
    return f"{late[name].median():,.0f} ({'0.0' if abs(per_hour) < 0.05 else f'{per_hour:+.1f}'})"


def problems(script: str, frame: pd.DataFrame) -> Iterator[str]:
    """Yield what grew, and whether killed actors did not come back."""
    early, late = halves(frame)
    hours = np.ptp(late.seconds) / 3600
    for name in GAUGES:
        growth = late[name].max() - early[name].max() if script == KILLED else slope(late, name) * hours
        if growth > max(1.0, GROWTH * late[name].median()):
            yield f"{script}: {name} grew by {growth:.1f} in the second half"
    if script == KILLED:
        complete = frame[frame.processes == frame.processes.max()]
        if complete.killed.max() < max(
            1, frame.killed.max() - 3
        ):  # an actor's start may take minutes on a busy machine
            yield f"{script}: of {frame.killed.max():.0f} killed actors, only {complete.killed.max():.0f} came back"


def table(frames: Mapping[str, pd.DataFrame]) -> str:
    """Return a row per script: duration, steps, slopes of the second half, and the time of the report."""
    rows = []
    for script, frame in frames.items():
        early, late = halves(frame)
        bytes_per_step = [1e3 * np.ptp(half.event_kb) / max(1, np.ptp(half.steps)) for half in (early, late)]
        rows.append(
            (
                f"`{script}`",
                f"{frame.seconds.max() / 60:.0f}",
                f"{frame.steps.max():,}",
                *(gauge(script, early, late, name) for name in GAUGES),
                " / ".join(f"{value:.1f}" for value in bytes_per_step),
                f"{frame.killed.max():.0f}",
                f"{frame.report.max():.1f}",
            )
        )
    header = (
        "script",
        "minutes",
        "steps",
        "MB (per hour)",
        "open files (per hour)",
        "threads (per hour)",
        "event bytes a step, first / second half",
        "actors killed",
        "report, s",
    )
    return markup.table(header, rows)


def measured() -> dict[str, tuple[pd.DataFrame, lab.Stamp]]:
    """Return the samples and the stamp of each script that was run to its end."""
    files = {script: file_of(script) for script in SCRIPTS}
    read = {script: lab.read(name) for script, name in files.items() if lab.path_of(name).exists()}
    return {script: (frame, stamped) for script, (frame, stamped) in read.items() if frame.report.notna().any()}


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the page, if there are results."""
    if runs := measured():
        frames = {script: frame for script, (frame, _) in runs.items()}
        stamps = [stamped for _, stamped in runs.values()]
        yield markup.Block(markup.MEASUREMENTS, "soak", f"{table(frames)}\n\n{markup.measured_on(stamps)}")


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "soak", "tables")
    parser.add_argument("--minutes", type=float, default=30.0, help="duration of each run (default: 30)")
    parser.add_argument("--jobs", type=cli.positive, default=1, help="runs at once (default: 1)")
    parser.add_argument("--script", action="append", choices=SCRIPTS, help="only this script; repeatable")
    args = parser.parse_args()
    if "soak" in (args.what or ["soak"]):
        measure = partial(soak, seconds=60 * args.minutes, jobs=args.jobs)
        for _ in launch.in_parallel(args.jobs, measure, args.script or SCRIPTS):
            pass
    markup.write(blocks())
    if found := [text for script, (frame, _) in measured().items() for text in problems(script, frame)]:
        raise SystemExit("\n".join(found))


if __name__ == "__main__":
    main()
