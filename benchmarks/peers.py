#!/usr/bin/env python3
"""How long other projects take to solve Pong on this machine, by the rule that ours are timed by.

    ./peers.py --seeds 1 --time-limit 900
    ./peers.py --cleanrl ~/cleanrl --peers cleanrl-ppo         # CleanRL is no package: its checkout
    ./peers.py --tables                                        # only docs/speed.md's table and picture anew

Each peer runs with the settings that it publishes for Atari or Pong, in an environment of its own with the pinned
packages of peers/*.txt, which is made when it is first needed. The clock starts with the process; it is stopped when
the mean return of the last 100 training episodes is 18, or at the time limit. What was measured is not measured again
at the same commit, on the same machine, with the same limit and pins.
"""

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

import lab
import time_to_solve

matplotlib.use("Agg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent / "peers"
# Each peer's environment and command; CleanRL's script is its checkout's.
PEERS = {
    "sb3-ppo": ("sb3", ["run_sb3.py", "ppo"]),
    "sb3-dqn": ("sb3", ["run_sb3.py", "dqn"]),
    "rl_games-ppo": ("rl_games", ["run_rl_games.py"]),
    "cleanrl-ppo": ("cleanrl", ["cleanrl/ppo_atari_envpool.py", "--env-id", "Pong-v5"]),
}
NAMES = {"sb3": "stable-baselines3", "rl_games": "rl-games"}  # of the packages
EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?\s*(-?[\d.]+)")
WINDOW, GOAL = 100, float(time_to_solve.GOAL)
COLUMNS = ("peer", "version", "seed", "stopped", "seconds", "steps", "episodes", "mean_100", "emulator")
OWN = "distributed/01_ppo"
PICTURE = "![Mean return of the last 100 episodes against seconds, ours and the peers'](pictures/peers.png)"


def measure(peers: Sequence[str], seeds: int, time_limit: int, checkout: Path | None) -> None:
    """Run the peers that are not in benchmarks/results/peers.csv yet, one after another."""
    stamped = lab.stamp(time_limit=time_limit, pins={name: pins(name) for name, _ in PEERS.values()})
    go_on = (lab.RESULTS / "peers.csv").exists() and not lab.differences("peers", stamped)
    results = lab.Results("peers", COLUMNS, stamped, go_on)
    for peer in peers:
        command(peer, Path(), 0, checkout)  # before hours are spent on the others
    for seed in range(1, seeds + 1):
        for peer in peers:
            if results.has(peer=peer, seed=seed):
                continue
            python = environment(PEERS[peer][0])
            emulator = time_to_solve.emulator_speed()
            stopped, episodes = play(command(peer, python, seed, checkout), time_limit)
            kept = lab.Results(f"peers-{peer}-seed{seed}", ("step", "seconds", "return"), stamped)
            for step, seconds, total in episodes:
                kept.add(step=step, seconds=f"{seconds:.2f}", **{"return": total})
            step, seconds, _ = episodes[-1] if episodes else (0, time_limit, 0.0)
            results.add(
                peer=peer,
                version=version(peer, checkout),
                seed=seed,
                stopped=stopped,
                seconds=f"{seconds:.1f}",
                steps=step,
                episodes=len(episodes),
                mean_100=f"{np.mean([total for *_, total in episodes[-WINDOW:]]):.1f}" if episodes else "",
                emulator=f"{emulator:.0f}",
            )


def pins(name: str) -> list[str]:
    """An environment's packages."""
    return (HERE / f"{name}.txt").read_text().split()


def version(peer: str, checkout: Path | None) -> str:
    """What was measured: the package with its version, or the commit of a checkout."""
    name, _ = PEERS[peer]
    if name in NAMES:
        return next(pin for pin in pins(name) if pin.startswith(NAMES[name])).replace("==", " ")
    shown = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    return f"{name} {shown.stdout[:10]}"


def environment(name: str) -> Path:
    """The Python of a peer's virtual environment, which is made when its pins are not what it was made of."""
    folder = HERE / f".venv-{name}"
    made_of = folder / "made-of.txt"
    if not made_of.exists() or made_of.read_text().split() != pins(name):
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        packages = ["--quiet", "--requirement", str(HERE / f"{name}.txt")]
        subprocess.run([str(folder / "bin" / "python"), "-m", "pip", "install", *packages], check=True)
        shutil.copy(HERE / f"{name}.txt", made_of)
    return folder / "bin" / "python"


def command(peer: str, python: Path, seed: int, checkout: Path | None) -> list[str]:
    """What starts a peer.

    Raises:
        SystemExit: its script is in a checkout that is not there.
    """
    name, (script, *own) = PEERS[peer]
    path = HERE / script if name in NAMES else (checkout or Path()) / script
    if not path.exists():
        raise SystemExit(f"{peer} runs from a checkout, and {path} is not there; give its folder by --{name} PATH")
    return [str(python), str(path.resolve()), *own, "--seed", str(seed)]


def play(command: Sequence[str], time_limit: float) -> tuple[str, list[tuple[int, float, float]]]:
    """Let a peer train until its game is solved, or for so many seconds, and end it with all its processes.

    Returns:
        "solved", "time limit" or "ended by itself", and its episodes: agent steps so far, seconds, return.

    Raises:
        SystemExit: it failed.
    """
    began = time.perf_counter()
    episodes: list[tuple[int, float, float]] = []
    said: list[str] = []
    with tempfile.TemporaryDirectory() as folder:  # for what it writes beside itself
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": ""},
            start_new_session=True,
        )
        assert process.stdout is not None
        end = threading.Timer(time_limit, _end, (process,))
        end.start()
        try:
            for line in process.stdout:
                said = [*said[-20:], line]
                if found := EPISODE.search(line):
                    episodes.append((int(found[1]), time.perf_counter() - began, float(found[2])))
                    if solved(episodes):
                        return "solved", episodes
            code = process.wait()
        finally:
            end.cancel()
            _end(process)
            process.wait()
    if time.perf_counter() - began >= time_limit:
        return "time limit", episodes
    if code:
        raise SystemExit(f"{' '.join(command)} failed with exit code {code}:\n{''.join(said)}")
    return "ended by itself", episodes


def solved(episodes: Sequence[tuple[int, float, float]]) -> bool:
    """Whether the mean return of the last 100 episodes has reached the goal."""
    return len(episodes) >= WINDOW and float(np.mean([total for *_, total in episodes[-WINDOW:]])) >= GOAL


def _end(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def measured() -> tuple[pd.DataFrame, dict]:
    """All rows with the limit of each, ours first, and the peers' stamp."""
    frame, stamped = lab.read("peers")
    of_ours, our_stamp = lab.read(time_to_solve.slug(OWN, []))
    of_ours = of_ours.assign(peer=f"`{OWN}`", version=our_stamp["commit"][:10])
    of_ours["mean_100"] = [mean_100(own_episodes(seed)).iloc[-1] for seed in of_ours["seed"]]
    limits = (our_stamp["settings"]["time_limit"], stamped["settings"]["time_limit"])
    both = [part.assign(limit=limit) for part, limit in zip((of_ours, frame), limits, strict=True)]
    return pd.concat(both)[[*COLUMNS, "limit"]], stamped


def own_episodes(seed: int) -> pd.DataFrame:
    return lab.read(f"{time_to_solve.slug(OWN, [])}-seed{seed}")[0]


def mean_100(episodes: pd.DataFrame) -> pd.Series:
    return episodes["return"].rolling(WINDOW, min_periods=1).mean()


def table() -> str:
    """A row a peer, ours first."""
    frame, stamped = measured()
    rows = []
    for (peer, version), found in frame.groupby(["peer", "version"], sort=False):
        ended = found["stopped"] == "solved"
        times = time_to_solve.quantiles(found["seconds"].where(ended, np.inf))
        rows.append(
            (
                peer,
                version,
                f"{ended.sum()} of {len(found)} in {found['limit'].iloc[0]} s",
                " / ".join("-" if np.isinf(seconds) else f"{seconds:.0f}" for seconds in times),
                lab.spread(found["steps"] / 1000, 0),
                lab.spread(found["mean_100"]),
                lab.spread(found["steps"] / found["seconds"], 0),
                lab.spread(found["emulator"], 0),
            )
        )
    header = (
        *(
            "who",
            "version",
            "solved",
            "seconds to 18",
            "thousand agent steps",
            "mean of the last 100 episodes, at the end",
        ),
        *("agent steps/s, start included", "emulator alone, steps/s"),
    )
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum over the seeds. {lab.where(stamped)}"


def draw() -> None:
    """Mean return of the last 100 episodes against seconds, as docs/pictures/peers.png."""
    frame, _ = measured()
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    colors = dict(zip(frame["peer"].unique(), plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for row in frame[frame["episodes"] > 0].to_dict("records"):
        ours = row["peer"] == f"`{OWN}`"
        episodes = own_episodes(row["seed"]) if ours else lab.read(f"peers-{row['peer']}-seed{row['seed']}")[0]
        label = row["peer"].strip("`") if row["seed"] == 1 else ""
        axes.plot(episodes["seconds"], mean_100(episodes), label=label, color=colors[row["peer"]], linewidth=1)
    axes.axhline(GOAL, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="seconds since the process started", ylabel="mean return of the last 100 episodes")
    axes.legend(loc="center right", fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(lab.PICTURES / "peers.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=tuple(PEERS), default=list(PEERS), help="some (default: all)")
    parser.add_argument("--seeds", type=int, default=1, help="1 to this one (default: 1)")
    parser.add_argument("--time-limit", type=int, default=900, help="seconds of a run (default: 900)")
    parser.add_argument("--cleanrl", type=Path, metavar="PATH", help="a checkout of CleanRL")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.tables:
        measure(args.peers, args.seeds, args.time_limit, args.cleanrl)
    draw()
    lab.put(time_to_solve.PAGE, "peers", f"{PICTURE}\n\n{table()}")


if __name__ == "__main__":
    main()
