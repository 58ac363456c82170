#!/usr/bin/env python3
"""Search for the hyperparameters of a DQN on CartPole, and compare the best with the script's own.

    ./tuned.py           # 12 trials, then three seeds of both settings; two runs at a time, about half an hour
    ./tuned.py --go-on   # after an interruption
    ./tuned.py tables    # only the table of notes/measurements.md and its picture

The search is the script's own --tune. The seeds of the comparison take no part in it.
"""

import itertools
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from typing import Any

import lab
import launch
import markup
from lib import cli

import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "benchmarks/notes/measurements.md"
RUNS = lab.PROJECT / "runs" / "tuned"  # run folders of the search
SCRIPT = "chapter09/07_pong_in_minutes"
OWN = {"learning_rate": 5e-4, "gamma": 0.99}  # the script's own values
SETTING_NAMES = ("own", "best of the search")
SETTINGS = {  # Pong's other hyperparameters are too large for a game of so few steps
    "replay_initial": 1000,
    "epsilon_frames": 10_000,
    "target_net_sync": 200,
    "episodes_to_solve": 1000,  # a trial stops after 10 % more
}
STEPS = 150_000  # maximum agent steps of a run
OPTIONS = ["--env-id", "CartPole-v1", *launch.assignments(SETTINGS), "--stop-after", str(STEPS)]
TRIALS = 12
SEEDS = (101, 102, 103)
TRIALS_NAME, COMPARED_NAME = "tuning/trials", "tuning/compared"
TRIAL_COLUMNS = ("trial", "stopped", "episodes", "best_mean", "steps", "seconds", *OWN)
COLUMNS = ("setting", *OWN, "seed", "stopped", "episodes", "steps", "mean_100")


def search(go_on: bool) -> dict[str, float]:
    """Search, or go on with a search. Keep the trials in the results, and return the best hyperparameters."""
    if not go_on:
        shutil.rmtree(RUNS, ignore_errors=True)
    launch.start(launch.command(SCRIPT, *OPTIONS, "--tune", str(TRIALS), "--runs-dir", str(RUNS)))
    [best] = RUNS.glob("tune/*/params.json")
    found = pd.read_csv(best.with_name("trials.csv"), dtype=str).fillna("")[list(TRIAL_COLUMNS)]
    file = lab.path_of(TRIALS_NAME)
    if not (file.exists() and pd.read_csv(file, comment="#", dtype=str).fillna("").equals(found)):
        stamped = lab.stamp(threads=1, script=SCRIPT, options=OPTIONS)
        results = lab.Results(TRIALS_NAME, TRIAL_COLUMNS, stamped, replace=True)
        for trial in found.to_dict("records"):
            results.add(**trial)
    values: dict[str, float] = json.loads(best.read_text())
    return values


def measure(values: Mapping[str, float], seed: int) -> dict[str, Any]:
    """Train with these hyperparameters and return the result. An unsolved run has infinitely many episodes."""
    options = [*OPTIONS, *launch.assignments(values), "--seed", str(seed)]
    with launch.finished_run(SCRIPT, *options, OMP_NUM_THREADS="1") as run:
        result = launch.result_of(run)
    return {
        "stopped": result["stopped"],
        "episodes": result["episodes"] if result["stopped"] == "solved" else math.inf,
        "steps": result["steps"],
        "mean_100": launch.mean_return(result),
    }


def compare(best: Mapping[str, float], jobs: int, go_on: bool) -> None:
    """Train the script's own setting and the best one with each of SEEDS."""
    settings = dict(zip(SETTING_NAMES, (OWN, best), strict=True))
    stamped = lab.stamp(threads=1, script=SCRIPT, options=OPTIONS, best=best)
    results = lab.Results(COMPARED_NAME, COLUMNS, stamped, go_on)
    turns = [turn for turn in itertools.product(settings, SEEDS) if not results.has(setting=turn[0], seed=turn[1])]
    done = launch.in_parallel(jobs, lambda turn: measure(settings[turn[0]], turn[1]), turns)
    for (setting, seed), row in tqdm(done, total=len(turns)):
        results.add(setting=setting, **settings[setting], seed=seed, **row)


def table(frame: pd.DataFrame) -> str:
    """Return a row per setting."""
    rows = []
    for setting in SETTING_NAMES:
        own = frame[frame.setting == setting]
        if own.empty:
            continue
        solved = own[own.stopped == "solved"]
        rows.append(
            (
                setting,
                f"{own.learning_rate.iloc[0]:.2g}",
                f"{own.gamma.iloc[0]:g}",
                f"{len(solved)} of {len(own)}",
                markup.spread(own.episodes, 0),
                markup.spread(own.steps.where(own.stopped == "solved", math.inf), 0),
                markup.spread(own.mean_100, 0),
            )
        )
    header = (
        "setting",
        "learning rate",
        "gamma",
        "seeds solved",
        "episodes",
        "agent steps",
        "last mean of 100 episodes",
    )
    return markup.table(header, rows)


def draw(trials: pd.DataFrame) -> None:
    """Draw the best mean return of each trial against its learning rate, as docs/pictures/tuning.png."""
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    gammas = sorted(trials.gamma.unique())
    colours = plt.get_cmap("viridis", len(gammas))
    for solved, marker in ((True, "o"), (False, "x")):
        own = trials[(trials.stopped == "solved") == solved]
        for number, gamma in enumerate(gammas):
            points = own[own.gamma == gamma]
            label = f"gamma {gamma:g}, {'solved' if solved else 'not solved'}" if len(points) else None
            axes.scatter(points.learning_rate, points.best_mean, marker=marker, color=colours(number), label=label)
    axes.set(xscale="log", xlabel="learning rate", ylabel="best mean return of 10 to 100 episodes")
    axes.tick_params(axis="x", which="minor", labelsize=7)
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right upper", fontsize=8)
    figure.savefig(markup.PICTURES / "tuning.png", dpi=110)
    plt.close(figure)


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the page, if there are results."""
    if lab.path_of(COMPARED_NAME).exists():
        frame, stamped = lab.read(COMPARED_NAME)
        yield markup.Block(PAGE, "tuned", f"{table(frame)}\n\n{markup.measured_on([stamped])}")


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "runs", "tables")
    parser.add_argument("--jobs", type=cli.positive, default=2, help="runs of the comparison at a time (default: 2)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    if "runs" in (args.what or ["runs"]):
        compare(search(args.go_on), args.jobs, args.go_on)
    markup.write(blocks())
    if lab.path_of(TRIALS_NAME).exists():
        draw(lab.read(TRIALS_NAME)[0])


if __name__ == "__main__":
    main()
