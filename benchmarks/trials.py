#!/usr/bin/env python3
"""Compare settings of a script on Pong by ten whole runs each: agent steps until Pong is solved.

    ./trials.py "distributed/02_ppo_fast" --seeds 101-110
    ./trials.py "distributed/03_ppo_goal --without kl" --seeds 101-110 --against "distributed/03_ppo_goal"
    ./trials.py tables                                     # only the table of notes/trials.md

Two runs at a time, with a torch thread each. Steps do not depend on the load of the machine. Seconds do; measure those
with time_to_solve.py. The same command continues an interrupted trial. At another commit, --overwrite deletes the old
trial and measures only the given --seeds. Evaluate a setting on seeds that were not used for tuning. Try a code change
in a clone, named by --label.
"""

import argparse
import math
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import lab
import launch
import markup
from lib import cli
from lib.ppo.goal import SCHEDULES
from significance import rank_test
from time_to_solve import GOAL, Solved, rung, solved_results, time_to_goal, to_goal

import numpy as np
import pandas as pd
from tqdm import tqdm

PAGE = "benchmarks/notes/trials.md"
GOAL_TRIAL = "distributed/03_ppo_goal with confirm"
# The trials that the README compares: greedy play has to confirm the goal in both.
HAS_GOAL_SCHEDULES = {"distributed/02_ppo_fast": "no", GOAL_TRIAL: "**yes**"}
SCHEDULES_TRIAL = f"{GOAL_TRIAL}, seeds 811 to 820"  # the reference of 03_ppo_goal --without SCHEDULE


class Row(NamedTuple):
    """A row of the table of Pong.

    Attributes:
        name: script with its options.
        trial: label of its trial, or None.
        reference: label of the trial that it is compared with, or None.
        timed: script whose runs were timed, or None.
    """

    name: str
    trial: str | None = None
    reference: str | None = None
    timed: str | None = None


PONG = (
    Row("01_ppo", timed="distributed/01_ppo"),
    Row("02_ppo_fast", "distributed/02_ppo_fast", GOAL_TRIAL, "distributed/02_ppo_fast"),
    Row("03_ppo_goal", GOAL_TRIAL, timed="distributed/03_ppo_goal"),
    Row("03_ppo_goal", SCHEDULES_TRIAL),
    *(
        Row(f"03_ppo_goal --without {schedule}", f"distributed/03_ppo_goal --without {schedule}", SCHEDULES_TRIAL)
        for schedule in SCHEDULES
    ),
    Row("04_ppo_actors", timed="distributed/04_ppo_actors"),
)
TEN_MINUTES = 600  # seconds
FOLDER = "trials"
COLUMNS = ("seed", "steps_to_goal", "seconds_to_goal", "steps", "seconds", "mean_100", "greedy", "worst")


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
        ("script", "seeds", "reached 18", "thousand steps to 18", "lowest greedy mean", "reference", "p"), rows
    )


def short(label: str) -> str:
    """Return a trial's label without the script's folder."""
    return label.rpartition("/")[2]


def comparable(trials: list[tuple[pd.DataFrame, lab.Stamp]]) -> bool:
    """Return whether all trials have the same seeds and number of steps; print a note if not."""
    same = len({(stamped["settings"]["max_steps"], *sorted(frame.seed)) for frame, stamped in trials}) == 1
    if not same:
        print(
            f"README.md keeps its table: {', '.join(HAS_GOAL_SCHEDULES)} differ in --max-steps or --seeds",
            file=sys.stderr,
        )
    return same


def goal_table(trials: list[tuple[pd.DataFrame, lab.Stamp]]) -> str:
    """Return a row per trial of HAS_GOAL_SCHEDULES. Their other settings are the scripts' own for Pong."""
    limits = {stamped["settings"]["max_steps"] for _, stamped in trials}
    rows = []
    for frame, stamped in trials:
        label, (reached, steps) = stamped["settings"]["label"], reached_goal(frame)
        rows.append((f"`{label.split()[0]}`", HAS_GOAL_SCHEDULES[label], f"{reached} seeds", steps))
    return markup.table(
        (
            "script",
            "goal schedules",
            f"solved within {limits.pop():,} agent steps",
            "thousand agent steps: median (range)",
        ),
        rows,
    )


def pong_table(trials: list[tuple[pd.DataFrame, lab.Stamp]], timed: list[Solved]) -> str:
    """Return a row for each trial of PONG, and one for the runs that were timed alone on a quiet machine.

    Trials with different --max-steps are not compared.
    """
    frames = {stamped["settings"]["label"]: frame for frame, stamped in trials}
    limits = {stamped["settings"]["label"]: stamped["settings"]["max_steps"] for _, stamped in trials}
    by_script = {own.script: own for own in timed}
    rows = []
    for row in PONG:
        trial, reference = frames.get(row.trial), frames.get(row.reference)
        own = by_script.get(row.timed)
        if trial is not None:
            p = ""
            if reference is not None and limits[row.trial] == limits[row.reference]:
                p = f"{rank_test(trial.steps_to_goal, reference.steps_to_goal):.2g}"
            rows.append((f"`{row.name}`", seeds_of(trial), *reached_goal(trial), p, "", ""))
        if own is not None:
            frame = own.frame.assign(steps_to_goal=to_goal(own, own.frame["steps"]))
            soon = f"{(to_goal(own, frame['seconds']) <= TEN_MINUTES).sum()} of {len(frame)}"
            rows.append((f"`{row.name}`", seeds_of(frame), *reached_goal(frame), "", time_to_goal(own), soon))
    header = ("script", "seeds", "solved", "thousand steps to solve", "p", "time to solve", "solved in ten minutes")
    return markup.table(header, rows)


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages."""
    names = sorted(path.stem for path in (lab.RESULTS / FOLDER).glob("*.csv"))
    trials = [lab.read(f"{FOLDER}/{name}") for name in names]
    if trials:
        where = markup.measured_on(stamped for _, stamped in trials)
        yield markup.Block(PAGE, "trials", f"{table(trials)}\n\n{where}")
    if any(stamped["settings"]["label"] == GOAL_TRIAL for _, stamped in trials):
        timed = [own for own in solved_results() if own.script in {row.timed for row in PONG}]
        used = [stamped for _, stamped in trials if stamped["settings"]["label"] in {row.trial for row in PONG}]
        where = f"Steps: {markup.measured_on(used)} Seconds: {markup.measured_on(own.stamped for own in timed)}"
        yield markup.Block(PAGE, "pong", f"{pong_table(trials, timed)}\n\n{where}")
    compared = [trial for trial in trials if trial[1]["settings"]["label"] in HAS_GOAL_SCHEDULES]
    if len(compared) == len(HAS_GOAL_SCHEDULES) and comparable(compared):
        where = markup.measured_on(stamped for _, stamped in compared)
        yield markup.Block("README.md", "goal", f"{goal_table(compared)}\n\n{where}")


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
    parser.add_argument("--max-steps", type=cli.positive, default=800_000, help="steps of a run (default: 800,000)")
    parser.add_argument("--overwrite", action="store_true", help="delete the earlier trial of this label first")
    parser.add_argument("--jobs", type=cli.positive, default=2, help="runs at a time (default: 2)")
    args = parser.parse_args()
    if args.script != "tables":
        settings = {name: getattr(args, name) for name in ("script", "against", "max_steps", "jobs")}
        label = args.label or args.script
        name, stamped = results_of(label), lab.stamp(threads=1, label=label, **settings)
        if not args.overwrite and (differing := lab.differences(name, COLUMNS, stamped)):
            lab.refuse(name, differing, "give a new --label, or --overwrite to replace it")
        results = lab.Results(name, COLUMNS, stamped, go_on=not args.overwrite, replace=args.overwrite)
        missing = [seed for seed in args.seeds if not results.has(seed=seed)]
        done = launch.in_parallel(args.jobs, lambda seed: measure(args.script, seed, args.max_steps), missing)
        for seed, row in tqdm(done, total=len(missing)):
            results.add(seed=seed, **row)
    markup.write(blocks())


if __name__ == "__main__":
    main()
