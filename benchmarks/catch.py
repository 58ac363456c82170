#!/usr/bin/env python3
"""Does every rung learn the same from the same number of steps? Learning curves on Catch, a small pixel game.

    ./catch.py               # five seeds of each rung, about a quarter of an hour
    ./catch.py --go-on       # after an interruption
    ./chapter09.py tables    # then put the table into notes/measurements.md and the picture into docs/chapter09.md

The measure is the mean return over the whole run, which is the area under the curve. A permutation test over the seeds
compares each rung with the baseline. Rungs that are exactly equal to another one are left out.
"""

import itertools
from typing import Any

import lab
import launch
import markup
import significance
from lib import cli
from lib.system.machine import cores

import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

NAME = "chapter09/catch"
RUNGS = ("01_baseline", "02_n_envs --envs 3", "03_parallel", "04_wrappers --envs 3 --parallel")
STEPS = 2500
BIN = 250
SETTINGS: dict[str, Any] = {
    "replay_initial": 300,
    "replay_size": 5000,
    "epsilon_frames": 1500,
    "epsilon_final": 0.05,
    "target_net_sync": 60,
    "learning_rate": 1e-3,  # middle of the range, 2e-4 to 4e-3, in which the baseline learns equally fast
    "checkpoint_replay": "false",
}


def measure(turn: tuple[int, str]) -> dict[int, float]:
    """Return the mean return of the episodes that end in each bin of steps, by the bin's last step.

    Args:
        turn: seed and rung.
    """
    seed, rung = turn
    options = ["--env-id", "fakes:Catch-v0", "--seed", str(seed), "--stop-after", str(STEPS)]
    environment = {"PYTHONPATH": str(lab.PROJECT / "tests"), "OMP_NUM_THREADS": "1"}
    with launch.finished_run(rung, *options, *launch.assignments(SETTINGS), **environment) as run:
        frame = pd.read_csv(run / "episodes.csv")
    means = frame[frame.step <= STEPS].groupby((frame.step - 1) // BIN)["return"].mean()
    return {(int(number) + 1) * BIN: mean for number, mean in means.items()}


def rungs_of(frame: pd.DataFrame) -> list[str]:
    """Return the measured rungs, in the order of RUNGS."""
    return [rung for rung in RUNGS if rung in set(frame.rung)]


def table(frame: pd.DataFrame) -> str:
    """Return a row per rung: its mean return over the whole run and the last quarter, and its p-value."""
    whole = frame.groupby(["rung", "seed"], sort=False)["mean_return"].mean()
    late = frame[frame.step > 0.75 * STEPS].groupby(["rung", "seed"], sort=False)["mean_return"].mean()
    baseline = whole[launch.BASELINE].values
    rows = []
    for rung in rungs_of(frame):
        p = "" if rung == launch.BASELINE else f"{significance.permutation_test(whole[rung].values, baseline):.2f}"
        rows.append((f"`{rung}`", markup.spread(whole[rung], 2), p, f"{late[rung].mean():.2f}"))
    return markup.table(("script", "mean return, whole run", "p against 01", "mean return, last quarter"), rows)


def draw(frame: pd.DataFrame) -> None:
    """Draw the curves and the range of their seeds as docs/pictures/chapter09-catch.png."""
    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    for rung in rungs_of(frame):
        by_step = frame[frame.rung == rung].groupby("step")["mean_return"]
        [line] = axes.plot(by_step.mean(), label=rung)
        axes.fill_between(by_step.min().index, by_step.min(), by_step.max(), alpha=0.15, color=line.get_color())
    axes.set(xlabel="agent steps, warm-up included", ylabel="return: mean and range of the seeds")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(markup.PICTURES / "chapter09-catch.png", dpi=110)


def main() -> None:
    parser = lab.parser(__doc__)
    parser.add_argument("--seeds", type=cli.positive, default=5, help="number of seeds (default: 5)")
    parser.add_argument(
        "--jobs", type=cli.positive, default=cores(), help="runs at a time, with a thread each (default: cores)"
    )
    lab.add_go_on(parser)
    args = parser.parse_args()
    stamped = lab.stamp(threads=1, **SETTINGS, steps=STEPS)
    results = lab.Results(NAME, ("rung", "seed", "step", "mean_return"), stamped, args.go_on)
    turns = list(itertools.product(range(1, args.seeds + 1), RUNGS))
    missing = [(seed, rung) for seed, rung in turns if not results.has(rung=rung, seed=seed, step=STEPS)]
    for (seed, rung), means in tqdm(launch.in_parallel(args.jobs, measure, missing), total=len(missing)):
        for step, mean in means.items():
            results.add(rung=rung, seed=seed, step=step, mean_return=f"{mean:.4f}")
    print(table(lab.read(NAME)[0]))


if __name__ == "__main__":
    main()
