#!/usr/bin/env python3
"""Compare settings of a script on Pong by whole runs: agent steps until Pong is solved.

    ./trials.py "distributed/02_ppo_fast" --seeds 101-120
    ./trials.py "distributed/02_ppo_fast --set lam=0.9" --seeds 101-120 --against "distributed/02_ppo_fast"
    ./trials.py tables                                     # only the table of docs/ppo.md

Two runs at a time, with a torch thread each. Steps do not depend on the load of the machine. Seconds do; measure those
with time_to_solve.py. The same command continues an interrupted trial, also at another commit: every row names its
own. So give a new --label if what is learnt has changed. Evaluate a setting on seeds that were not used for tuning. Try
a code change in a clone, named by --label.
"""

import argparse
import math
import re
from collections.abc import Iterator
from typing import Any

import lab
import launch
import markup
from lib import cli
from significance import rank_test
from time_to_solve import GOAL, rung

import numpy as np
import pandas as pd
from tqdm import tqdm

PAGE = "docs/ppo.md"
FOLDER = "trials"
COLUMNS = ("seed", "steps_to_goal", "seconds_to_goal", "steps", "seconds", "mean_100", "greedy", "worst", "commit")


def measure(script: str, seed: int, max_steps: int) -> dict[str, Any]:
    """Return the row of a run. Steps and seconds to the goal are infinite if the run did not reach it."""
    options = ["--seed", str(seed), "--stop-after", str(max_steps)]
    with launch.finished_run(script, *options, OMP_NUM_THREADS="1") as run:
        result = launch.result_of(run)
    reached = result["reached"].get(GOAL, {"step": math.inf, "seconds": math.inf})
    returns = result.get("evaluation", {}).get("returns", [math.nan])
    return {
        "steps_to_goal": reached["step"],
        "seconds_to_goal": round(reached["seconds"], 1),
        "steps": result["steps"],
        "seconds": round(result["seconds"], 1),
        "mean_100": launch.mean_return(result),
        "greedy": np.mean(returns),
        "worst": min(returns),
    }


def results_of(label: str) -> str:
    """Return the name of a trial's results file."""
    return f"{FOLDER}/{lab.slug(label)}"


def seeds_of(frame: pd.DataFrame) -> str:
    """Return the seeds of consecutive runs, such as "601 to 610"."""
    first, last = frame.seed.min(), frame.seed.max()
    return str(first) if first == last else f"{first} to {last}"


def reached_goal(frame: pd.DataFrame) -> tuple[str, str]:
    """Return how many runs of a trial reached the goal, and their thousand steps to it."""
    reached = int(np.isfinite(frame.steps_to_goal).sum())
    return f"{reached} of {len(frame)}", markup.spread(frame.steps_to_goal / 1000, 0)


def table(trials: list[tuple[pd.DataFrame, lab.Stamp]]) -> str:
    """Return a row per setting: its seeds, its steps to the goal, and the comparison with its reference.

    Trials with different --max-steps are not compared.
    """
    others = {(stamped["settings"]["label"], stamped["settings"]["max_steps"]): frame for frame, stamped in trials}
    rows = []
    for frame, stamped in trials:
        label, against, limit = (stamped["settings"][name] for name in ("label", "against", "max_steps"))
        other = others.get((against, limit))
        compared = ("", "")
        if other is not None:
            compared = (f"`{short(against)}`", f"{rank_test(frame.steps_to_goal, other.steps_to_goal):.2g}")
        rows.append(
            (
                f"`{short(label)}`",
                seeds_of(frame),
                *reached_goal(frame),
                "" if frame.greedy.isna().all() else f"{frame.greedy.min():.1f}",
                *compared,
            )
        )
    return markup.table(
        ("script", "seeds", "solved", "thousand agent steps", "lowest greedy mean", "reference", "p"), rows
    )


def short(label: str) -> str:
    """Return a trial's label without the script's folder."""
    return label.rpartition("/")[2]


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages."""
    names = sorted(path.stem for path in (lab.RESULTS / FOLDER).glob("*.csv"))
    trials = [lab.read(f"{FOLDER}/{name}") for name in names]
    if trials:
        where = markup.measured_on(stamped for _, stamped in trials)
        yield markup.Block(PAGE, "trials", f"{table(trials)}\n\n{where}")


def script(text: str) -> str:
    """argparse type: a script with its options, which plays Pong, or "tables"."""
    return text if text == "tables" else rung(text)


def seeds(text: str) -> range:
    """argparse type: "101-110"."""
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or int(match[1]) > int(match[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds; give the first and the last, such as 101-110")
    return range(int(match[1]), int(match[2]) + 1)


def main() -> None:
    parser = lab.parser(__doc__)
    parser.add_argument("script", type=script, help="script with its options, or tables")
    parser.add_argument("--seeds", type=seeds, default=seeds("101-110"), help="first and last seed (default: 101-110)")
    parser.add_argument("--label", help="name of the trial (default: the script with its options)")
    parser.add_argument("--against", help="name of the trial that this one is compared with")
    parser.add_argument("--max-steps", type=cli.positive, default=1_200_000, help="steps of a run (default: 1,200,000)")
    parser.add_argument("--overwrite", action="store_true", help="delete the earlier trial of this label first")
    parser.add_argument("--jobs", type=cli.positive, default=2, help="runs at a time (default: 2)")
    args = parser.parse_args()
    if args.script != "tables":
        settings = {name: getattr(args, name) for name in ("script", "against", "max_steps", "jobs")}
        label = args.label or args.script
        name, stamped = results_of(label), lab.stamp(threads=1, label=label, **settings)
        commit = stamped.pop("commit")
        if not args.overwrite and (differing := lab.differences(name, COLUMNS, stamped)):
            lab.refuse(name, differing, "give a new --label, or --overwrite to replace it")
        results = lab.Results(name, COLUMNS, stamped, go_on=not args.overwrite, replace=args.overwrite)
        missing = [seed for seed in args.seeds if not results.has(seed=seed)]
        done = launch.in_parallel(args.jobs, lambda seed: measure(args.script, seed, args.max_steps), missing)
        for seed, row in tqdm(done, total=len(missing)):
            results.add(seed=seed, commit=commit, **row)
    markup.write(blocks())


if __name__ == "__main__":
    main()
