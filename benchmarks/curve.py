#!/usr/bin/env python3
"""Keep the learning curve of a run as CSV in benchmarks/results; `./chapter09.py tables` draws all that are kept.

./curve.py ../runs/2026-11-20T0827-pong-01_baseline
"""

import argparse
import json
from pathlib import Path

import matplotlib
import pandas as pd

import lab

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib import runs

Curve = tuple[str, pd.DataFrame, dict]


def keep(run: Path) -> str:
    """Copy a run's episodes with the mean of the last 100 into benchmarks/results; returns the file's name."""
    recorded = runs.read_params(run)
    result = json.loads((run / "result.json").read_text())
    options = [
        f"--{name}" if value is True else f"--{name} {value}" for name, value in recorded["knobs"].items() if value
    ]
    rung = " ".join([recorded["script"], *(option.replace("_", "-") for option in options)])
    name = f"curve-{rung.replace(' --', '-').replace(' ', '')}"
    name += f"-{recorded['hyperparameters']['run_name']}-seed{recorded['seed']}"
    first = recorded["sessions"][0]
    stamped = {"measured": first["started"], "rung": rung, "seed": recorded["seed"]}
    stamped |= {"sessions": len(recorded["sessions"])}
    stamped |= {key: first[key] for key in ("commit", "versions", "machine")}
    stamped["result"] = {key: result[key] for key in ("stopped", "steps", "episodes", "seconds", "reached")}
    episodes = pd.read_csv(run / "episodes.csv")
    results = lab.Results(name, ("episode", "step", "length", "return", "seconds", "mean_100"), stamped)
    mean = episodes["return"].rolling(100, min_periods=1).mean()
    for row, mean_100 in zip(episodes.itertuples(index=False), mean, strict=True):
        episode, step, length, total, seconds, _ = row
        results.add(
            episode=episode, step=step, length=length, seconds=seconds, mean_100=f"{mean_100:.3f}", **{"return": total}
        )
    return name


def kept(game: str) -> list[Curve]:
    """All kept curves of a game: (rung and seed, episodes, stamp)."""
    curves = []
    for path in sorted(lab.RESULTS.glob(f"curve-*-{game}-seed*.csv")):
        frame, stamped = lab.read(path.stem)
        name = path.stem.removeprefix("curve-").replace(f"-{game}-seed", ", seed ")
        curves.append((name, frame, stamped))
    return curves


def pictures(curves: list[Curve]) -> str:
    """Reward against steps and against time, a line a kept run; returns Markdown that shows them."""
    shown = []
    for axis, label in (("step", "agent steps, warm-up included"), ("minutes", "minutes")):
        figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
        for name, frame, _ in curves:
            x = frame.step if axis == "step" else frame.seconds / 60
            [line] = axes.plot(x, frame.mean_100, label=f"{name}")
            axes.plot(x, frame["return"], ".", markersize=2, alpha=0.25, color=line.get_color())
        axes.set(xlabel=label, ylabel="return: episodes, mean of the last 100")
        axes.legend(loc="upper left", fontsize="small")
        axes.grid(alpha=0.3)
        picture = f"chapter09-reward-{axis}"
        figure.savefig(lab.PICTURES / f"{picture}.png", dpi=110)
        shown.append(f"![Return against {label}](pictures/{picture}.png)")
    return "\n\n".join(shown)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    print(keep(parser.parse_args().run))
