#!/usr/bin/env python3
"""Measure chapter 9's rungs: their speed, where their time goes, and how long they take to solve Pong.

    ./chapter09.py                       # speeds, and the sweep over environments: about twenty minutes on two cores
    ./chapter09.py speed --rounds 3      # one of them
    ./chapter09.py speed --device cuda   # into a file of its own
    ./chapter09.py --go-on               # after an interruption: keep the rows, and measure the rest
    ./chapter09.py --params best         # train every rung until Pong is solved, with tuned hyperparameters; hours
    ./chapter09.py --params best --go-on # after an interruption: continue the runs that have not ended
    ./chapter09.py --params best --rung 03_parallel --seeds 4   # one more seed, beside the three that are in results/
    ./chapter09.py speed --params best   # only the speeds of the trained rungs, again; --rung: the table with that rung
    ./chapter09.py --params common --device cuda   # the book's hyperparameters, on a GPU
    ./chapter09.py tables                # only the tables and pictures of the pages

Every rung runs as its own process, as a person would start it. The rungs take turns, in reverse order in every
second round. Speeds are counted over the last 1,000 agent steps, so start-up and the first checkpoint are left out.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import bound
import catch
import curve
import lab
import ladder
import launch
import markup
import minutes
import profiles
import wrappers
from lib import cli

import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "docs/chapter09.md"
PARTS = ("act", "environment", "wait", "sample", "learn", "rest")
COLUMNS = ("round", "rung", "steps_per_second", "warm_up_steps_per_second", *PARTS)
SWEEP = [f"02_n_envs --envs {n}" for n in range(1, 7)]
# The book's frames a second, from a GTX 1080 Ti and an i5-6600K.
BOOK = {
    "00_slow_grads": 157,
    "01_baseline": 159,
    "02_n_envs --envs 3": 228,
    "03_parallel": 402,
    "04_wrappers --envs 3": 330,
    "04_wrappers --envs 3 --parallel": 409,
}
RUNGS = list(BOOK)


def speed(results: lab.Results, rungs: list[str], args: argparse.Namespace) -> None:
    """Measure the agent steps per second of every rung after its warm-up, and the milliseconds of each part."""
    limits = ["--set", f"replay_initial={launch.WARM_UP}", "--stop-after", str(launch.WARM_UP + args.steps)]
    for number, rung in tqdm(list(lab.turns(args.rounds, rungs))):
        if results.has(round=number, rung=rung):
            continue
        measured = launch.timed(rung, *launch.tuned(args.params, rung), *limits, "--device", args.device)
        parts = measured["parts"] | {"rest": measured["training_seconds"] - sum(measured["parts"].values())}
        results.add(
            round=number,
            rung=rung,
            steps_per_second=f"{measured['last_1000_steps_per_second']:.2f}",
            warm_up_steps_per_second=f"{measured['warm_up_steps_per_second']:.1f}",
            **{part: f"{1000 * parts.get(part, 0.0) / measured['training_steps']:.3f}" for part in PARTS},
        )


def speed_table(frame: pd.DataFrame) -> str:
    """Return a row per rung: its speed, its ratio to the baseline, its warm-up, and the book's figures."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    warm_up = lab.rounds(frame, "rung", "warm_up_steps_per_second")
    ratios = lab.ratios(speeds, launch.BASELINE)
    rows = []
    for rung in speeds:
        book = f"{BOOK[rung]} ({BOOK[rung] / BOOK[launch.BASELINE]:.2f})"
        speed, ratio = markup.spread(speeds[rung]), markup.spread(ratios[rung], 2)
        rows.append((f"`{rung}`", speed, ratio, f"{warm_up[rung].median():,.0f}", book))
    return markup.table(("script", "agent steps/s", "ratio to 01", "warm-up steps/s", "book f/s (ratio)"), rows)


def parts_table(frame: pd.DataFrame) -> str:
    """Return a row per rung with the median milliseconds of each part; the cells of missing parts are empty."""
    medians = frame.groupby("rung", sort=False)[list(PARTS)].median()
    rows = []
    for rung, row in medians.iterrows():
        rows.append((f"`{rung}`", *(f"{value:.2f}" if value else "" for value in row), f"{row.sum():.2f}"))
    return markup.table(("median ms per agent step", *PARTS, "all"), rows)


def sweep_table(frame: pd.DataFrame) -> str:
    """Return a row per number of environments."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    ratios = lab.ratios(speeds, SWEEP[0])
    rows = []
    for rung in speeds:
        n = int(rung.split()[-1])
        rows.append((n, 32 * n, markup.spread(speeds[rung]), markup.spread(ratios[rung], 2)))
    return markup.table(("N", "batch", "agent steps/s", "ratio to N = 1"), rows)


def draw_speed(frame: pd.DataFrame) -> None:
    """Draw the speeds beside the book's, as ratios to the baseline, as docs/pictures/chapter09-speed.png."""
    ratios = lab.ratios(lab.rounds(frame, "rung", "steps_per_second"), launch.BASELINE)
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    places = range(len(ratios.columns))
    low, high = (ratios.median() - ratios.min()), (ratios.max() - ratios.median())
    book = [BOOK[rung] / BOOK[launch.BASELINE] for rung in ratios]
    axes.barh([place - 0.2 for place in places], ratios.median(), 0.38, xerr=[low, high], label="here", capsize=2)
    axes.barh([place + 0.2 for place in places], book, 0.38, label="book, GPU")
    axes.set(yticks=list(places), yticklabels=list(ratios.columns), xlabel="agent steps/s, ratio to 01_baseline")
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(markup.PICTURES / "chapter09-speed.png", dpi=110)


def draw_sweep(frame: pd.DataFrame) -> None:
    """Draw the speed against the number of environments as docs/pictures/chapter09-sweep.png."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    numbers = [int(rung.split()[-1]) for rung in speeds]
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.fill_between(numbers, speeds.min(), speeds.max(), alpha=0.3)
    axes.plot(numbers, speeds.median(), marker="o")
    axes.set(xlabel="environments", ylabel="agent steps/s", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.savefig(markup.PICTURES / "chapter09-sweep.png", dpi=110)


# Results file, page, marker and table.
TABLES: tuple[tuple[str, str, str, Callable[[pd.DataFrame], str]], ...] = (
    ("chapter09/speed", PAGE, "speed", speed_table),
    ("chapter09/speed-cuda", markup.MEASUREMENTS, "speed-cuda", speed_table),
    ("chapter09/speed", markup.MEASUREMENTS, "rungs-parts", parts_table),
    ("chapter09/speed-cuda", markup.MEASUREMENTS, "rungs-parts-cuda", parts_table),
    ("chapter09/sweep", markup.MEASUREMENTS, "sweep", sweep_table),
    (bound.NAME, markup.MEASUREMENTS, "bound", bound.table),
    (wrappers.NAME, markup.MEASUREMENTS, "wrappers", wrappers.table),
    (catch.NAME, markup.MEASUREMENTS, "catch", catch.table),
    (profiles.PARTS, markup.MEASUREMENTS, "parts", profiles.parts_table),
    (profiles.MEMORY, markup.MEASUREMENTS, "memory", profiles.memory_table),
)


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages, the ladder included."""
    for name, page, marker, make_table in TABLES:
        frame, stamped = lab.read(name)
        rounds = lab.count_rounds(frame)
        yield markup.Block(page, marker, f"{make_table(frame)}\n\n{markup.measured_on([stamped], rounds)}")
    yield from ladder.blocks()
    yield from minutes_blocks()
    curves = curve.kept("pong")
    every = [own.stamped for own in curves]
    yield markup.Block(markup.MEASUREMENTS, "rates", f"{curve.rates_table(curves)}\n\n{markup.measured_on(every)}")


def minutes_blocks() -> Iterator[markup.Block]:
    """Yield the tables of --params best that compare runs, if their speeds have been measured."""
    tables = (  # page, marker, rungs, and the one that changes refer to
        (PAGE, "minutes", list(minutes.LADDER), launch.BASELINE),
        (markup.MEASUREMENTS, "minutes-sweep", minutes.SWEEP, launch.BASELINE),
        (markup.MEASUREMENTS, "minutes-remedies", [minutes.PLAIN, *minutes.REMEDIES], minutes.PLAIN),
    )
    for page, marker, rungs, reference in tables:
        trained, speeds = minutes.timed("best", reference)
        if _rungs_among(rungs, trained) > 1:
            text = minutes.table(trained, speeds, rungs, reference)
            stamps = [run.stamped for run in trained if run.rung in rungs]
            source = markup.measured_on([lab.read(minutes.speed_of("best", to=reference))[1]], len(speeds))
            source += f" Training: {markup.processors(stamps)}; {markup.days(stamps)}."
            yield markup.Block(page, marker, f"{text}\n\n{source}")


def _rungs_among(rungs: Sequence[str], trained: Sequence[minutes.Trained]) -> int:
    """Return how many of the rungs were trained."""
    return len({run.rung for run in trained}.intersection(rungs))


def pictures() -> None:
    """Draw the pictures of the page."""
    draw_speed(lab.read("chapter09/speed")[0])
    draw_sweep(lab.read("chapter09/sweep")[0])
    catch.draw(lab.read(catch.NAME)[0])
    trained, speeds = minutes.timed("best")
    if trained:
        minutes.draw(trained, speeds, "chapter09-minutes", list(minutes.LADDER))
        if _rungs_among(minutes.SWEEP, trained) > 1:
            minutes.draw(trained, speeds, "chapter09-minutes-sweep", minutes.SWEEP)


def train(args: argparse.Namespace) -> None:
    """Train the rungs of --params, measure their speeds if one is missing, and print the tables.

    With `speed`, none is trained, and the speeds are measured again.
    """
    speeds_only = "speed" in args.what
    if not speeds_only:
        minutes.train(args.params, args.device, args.go_on, args.rung, args.seeds, args.jobs)
    trained = minutes.read(args.params, args.device)
    finished = list(dict.fromkeys(run.rung for run in trained))
    groups = {
        launch.BASELINE: [rung for rung in finished if rung not in minutes.REMEDIES],
        minutes.PLAIN: [rung for rung in finished if rung in (minutes.PLAIN, *minutes.REMEDIES)],
    }
    for reference, rungs in groups.items():
        is_asked_for = not (speeds_only and args.rung) or set(args.rung) & set(rungs)
        if is_asked_for and rungs and rungs != [minutes.PLAIN]:
            name = minutes.speed_of(args.params, args.device, reference)
            if speeds_only or not minutes.has_speeds(name, rungs, args.rounds):
                settings = {"steps": args.steps, "warm_up": launch.WARM_UP, "params": args.params, "rungs": rungs}
                stamped = lab.stamp(args.device, **settings)
                speed(lab.Results(name, COLUMNS, stamped, args.go_on, replace=not args.go_on), rungs, args)
            print(minutes.table(trained, minutes.speeds(args.params, args.device, reference), rungs, reference))


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "speed", "sweep", "tables")
    parser.add_argument("--rounds", type=cli.positive, default=5, help="rounds of each measurement (default: 5)")
    parser.add_argument("--steps", type=cli.positive, default=1100, help="learning steps of each run (default: 1100)")
    parser.add_argument("--device", type=lab.device, default="cpu", help="device of the networks (default: cpu)")
    parser.add_argument("--params", choices=("common", "best"), help="train every rung until Pong is solved")
    lab.add_go_on(parser)
    parser.add_argument("--rung", action="append", default=[], choices=minutes.SEEDS, help="only this rung; repeatable")
    parser.add_argument(
        "--seeds", type=cli.positive, default=0, help="seeds of each rung of --params (default: one or three)"
    )
    parser.add_argument(
        "--jobs", type=cli.positive, default=1, help="runs of --params at once, each with one thread if several"
    )
    args = parser.parse_args()
    if args.params and "sweep" in args.what:
        parser.error("the sweep is measured without --params; --params trains it with --rung")
    if args.params:
        train(args)
    elif args.rung or args.seeds or args.jobs > 1:
        parser.error("--rung, --seeds and --jobs need --params")
    chosen = () if args.params else args.what or ("speed", "sweep")
    machine = "" if args.device == "cpu" else f"-{args.device.partition(':')[0]}"
    stamped = lab.stamp(args.device, steps=args.steps, warm_up=launch.WARM_UP)
    # Open all files before the first measurement, so that a file that cannot be continued is refused at once.
    opened = [
        (lab.Results(f"chapter09/{name}{machine}", COLUMNS, stamped, args.go_on), rungs)
        for name, rungs in (("speed", RUNGS), ("sweep", SWEEP))
        if name in chosen
    ]
    for results, rungs in opened:
        speed(results, rungs, args)
    markup.write(blocks())
    pictures()


if __name__ == "__main__":
    main()
