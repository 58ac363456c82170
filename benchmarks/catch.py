#!/usr/bin/env python3
"""Does every rung learn the same from the same number of steps? Curves on Catch, a small game of pixels, seed by seed.

    ./catch.py                       # five seeds of every rung that is not exactly another, about a quarter of an hour
    ./catch.py --go-on               # after an interruption
    ./chapter09.py tables            # then, for the documents

Compared is the mean return over the whole run, which is the area under the curve: a rung differs from the baseline if a
permutation test over the seeds says so. Rungs that are exactly another are left out.
"""

import argparse
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

import lab
from lib.system.machine import cores

RUNGS = ("01_baseline", "02_n_envs --envs 3", "03_parallel", "04_wrappers --envs 3 --parallel")
STEPS = 2500
BIN = 250
SETTINGS = {
    "replay_initial": 300,
    "replay_size": 5000,
    "epsilon_frames": 1500,
    "epsilon_final": 0.05,
    "target_net_sync": 60,
    "learning_rate": 1e-3,  # in the middle of those at which the baseline learns equally fast, 2e-4 to 4e-3
    "checkpoint_replay": "false",
}


def measure(turn: tuple[int, str]) -> list[float]:
    """Mean return of the episodes that end in each bin of steps."""
    seed, rung = turn
    settings = lab.assignments(SETTINGS)
    options = ["--env-id", "fakes:Catch-v0", "--seed", str(seed), "--stop-after", str(STEPS), *settings]
    environment = {"PYTHONPATH": str(lab.PROJECT / "tests"), "OMP_NUM_THREADS": "1"}
    with lab.finished_run(rung, *options, **environment) as run:
        frame = pd.read_csv(run / "episodes.csv")
    return list(frame.groupby((frame.step - 1) // BIN)["return"].mean().loc[: STEPS // BIN - 1])


def permutation_test(a: np.ndarray, b: np.ndarray) -> float:
    """How often a random division into two groups has means as far apart as these: two-sided p, all divisions."""
    both = np.concatenate([a, b])
    gap = abs(a.mean() - b.mean())
    gaps = []
    for chosen in itertools.combinations(range(len(both)), len(a)):
        mask = np.isin(np.arange(len(both)), chosen)
        gaps.append(abs(both[mask].mean() - both[~mask].mean()))
    return float(np.mean(np.array(gaps) >= gap - 1e-12))


def table(frame: pd.DataFrame) -> str:
    """A row a rung: its mean return over all bins and over the last quarter, and how it compares with the baseline."""
    areas = frame.groupby(["rung", "seed"], sort=False)["mean_return"].mean()
    late = frame[frame.step > 0.75 * STEPS].groupby(["rung", "seed"], sort=False)["mean_return"].mean()
    rows = []
    for rung in dict.fromkeys(frame.rung):
        gap = areas[rung].mean() - areas[lab.BASELINE].mean()
        p = "" if rung == lab.BASELINE else f"{permutation_test(areas[rung].values, areas[lab.BASELINE].values):.2f}"
        area = f"{areas[rung].mean():.2f} ({lab.spread(areas[rung], 2)})"
        row = (f"`{rung}`", len(areas[rung]), area, f"{gap:+.2f}", p, f"{late[rung].mean():.2f}")
        rows.append(row)
    header = ("rung", "seeds", "mean return, whole run", "less the baseline's", "p", "mean return, last quarter")
    note = "Means of the seeds (minimum / median / maximum); p of a two-sided permutation test."
    return f"{lab.table(header, rows)}\n\n{note}"


def draw(frame: pd.DataFrame) -> None:
    """The curves with the range of their seeds as docs/pictures/chapter09-catch.png."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for rung, own in frame.groupby("rung", sort=False):
        by_step = own.groupby("step")["mean_return"]
        [line] = axes.plot(by_step.mean(), label=rung)
        axes.fill_between(by_step.min().index, by_step.min(), by_step.max(), alpha=0.15, color=line.get_color())
    axes.set(xlabel="agent steps, warm-up included", ylabel="return: mean and range of the seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(lab.PICTURES / "chapter09-catch.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time, a thread each (default: cores)")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted measurement has left")
    args = parser.parse_args()
    results = lab.Results(
        "chapter09-catch",
        ("rung", "seed", "step", "mean_return"),
        lab.stamp(threads=1, **SETTINGS, steps=STEPS),
        args.go_on,
    )
    turns = list(itertools.product(range(1, args.seeds + 1), RUNGS))
    missing = [turn for turn in turns if not results.has(rung=turn[1], seed=turn[0], step=STEPS)]
    with ThreadPoolExecutor(args.jobs) as pool:
        for (seed, rung), means in zip(missing, tqdm(pool.map(measure, missing), total=len(missing)), strict=True):
            for number, mean in enumerate(means):
                results.add(rung=rung, seed=seed, step=(number + 1) * BIN, mean_return=f"{mean:.4f}")
    frame, stamped = lab.read("chapter09-catch")
    print(f"{table(frame)} {lab.where(stamped)}")


if __name__ == "__main__":
    main()
