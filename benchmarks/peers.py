#!/usr/bin/env python3
"""How long this project and others take to solve Pong, one after another on one machine, by one rule.

    ./peers.py --cleanrl ~/cleanrl --time-limit 600            # CleanRL is no package: its checkout
    ./peers.py --peers sb3-ppo sb3-dqn --seeds 3 --anew        # some, in place of all that is in the table
    ./peers.py --tables                                        # only docs/speed.md's table and picture anew

Each peer runs with the settings that it publishes for Atari or Pong, in an environment of its own with the pinned
packages of peers/*.txt, which is made when it is first needed. The clock starts with the process; it is stopped when
the mean return of the last 100 training episodes is 18, or at the time limit; an evaluation after that is not counted.
What was measured is not measured again at the same commit, on the same machine, with the same limit, pins and checkout;
where one of these is another all are measured anew, and some peers alone only with --anew, as the others' figures go.
"""

import argparse
import contextlib
import json
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
from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd

import lab
import time_to_solve

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib import cli
from lib.run.curve import rolling_mean

HERE = Path(__file__).parent / "peers"
OWN = "distributed/02_ppo_actors"
# Each peer's environment and command; CleanRL's script is its checkout's.
PEERS = {
    "sb3-ppo": ("sb3", ["run_sb3.py", "ppo"]),
    "sb3-dqn": ("sb3", ["run_sb3.py", "dqn"]),
    "rl_games-ppo": ("rl_games", ["run_rl_games.py"]),
    "cleanrl-ppo": ("cleanrl", ["cleanrl/ppo_atari_envpool.py", "--env-id", "Pong-v5"]),
}
NAMES = {"sb3": "stable-baselines3", "rl_games": "rl-games"}  # of the packages
RANDOM = {"sb3-dqn": 100_000}  # agent steps before it learns
EPISODE = re.compile(r"global_step=(\d+), episodic_return=\[?\s*(-?[\d.]+)")
WINDOW, GOAL = 100, float(time_to_solve.GOAL)
COLUMNS = ("peer", "version", "seed", "stopped", "seconds", "steps", "episodes", "mean_100", "emulator")
PICTURE = "![Mean return of the last 100 episodes against seconds, ours and the peers'](pictures/peers.png)"


def measure(peers: Sequence[str], seeds: int, time_limit: int, checkout: Path | None, anew: bool = False) -> None:
    """Run the peers that are not in benchmarks/results/peers.csv yet, one after another.

    Args:
        peers: which.
        seeds: 1 to this one.
        time_limit: seconds of a run.
        checkout: of CleanRL.
        anew: whether other peers' figures that were measured otherwise may go.

    Raises:
        SystemExit: they may not, or a peer failed or cannot be run.
    """
    from_checkout = version("cleanrl-ppo", checkout) if "cleanrl-ppo" in peers and checkout else ""
    all_pins = {name: pins(name) for name, _ in PEERS.values()}
    stamped = lab.stamp(time_limit=time_limit, pins=all_pins, checkout=from_checkout)
    goes_on = lab.can_go_on("peers", COLUMNS, stamped)
    replaced = lab.path_of("peers").exists() and not goes_on and not anew
    if lost := sorted(set(lab.read("peers")[0]["peer"]) - set(peers)) if replaced else []:
        differing = " and ".join(lab.differences("peers", COLUMNS, stamped))
        raise SystemExit(
            f"{lab.path_of('peers')} was measured with other {differing} and would lose {', '.join(lost)}; "
            f"measure all, or give --anew"
        )
    results = lab.Results("peers", COLUMNS, stamped, goes_on)
    for peer in set(peers) - {OWN}:
        command(peer, Path(), 0, checkout)  # before hours are spent on the others
    for seed in range(1, seeds + 1):
        for peer in peers:
            measured = version(peer, checkout)
            if results.has(peer=peer, version=measured, seed=seed):
                continue
            python = Path() if peer == OWN else environment(PEERS[peer][0])
            emulator = time_to_solve.emulator_speed()
            if peer == OWN:
                stopped, episodes = own(seed, time_limit)
            else:
                stopped, episodes = play(command(peer, python, seed, checkout), time_limit)
            kept = lab.Results(episodes_of(peer, seed), ("step", "seconds", "return"), stamped)
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
                mean_100=f"{np.mean([total for *_, total in episodes[-WINDOW:]]):.1f}" if episodes else "",
                emulator=f"{emulator:.0f}",
            )


def pins(name: str) -> list[str]:
    """An environment's packages."""
    return (HERE / f"{name}.txt").read_text().split()


def version(peer: str, checkout: Path | None) -> str:
    """What was measured: the package with its version, or the commit of a checkout."""
    if peer == OWN:
        return f"this one, {str(lab.commit())[:10]}"
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

    It sees no GPU, as ours uses none here.

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
            env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": "", "CUDA_VISIBLE_DEVICES": ""},
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


def own(seed: int, time_limit: int) -> tuple[str, list[tuple[int, float, float]]]:
    """What `play` tells, of this project, which ends by the same rule by itself and counts from its process's start."""
    with lab.finished_run(OWN, "--seed", str(seed), "--time-limit", str(time_limit)) as run:
        frame = pd.read_csv(run / "episodes.csv")
        stopped = json.loads((run / "result.json").read_text())["stopped"]
    return stopped, list(frame[["step", "seconds", "return"]].itertuples(index=False, name=None))


def episodes_of(peer: str, seed: int) -> str:
    """The file of results that has the episodes of a run."""
    return f"peers-{peer.replace('/', '-')}-seed{seed}"


def learning_speed(peer: str, seed: int) -> float:
    """Agent steps a second from the first episode that ended when it had begun to learn to the last one."""
    episodes, _ = lab.read(episodes_of(peer, seed))
    learning = episodes[episodes["step"] >= RANDOM.get(peer, 0)]
    made = learning.iloc[-1] - learning.iloc[0]
    return made["step"] / made["seconds"] if made["seconds"] else math.nan


def table() -> str:
    """A row a peer."""
    frame, stamped = lab.read("peers")
    rows = []
    for (peer, version), found in frame.groupby(["peer", "version"], sort=False):
        solved = found["stopped"] == "solved"
        rows.append(
            (
                peer,
                version,
                f"{solved.sum()} of {len(found)} in {stamped['settings']['time_limit']} s",
                lab.spread(found["seconds"].where(solved, np.inf), 0).replace("inf", "-"),
                lab.spread(found["steps"] / 1000, 0),
                lab.spread(found["mean_100"]),
                lab.spread(pd.Series([learning_speed(peer, seed) for seed in found["seed"]]), 0),
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
            "mean of the last 100 episodes, or of all if fewer, at the end",
        ),
        *("agent steps/s, learning", "emulator alone, steps/s"),
    )
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum over the seeds. {lab.where(stamped)}"


def draw() -> None:
    """Mean return of the last 100 episodes against seconds, as docs/pictures/peers.png."""
    frame, _ = lab.read("peers")
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    colors = dict(zip(frame["peer"].unique(), plt.rcParams["axes.prop_cycle"].by_key()["color"], strict=False))
    for row in frame[frame["episodes"] > 0].to_dict("records"):
        episodes, _ = lab.read(episodes_of(row["peer"], row["seed"]))
        label = row["peer"] if row["seed"] == 1 else ""
        axes.plot(
            episodes["seconds"], rolling_mean(episodes["return"]), label=label, color=colors[row["peer"]], linewidth=1
        )
    axes.axhline(GOAL, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="seconds since the process started", ylabel="mean return of the last 100 episodes")
    axes.legend(loc="center right", fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(lab.PICTURES / "peers.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", choices=(OWN, *PEERS), default=[OWN, *PEERS], help="some (default: all)")
    parser.add_argument("--seeds", type=cli.positive, default=1, help="1 to this one (default: 1)")
    parser.add_argument("--time-limit", type=cli.positive, default=600, help="seconds of a run (default: 600)")
    parser.add_argument("--anew", action="store_true", help="let the figures of peers that are not measured go")
    parser.add_argument("--cleanrl", type=Path, metavar="PATH", help="a checkout of CleanRL")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.tables:
        measure(args.peers, args.seeds, args.time_limit, args.cleanrl, args.anew)
    draw()
    lab.put(time_to_solve.PAGE, "peers", f"{PICTURE}\n\n{table()}")


if __name__ == "__main__":
    main()
