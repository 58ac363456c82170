#!/usr/bin/env python3
"""Keep the learning curve of a run: CSV in benchmarks/results, picture in docs/pictures, both in docs/chapter09.md.

./curve.py ../runs/2026-11-20T0827-pong-01_baseline
"""

import argparse
import json
from pathlib import Path

import lab
import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib import runs


def keep(run: Path) -> str:
    """Copy a run's episodes with the mean of the last 100 into benchmarks/results; returns the file's name."""
    recorded = runs.read_params(run)
    result = json.loads((run / "result.json").read_text())
    name = f"curve-{recorded['script']}-{recorded['hyperparameters']['run_name']}-seed{recorded['seed']}"
    first = recorded["sessions"][0]
    stamped = {"measured": first["started"], "seed": recorded["seed"], "sessions": len(recorded["sessions"])}
    stamped |= {key: first[key] for key in ("commit", "versions", "machine")}
    stamped["result"] = {key: result[key] for key in ("stopped", "steps", "episodes", "seconds", "reached")}
    episodes = lab.pd.read_csv(run / "episodes.csv")
    results = lab.Results(name, ("episode", "step", "length", "return", "seconds", "mean_100"), stamped)
    mean = episodes["return"].rolling(100, min_periods=1).mean()
    for row, mean_100 in zip(episodes.itertuples(index=False), mean, strict=True):
        episode, step, length, total, seconds, _ = row
        results.add(
            episode=episode, step=step, length=length, seconds=seconds, mean_100=f"{mean_100:.3f}", **{"return": total}
        )
    return name


def draw(name: str) -> Path:
    """The kept curve as docs/pictures/<name>.png."""
    frame, _ = lab.read(name)
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(frame.step, frame["return"], ".", markersize=2, alpha=0.4, label="episodes")
    axes.plot(frame.step, frame.mean_100, label="mean of the last 100")
    axes.set(xlabel="agent steps, warm-up included", ylabel="return", title=f"{name.removeprefix('curve-')}")
    axes.legend(loc="upper left")
    axes.grid(alpha=0.3)
    path = lab.PROJECT / "docs" / "pictures" / f"{name}.png"
    path.parent.mkdir(exist_ok=True)
    figure.savefig(path, dpi=110)
    return path


def describe(name: str) -> str:
    """The curve in one sentence, for docs/chapter09.md."""
    frame, stamped = lab.read(name)
    last = frame.iloc[-1]
    return (
        f"![{name}](pictures/{name}.png)\n\nSeed {stamped['seed']}: after {int(last.step):,} agent steps and "
        f"{int(last.episode)} episodes the mean of the last 100 is {last.mean_100:.2f}. {lab.where(stamped)}"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    kept = keep(parser.parse_args().run)
    draw(kept)
    lab.put("docs/chapter09.md", "curve", describe(kept))
