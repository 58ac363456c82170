#!/usr/bin/env python3
"""Measure how long this project and others take to solve Pong, one after another on one machine, under one rule.

    ./peers.py --cleanrl ~/cleanrl --time-limit 600            # CleanRL is not a package: give its checkout
    ./peers.py --peers sb3-ppo sb3-dqn --seeds 3 --overwrite   # only these; all other results are deleted
    ./peers.py --tables                                        # only the table and the picture of docs/speed.md

Each peer runs with the settings that it publishes for Atari or Pong. It has its own virtual environment with the pinned
packages of peers/*.txt, which is created when it is first needed. The clock starts with the process. It stops when the
mean return of the last 100 training episodes is 18, or at the time limit. An evaluation after that is not counted.

A peer is not measured again at the same commit, on the same machine, with the same limit, pins and checkout. If one of
these differs, all peers are measured again. To measure only some of them then takes --overwrite, because the results of
the others are deleted.
"""

import contextlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import lab
import launch
import markup
import time_to_solve
from lib import cli
from lib.run.curve import rolling_mean
from lib.run.stopping import TIME

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

HERE = Path(__file__).parent / "peers"
OWN = "distributed/03_ppo_actors"
# Name of each peer's environment, and its command. CleanRL's script is in its checkout.
PEERS = {
    "sb3-ppo": ("sb3", ["run_sb3.py", "ppo"]),
    "sb3-dqn": ("sb3", ["run_sb3.py", "dqn"]),
    "rl_games-ppo": ("rl_games", ["run_rl_games.py"]),
    "cleanrl-ppo": ("cleanrl", ["cleanrl/ppo_atari_envpool.py", "--env-id", "Pong-v5"]),
}
PACKAGES = {"sb3": "stable-baselines3", "rl_games": "rl-games"}
RANDOM_STEPS = {"sb3-dqn": 100_000}  # agent steps of random play before learning
SUMMARY = "peers/summary"
Episode = tuple[int, float, float]  # agent steps so far, seconds since the start, return

EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?\s*(-?[\d.]+)")
WINDOW, GOAL = 100, float(time_to_solve.GOAL)
COLUMNS = ("peer", "version", "seed", "stopped", "seconds", "steps", "episodes", "mean_100", "emulator")


def measure(peers: Sequence[str], seeds: int, time_limit: int, checkout: Path | None, overwrite: bool = False) -> None:
    """Run the peers that benchmarks/results/peers/summary.csv does not have yet, one after another.

    Args:
        peers: names of the peers.
        seeds: number of seeds, from 1 on.
        time_limit: seconds of a run.
        checkout: folder of CleanRL.
        overwrite: delete results of other peers that were measured with other settings.

    Raises:
        SystemExit: if such results would be deleted without `overwrite`, or if a peer fails or cannot be run.
    """
    all_pins = {name: pins(name) for name, _ in PEERS.values()}
    stamped = lab.stamp(time_limit=time_limit, pins=all_pins)
    differing = lab.differences(SUMMARY, COLUMNS, stamped)
    if not overwrite:
        lab.refuse_loss(SUMMARY, differing, "peer", peers)
    results = lab.Results(SUMMARY, COLUMNS, stamped, go_on=True, replace=overwrite)
    for peer in set(peers) - {OWN}:
        command(peer, Path(), 0, checkout)  # refuse a missing checkout before the first run
    for seed in range(1, seeds + 1):
        for peer in peers:
            measured = version(peer, checkout)
            if results.has(peer=peer, version=measured, seed=seed):
                continue
            python = Path() if peer == OWN else environment(PEERS[peer][0])
            emulator = time_to_solve.emulator_speed()
            if peer == OWN:
                stopped, episodes = own_run(seed, time_limit)
            else:
                stopped, episodes = play(command(peer, python, seed, checkout), time_limit)
            kept = lab.Results(episodes_of(peer, seed), ("step", "seconds", "return"), stamped, replace=True)
            for step, seconds, total in episodes:
                kept.add(step=step, seconds=f"{seconds:.2f}", **{"return": total})
            step, seconds, _ = episodes[-1] if episodes else (0, time_limit, 0.0)
            results.add(
                peer=peer,
                version=measured,
                seed=seed,
                stopped=stopped,
                seconds=f"{seconds:.1f}",
                steps=step,
                episodes=len(episodes),
                mean_100=f"{mean_of_last(episodes):.1f}" if episodes else "",
                emulator=f"{emulator:.0f}",
            )


def pins(name: str) -> list[str]:
    """Return the pinned packages of an environment."""
    return (HERE / f"{name}.txt").read_text().split()


def version(peer: str, checkout: Path | None) -> str:
    """Return the measured version: a package with its version, or a checkout with its commit."""
    if peer == OWN:
        return f"this project, {str(lab.commit())[:10]}"
    name, _ = PEERS[peer]
    if name in PACKAGES:
        return next(pin for pin in pins(name) if pin.startswith(PACKAGES[name])).replace("==", " ")
    assert checkout is not None
    return f"{name} {lab.commit_of(checkout)}"


def environment(name: str) -> Path:
    """Return the Python of a peer's virtual environment, which is created again when its pins change."""
    folder = HERE / f".venv-{name}"
    created_from = folder / "created-from.txt"
    if not created_from.exists() or created_from.read_text().split() != pins(name):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = ["--quiet", "--requirement", str(HERE / f"{name}.txt")]
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", *packages], check=True)
        shutil.copy(HERE / f"{name}.txt", created_from)
    return folder / "bin" / "python"


def command(peer: str, python: Path, seed: int, checkout: Path | None) -> list[str]:
    """Return the command that starts a peer.

    Raises:
        SystemExit: if its script is in a checkout that does not exist.
    """
    name, (script, *options) = PEERS[peer]
    path = HERE / script if name in PACKAGES else (checkout or Path()) / script
    if not path.exists():
        raise SystemExit(f"{peer} runs from a checkout, but {path} does not exist; give its folder with --{name} PATH")
    return [str(python), str(path.resolve()), *options, "--seed", str(seed)]


def play(command: Sequence[str], time_limit: float) -> tuple[str, list[Episode]]:
    """Run a peer until its game is solved or the time is over, then kill it with all its processes.

    It sees no GPU, because this project uses none here.

    Returns:
        "solved", "time limit" or "ended by itself", and its episodes.

    Raises:
        SystemExit: if it failed.
    """
    began = time.perf_counter()
    episodes: list[Episode] = []
    output: deque[str] = deque(maxlen=20)
    with tempfile.TemporaryDirectory() as folder:  # working directory, for the files that the peer writes
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,
        )
        assert process.stdout is not None
        end = threading.Timer(time_limit, kill, (process,))
        end.start()
        try:
            for line in process.stdout:
                output.append(line)
                match = EPISODE.search(line)
                if match:
                    episodes.append((int(match[1]), time.perf_counter() - began, float(match[2])))
                    if is_solved(episodes):
                        return "solved", episodes
            code = process.wait()
        finally:
            end.cancel()
            kill(process)
            process.wait()
    if time.perf_counter() - began >= time_limit:
        return TIME, episodes
    if code:
        raise SystemExit(f"{' '.join(command)} failed with exit code {code}:\n{''.join(output)}")
    return "ended by itself", episodes


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and all its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def mean_of_last(episodes: Sequence[Episode]) -> float:
    """Return the mean return of the last 100 episodes."""
    return float(np.mean([total for *_, total in episodes[-WINDOW:]]))


def is_solved(episodes: Sequence[Episode]) -> bool:
    """Return whether the mean return of the last 100 episodes has reached the goal."""
    return len(episodes) >= WINDOW and mean_of_last(episodes) >= GOAL


def own_run(seed: int, time_limit: int) -> tuple[str, list[Episode]]:
    """Run this project and return the same as `play`. Its own clock starts with its process, too."""
    with launch.finished_run(OWN, "--seed", str(seed), "--time-limit", str(time_limit)) as run:
        frame = pd.read_csv(run / "episodes.csv")
        stopped = launch.result_of(run)["stopped"]
    return stopped, list(frame[["step", "seconds", "return"]].itertuples(index=False, name=None))


def episodes_of(peer: str, seed: int) -> str:
    """Return the name of the results file with the episodes of a run."""
    return f"peers/{peer.replace('/', '-')}-seed{seed}"


def learning_speed(peer: str, seed: int) -> float:
    """Return the agent steps per second from the first episode after random play to the last; NaN if there are none."""
    episodes, _ = lab.read(episodes_of(peer, seed))
    learning = episodes[episodes["step"] >= RANDOM_STEPS.get(peer, 0)]
    if len(learning) < 2:
        return math.nan
    difference = learning.iloc[-1] - learning.iloc[0]
    return float(difference["step"] / difference["seconds"])


def table() -> str:
    """Return a row per peer, and a sentence with the machine and the date."""
    frame, stamped = lab.read(SUMMARY)
    limit = stamped["settings"]["time_limit"]
    rows = []
    for (peer, version), own in frame.groupby(["peer", "version"], sort=False):
        solved = own["stopped"] == "solved"
        if solved.any():
            seconds = markup.spread(own["seconds"].where(solved, np.inf), 0, unit=" s", single="seed")
        else:
            seconds = f"not in {limit} s" if (own["stopped"] == TIME).all() else "no seed solved"
        speeds = pd.Series([learning_speed(peer, seed) for seed in own["seed"]])
        package = "this project" if peer == OWN else version
        rows.append(
            (
                f"`{peer}`",
                package,
                seconds,
                markup.spread(own["steps"] / 1000, 0),
                markup.spread(own["mean_100"]),
                markup.spread(speeds, 0),
                markup.spread(own["emulator"], 0),
            )
        )
    header = (
        "project",
        "version",
        "time to 18",
        "thousand agent steps",
        "final mean of up to 100 episodes",
        "agent steps/s",
        "emulator alone",
    )
    return f"{markup.table(header, rows)}\n\n{markup.measured_on([stamped])}"


def draw() -> None:
    """Draw the mean return of the last 100 episodes against seconds as docs/pictures/peers.png."""
    frame, _ = lab.read(SUMMARY)
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    colors = dict(zip(frame["peer"].unique(), plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for row in frame[frame["episodes"] > 0].to_dict("records"):
        episodes, _ = lab.read(episodes_of(row["peer"], row["seed"]))
        label = row["peer"] if row["seed"] == 1 else ""
        mean = rolling_mean(episodes["return"])
        axes.plot(episodes["seconds"], mean, label=label, color=colors[row["peer"]], linewidth=1)
    axes.axhline(GOAL, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="seconds since the process started", ylabel="mean return of the last 100 episodes")
    axes.legend(loc="center right", fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(markup.PICTURES / "peers.png", dpi=110)


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the page."""
    yield markup.Block(time_to_solve.PAGE, "peers", table())


def main() -> None:
    parser = lab.parser(__doc__)
    parser.add_argument("--peers", nargs="+", choices=(OWN, *PEERS), default=[OWN, *PEERS], help="default: all")
    parser.add_argument("--seeds", type=cli.positive, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--time-limit", type=cli.positive, default=600, help="seconds of a run (default: 600)")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the results of peers that are not measured now"
    )
    parser.add_argument("--cleanrl", type=Path, metavar="PATH", help="checkout of CleanRL")
    parser.add_argument("--tables", action="store_true", help="only write the table and the picture")
    args = parser.parse_args()
    if not args.tables:
        measure(args.peers, args.seeds, args.time_limit, args.cleanrl, args.overwrite)
    markup.write(blocks())
    draw()


if __name__ == "__main__":
    main()
