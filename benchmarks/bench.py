#!/usr/bin/env python3
"""Measure this project, and make the tables and pictures of its pages.

    ./bench.py list                             # the experiments, and what each has measured
    ./bench.py run ladder                       # one of them; the same command goes on after an interruption
    ./bench.py run solve --variant distributed/03_ppo_actors --seeds 9301-9310
    ./bench.py run trials --variant "distributed/02_ppo_fast --set lam=0.9" --seeds 101-120
    ./bench.py run ladder --again               # measured again at this commit and on this machine
    ./bench.py tables                           # the tables and pictures of README and docs/

**An experiment** is data (experiments.py): a dictionary of variants, the default seeds, and the function of
measures.py that measures one variant with one seed. A variant is a name and its settings, which is the command line.
solve, trials, ladder and chapter09 take any other script with its options as a variant.

**A measurement** is a row of results/runs.csv: its experiment, variant and seed; its settings, commit, time and
machine, a key of results/machines.json, which has the machine and the versions of packages; and its figures. Some have
curves, too, in results/curves.csv. A measurement is written when it is complete, and all of it at once.

**Rounds.** Every seed is a round: each variant is measured once, in reverse order in every second round. If the
machine becomes faster or slower, this affects all variants equally. Tables of speeds take ratios within a round, and
use the rounds that are complete, at one commit and on one machine.

**Going on.** A measurement that runs.csv has is not made again. If its settings differ from today's, bench.py stops,
because a table would mix them. Another commit or machine is no reason, because every row names its own; only a round
of speeds that was left incomplete there is measured again from its start. --again measures everything that is not of
this commit and machine; an old row stays until the new one is written. A run that was interrupted goes on from its
checkpoint under the same settings, commit and machine, and starts again otherwise, or if its seconds count.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

import measures
import pictures
import results
import tables
from experiments import EXPERIMENTS, Experiment
from lib import cli
from results import Job, Place

from tqdm import tqdm

Turn = TypeVar("Turn")
Result = TypeVar("Result")


def jobs_of(name: str, variants: Sequence[str], seeds: Sequence[int]) -> list[Job]:
    """Return the measurements of some variants and seeds, in order: round by round, every second one backwards.

    Raises:
        SystemExit: if the experiment does not take one of these variants.
    """
    experiment = EXPERIMENTS[name]
    threads = 1 if experiment.jobs > 1 else None
    places: dict[str, Place] = {}
    jobs = []
    for number, seed in enumerate(seeds):
        for variant in variants[:: -1 if number % 2 else 1]:
            settings = experiment.settings_of(variant)
            device = "cuda" if re.search(r"--cuda|--device[ =]cuda", settings) else "cpu"
            if device not in places:
                places[device] = results.place(device, threads)
            jobs.append(Job(name, variant, seed, settings, places[device], threads))
    return jobs


def missing(experiment: Experiment, jobs: Sequence[Job], again: bool) -> list[Job]:
    """Return the measurements that have to be made; see "Going on" above.

    Raises:
        SystemExit: if a variant would have measurements with different settings.
    """
    rows = {(row["variant"], int(row["seed"])): row for row in results.rows_of("runs.csv", jobs[0].experiment)}
    kept = {job: row for job in jobs if (row := rows.get((job.variant, job.seed)))}
    in_rounds: dict[int, set[Place | None]] = {}
    for job in jobs:
        row = kept.get(job)
        in_rounds.setdefault(job.seed, set()).add(Place(row["commit"], row["machine"]) if row else None)

    def has_to_be_made(job: Job) -> bool:
        row = kept.get(job)
        if row is None:
            return True
        is_here = (row["settings"], row["commit"], row["machine"]) == (job.settings, *job.place)
        is_cut = experiment.in_rounds and len(in_rounds[job.seed]) > 1
        return (again or is_cut) and not is_here

    made = [job for job in jobs if has_to_be_made(job)]
    replaced = {(job.variant, job.seed) for job in made} if again else set()
    wanted = {job.variant: job.settings for job in jobs}
    for (variant, seed), row in rows.items():
        if variant in wanted and row["settings"] != wanted[variant] and (variant, seed) not in replaced:
            raise SystemExit(
                f"{jobs[0].experiment}: {variant}, seed {seed}, was measured with other settings:\n"
                f"  {row['settings']}\n  {wanted[variant]}\n"
                "Measure it again: --again --seeds with all of its seeds. Or delete its rows in results/."
            )
    return made


def in_parallel(jobs: int, call: Callable[[Turn], Result], turns: Iterable[Turn]) -> Iterator[tuple[Turn, Result]]:
    """Call a function for each turn, `jobs` at once, and yield the turns with their results as they end.

    After an error no further call begins; it is raised when those that run have ended. Ctrl-C also reaches the scripts
    that run, which save and end.
    """
    waiting = iter(turns)
    running: dict[Future[Result], Turn] = {}
    error: BaseException | None = None
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while error is None and len(running) < jobs and (turn := next(waiting, None)) is not None:
                running[pool.submit(call, turn)] = turn
            if not running:
                break
            for done in wait(running, return_when=FIRST_COMPLETED).done:
                turn = running.pop(done)
                if failure := done.exception():
                    error = failure
                else:
                    yield turn, done.result()
    if error:
        raise error


def run(name: str, variants: Sequence[str], seeds: Sequence[int], jobs: int, again: bool) -> None:
    """Make the measurements of an experiment that are missing."""
    experiment = EXPERIMENTS[name]
    if jobs and experiment.jobs == 1:
        raise SystemExit(f"{name} measures seconds, so its measurements are made one at a time; leave out --jobs")
    wanted = jobs_of(name, variants or list(experiment.variants), seeds or experiment.seeds)
    made = missing(experiment, wanted, again)
    if len(made) < len(wanted):
        print(f"{len(wanted) - len(made)} of {len(wanted)} are kept; --again measures those of other commits, too")
    done = in_parallel(jobs or experiment.jobs, experiment.measure, made)
    for job, (figures, curves) in tqdm(done, total=len(made)):
        results.add(job, figures, curves)
        for saved in measures.folder_of(job).glob("*/checkpoints"):
            shutil.rmtree(saved)  # they are large, and the run will not go on
        known = ((name, results.as_text(value)) for name, value in figures.items())
        tqdm.write(f"{job.variant}, seed {job.seed}: " + ", ".join(f"{name} {text}" for name, text in known if text))


def list_experiments() -> None:
    """Print each experiment, and how many measurements it has."""
    for name, experiment in EXPERIMENTS.items():
        rows = results.rows_of("runs.csv", name)
        days = sorted({row["measured"][:10] for row in rows})
        variants = len({row["variant"] for row in rows})
        measured = f"{len(rows)} rows of {variants} variants, {days[0]} to {days[-1]}" if rows else "nothing"
        print(f"{name:15} {experiment.about}\n{'':15} measured: {measured}")


def seeds(text: str) -> range:
    """argparse type: "101-110", or a single seed."""
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", text)
    numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    if not numbers:
        raise argparse.ArgumentTypeError(f"{text!r} is no range of seeds; give the first and the last, such as 101-110")
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="list the experiments")
    commands.add_parser("tables", help="make the tables and pictures of the pages")
    runner = commands.add_parser("run", help="make the measurements that are missing")
    runner.add_argument("name", choices=EXPERIMENTS)
    runner.add_argument("--variant", action="append", default=[], metavar="NAME", help="only this one; repeatable")
    runner.add_argument("--seeds", type=seeds, help="first and last seed, such as 1-3; a seed is a round of speeds")
    runner.add_argument("--jobs", type=cli.positive, help="measurements at a time, with a torch thread each")
    runner.add_argument(
        "--again", action="store_true", help="measure again what was measured at another commit or on another machine"
    )
    args = parser.parse_args()
    if args.command == "list":
        list_experiments()
    elif args.command == "run":
        run(args.name, args.variant, args.seeds, args.jobs, args.again)
    else:
        tables.write()
        pictures.draw()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
