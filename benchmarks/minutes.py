"""Train chapter 9's rungs until Pong is solved, and make the book's table of minutes; called by chapter09.py --params.

A run that was interrupted goes on from its checkpoint with --go-on. Its episodes are kept in results/minutes-<params>
when it has ended.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

import curve
import lab

# Rungs, and how many seeds the table has of each.
SEEDS = {
    "01_baseline": 3,
    "03_parallel": 3,
    "04_wrappers --envs 3 --parallel": 3,
    "07_pong_in_minutes": 3,
    "02_n_envs --envs 3": 1,
    "04_wrappers --envs 3": 1,
    "06_fast_learner --envs 8": 1,
    "05_native_envs --envs 8": 1,
    "00_slow_grads": 1,
}
GOALS = ("17.0", "18.0")


class Trained(NamedTuple):
    """A finished run.

    Attributes:
        rung: script with its options.
        frame: its episodes.
        stamped: its stamp.
    """

    rung: str
    frame: pd.DataFrame
    stamped: lab.Stamp

    def minutes(self, goal: str) -> float:
        """Return the minutes until the mean of the last 100 episodes reached a goal; infinity if it did not."""
        reached = self.stamped["result"]["reached"].get(goal)
        return reached["seconds"] / 60 if reached else np.inf


def train(params: str, device: str, go_on: bool, rungs: Sequence[str], seeds: int, options: Sequence[str]) -> None:
    """Train rungs, seed by seed, until they are solved or reach their step limit.

    Args:
        params: value of the scripts' --params.
        device: device of the networks.
        go_on: continue interrupted runs; otherwise they are refused.
        rungs: rungs to train, or none for all.
        seeds: seeds of each rung, at most; 0 for those of SEEDS.
        options: further options of all scripts.

    Raises:
        SystemExit: if a run was interrupted and `go_on` is not given.
    """
    for seed in range(1, max(SEEDS.values()) + 1):
        for rung, number in SEEDS.items():
            if seed > (min(seeds, number) if seeds else number) or (rungs and rung not in rungs):
                continue
            folder = lab.PROJECT / "runs" / folder_of(params, device) / f"{lab.slug(rung)}-seed{seed}"
            runs = [path.parent for path in sorted(folder.glob("*/params.json"))]
            if runs and not finished(runs[-1]) and not go_on:
                raise SystemExit(f"{runs[-1]} was interrupted; give --go-on to continue it, or delete it")
            if not (runs and finished(runs[-1])):
                new = ["--params", params, "--seed", str(seed), "--runs-dir", str(folder)]
                start = ["--resume", str(runs[-1])] if runs else new
                lab.start(lab.command(rung, *start, "--device", device, *options))
            [run] = [path.parent for path in folder.glob("*/result.json")]
            if finished(run):
                curve.write(run, f"{folder_of(params, device)}/{lab.slug(rung)}-seed{seed}", rung)


def folder_of(params: str, device: str = "cpu") -> str:
    """Return the name of the folder of runs and of results."""
    return f"minutes-{params}" + ("" if device == "cpu" else f"-{device.partition(':')[0]}")


def finished(run: Path) -> bool:
    """Return whether a run was solved or reached its step limit."""
    result = run / "result.json"
    return result.exists() and json.loads(result.read_text())["stopped"] in ("solved", "step limit")


def read(params: str, device: str = "cpu") -> list[Trained]:
    """Return the finished runs, in the order of the chapter."""
    runs = []
    for rung in sorted(SEEDS):
        for path in sorted((lab.RESULTS / folder_of(params, device)).glob(f"{lab.slug(rung)}-seed*.csv")):
            runs.append(Trained(rung, *lab.read(f"{folder_of(params, device)}/{path.stem}")))
    return runs


def table(runs: Sequence[Trained]) -> str:
    """Return a row per rung with the book's columns."""
    rungs = list(dict.fromkeys(run.rung for run in runs))
    groups = {rung: [run for run in runs if run.rung == rung] for rung in rungs}
    baseline = groups.get(lab.BASELINE, [])
    usual = np.median([run.minutes("18.0") for run in baseline]) if baseline else np.nan
    rows = []
    for rung, group in groups.items():
        speeds = pd.Series([run.stamped["steps_per_second"] for run in group])
        minutes = {goal: pd.Series([run.minutes(goal) for run in group]) for goal in GOALS}
        episodes = pd.Series([run.stamped["result"]["episodes"] for run in group])
        steps = pd.Series([run.stamped["result"]["steps"] / 1000 for run in group])
        change = 100 * (minutes["18.0"].median() / usual - 1)
        rows.append(
            (
                f"`{rung}`",
                len(group),
                lab.spread(speeds, 0),
                *(lab.spread(minutes[goal], 0) for goal in GOALS),
                "" if rung == lab.BASELINE or not np.isfinite(change) else f"{change:+.0f} %",
                lab.spread(episodes, 0),
                lab.spread(steps, 0),
            )
        )
    header = ("script", "seeds", "frames/s", "minutes to 17", "minutes to 18", "change", "episodes", "thousand steps")
    return lab.table(header, rows)


def draw(runs: Sequence[Trained], name: str) -> None:
    """Draw the mean return against minutes and against steps, as docs/pictures/<name>.png."""
    figure, both = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharey=True)
    colours: dict[str, str] = {}
    for run in runs:
        label = None if run.rung in colours else run.rung
        for axes, x in ((both[0], run.frame.seconds / 60), (both[1], run.frame.step / 1000)):
            [line] = axes.plot(x, run.frame.mean_100, color=colours.get(run.rung), label=label, linewidth=1.2)
            colours[run.rung] = line.get_color()
    for axes, label in zip(both, ("minutes", "thousand agent steps"), strict=True):
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    both[0].set(ylabel="mean return of the last 100 games")
    both[1].legend(fontsize=8)
    figure.savefig(lab.PICTURES / f"{name}.png", dpi=110)
    plt.close(figure)
