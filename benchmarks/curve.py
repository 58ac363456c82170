#!/usr/bin/env python3
"""Keep the learning curve of a run as CSV in benchmarks/results; `./chapter09.py tables` draws all that are kept.

    ./curve.py ../runs/2026-11-20T0827-pong-01_baseline
    ./curve.py --beside 13 RUN       # made while 13 other runs used the machine: its minutes say nothing

Runs with other hyperparameters than the game's are kept beside those, and compared in a table of their own.
"""

import argparse
import dataclasses
import json
from pathlib import Path

import matplotlib
import pandas as pd

import lab

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib.hyperparameters import HYPERPARAMS
from lib.run import run_folder
from lib.run.curve import rolling_mean

DEFAULTS = {"players": 1, "replay_ratio": 32}  # knobs that a rung's name tells only where they differ
Curve = tuple[str, pd.DataFrame, dict]


def keep(run: Path, beside: int = 0) -> str:
    """Copy a run's episodes with the mean of the last 100 into benchmarks/results; returns the file's name.

    Args:
        run: its folder. It may have been killed, and then it has no result.
        beside: how many other runs used the machine.
    """
    recorded = run_folder.read_params(run)
    if "replay_size" not in recorded["hyperparameters"]:
        raise SystemExit(f"{run} is of {recorded['script']}; curves are kept of DQNs, time_to_solve.py keeps PPO's")
    end = run / "result.json"
    result = json.loads(end.read_text()) if end.exists() else {"stopped": "killed", "reached": {}}
    knobs = {name: value for name, value in recorded["knobs"].items() if value and value != DEFAULTS.get(name)}
    options = [f"--{name}" if value is True else f"--{name} {value}" for name, value in knobs.items()]
    rung = " ".join([recorded["script"], *(option.replace("_", "-") for option in options)])
    usual = dataclasses.asdict(HYPERPARAMS[recorded["game"]])
    changed = {
        name: value
        for name, value in recorded["hyperparameters"].items()
        if value != usual[name] and not name.startswith(("checkpoint", "env_name", "run_name"))
    }
    name = "-".join(
        [
            f"curve-{rung.replace(' --', '-').replace(' ', '')}",
            *(f"{name}{_short(value)}" for name, value in changed.items()),
            recorded["hyperparameters"]["run_name"],
            f"seed{recorded['seed']}",
            *([f"beside{beside}"] if beside else []),
        ]
    )
    first = recorded["sessions"][0]
    stamped = {"measured": first["started"], "rung": rung, "seed": recorded["seed"], "changed": changed}
    stamped |= {"beside": beside, "sessions": len(recorded["sessions"])}
    stamped |= {key: first[key] for key in ("commit", "versions", "machine")}
    stamped["result"] = {key: result.get(key) for key in ("stopped", "steps", "episodes", "seconds", "reached")}
    episodes = pd.read_csv(run / "episodes.csv")
    results = lab.Results(name, ("episode", "step", "length", "return", "seconds", "mean_100"), stamped)
    mean = rolling_mean(episodes["return"])
    for row, mean_100 in zip(episodes.itertuples(index=False), mean, strict=True):
        episode, step, length, total, seconds, _ = row
        results.add(
            episode=episode, step=step, length=length, seconds=seconds, mean_100=f"{mean_100:.3f}", **{"return": total}
        )
    return name


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def kept(game: str) -> list[Curve]:
    """All kept curves of a game: (rung and seed, episodes, stamp)."""
    curves = []
    for path in sorted(lab.RESULTS.glob(f"curve-*-{game}-seed*.csv")):
        frame, stamped = lab.read(path.stem)
        curves.append((f"{stamped['rung']}, seed {stamped['seed']}", frame, stamped))
    return curves


def pictures(curves: list[Curve]) -> str:
    """Reward against steps and against time, a line a kept run; returns Markdown that shows them.

    Runs with other hyperparameters are left out, and against time also those that shared their machine.
    """
    shown = []
    for axis, label in (("step", "agent steps, warm-up included"), ("minutes", "minutes")):
        figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
        for name, frame, stamped in curves:
            if stamped["changed"] or (axis == "minutes" and stamped["beside"]):
                continue
            x = frame.step if axis == "step" else frame.seconds / 60
            [line] = axes.plot(x, frame.mean_100, label=f"{name}, {stamped['machine']['device']}")
            axes.plot(x, frame["return"], ".", markersize=2, alpha=0.25, color=line.get_color())
        axes.set(xlabel=label, ylabel="return: episodes, mean of the last 100")
        axes.legend(loc="upper left", fontsize="x-small")
        axes.grid(alpha=0.3)
        picture = f"chapter09-reward-{axis}"
        figure.savefig(lab.PICTURES / f"{picture}.png", dpi=110)
        shown.append(f"![Return against {label}](pictures/{picture}.png)")
    return "\n\n".join(shown)


def rates(curves: list[Curve]) -> str:
    """A row a run whose rung was tried with several learning rates: mean return of its episodes by 20,000 steps."""
    rungs = {stamped["rung"] for _, _, stamped in curves if "learning_rate" in stamped["changed"]}
    usual = HYPERPARAMS["pong"].learning_rate
    runs_of = sorted(
        (stamped["rung"], stamped["changed"].get("learning_rate", usual), stamped["seed"], number)
        for number, (_, _, stamped) in enumerate(curves)
        if stamped["rung"] in rungs | {lab.BASELINE}
    )
    rows = []
    for rung, rate, seed, number in runs_of:
        _, frame, stamped = curves[number]
        means = frame["return"].groupby((frame.step - 1) // 20_000).mean()
        cells = [
            f"{means[bin]:.1f}" if bin in means and frame.step.max() > 20_000 * bin + 15_000 else ""
            for bin in range(2, 8)
        ]
        rows.append((f"`{rung}`", f"{rate:g}", seed, *cells, stamped["machine"]["device"]))
    header = ("rung", "learning rate", "seed", *(f"{20 * bin}-{20 * bin + 20}k" for bin in range(2, 8)), "device")
    return lab.table(header, rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--beside", type=int, default=0, help="other runs on the machine meanwhile (default: 0)")
    args = parser.parse_args()
    print(keep(args.run, args.beside))
