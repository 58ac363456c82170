#!/usr/bin/env python3
"""Chapter 9's table: every rung in turn, its speed, where its seconds go, and how long it takes to solve Pong.

    ./chapter09.py                       # speeds and the sweep over environments, about twenty minutes on two cores
    ./chapter09.py speed --rounds 3      # one of them
    ./chapter09.py speed --device cuda   # into a file of its own
    ./chapter09.py --go-on               # after an interruption: only what is missing
    ./chapter09.py --solve --seeds 3     # train every rung until Pong is solved; hours, go on by the same command
    ./chapter09.py --solve --options "--game breakout"
    ./chapter09.py tables                # only make the documents' tables and pictures anew from the CSV files

Every rung runs as a process of its own, as a person would start it. The rungs take turns, and every other round goes
backwards, so that a machine that gets faster or slower does so for all of them. Speeds are those of a run's last 1,000
agent steps, which leaves out its start and its first checkpoint.
"""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

import bound
import catch
import curve
import lab
import ladder
import profiles
import wrappers

PARTS = ("act", "environment", "wait", "sample", "learn", "rest")
SWEEP = [f"02_n_envs --envs {n}" for n in range(1, 7)]
# The book's figures, from a GTX 1080 Ti and an i5-6600K: frames a second, minutes to solve Pong.
BOOK = {
    "00_slow_grads": (157, 115),
    "01_baseline": (159, 105),
    "02_n_envs --envs 3": (228, 44),
    "03_parallel": (402, 59),
    "04_wrappers --envs 3": (330, 40),
    "04_wrappers --envs 3 --parallel": (409, 31),
}
RUNGS = list(BOOK)
CHAPTER = "docs/chapter09.md"
MEANS = ("17.0", "18.0")


def speed(results: lab.Results, rungs: list[str], args: argparse.Namespace) -> None:
    """Agent steps a second of every rung after its warm-up, and milliseconds a step by part, in turn."""
    for number, rung in tqdm(
        [turn for turn in lab.turns(args.rounds, rungs) if not results.has(round=turn[0], rung=turn[1])]
    ):
        limits = ("--set", f"replay_initial={lab.WARM_UP}", "--stop-after", str(lab.WARM_UP + args.steps))
        measured = lab.timed(rung, *limits, "--device", args.device)
        parts = measured["parts"] | {"rest": measured["training_seconds"] - sum(measured["parts"].values())}
        results.add(
            round=number,
            rung=rung,
            steps_per_second=f"{measured['last_1000_steps_per_second']:.2f}",
            warm_up_steps_per_second=f"{measured['warm_up_steps_per_second']:.1f}",
            **{part: f"{1000 * parts.get(part, 0.0) / measured['training_steps']:.3f}" for part in PARTS},
        )


def solve(seeds: int, device: str, options: list[str]) -> None:
    """Train every rung until it is solved or gives up, seed by seed; what was interrupted is resumed.

    Args:
        options: more of the scripts', for all rungs.
    """
    for seed in range(1, seeds + 1):
        for rung in RUNGS:
            folder = (
                lab.PROJECT / "runs" / "solve" / lab.slug(" ".join(options) or "pong") / f"{lab.slug(rung)}-seed{seed}"
            )
            made = sorted(folder.glob("*/params.json"))
            start = ("--resume", str(made[-1].parent)) if made else ("--seed", str(seed), "--runs-dir", str(folder))
            if not (made and finished(made[-1].parent)):
                lab.start(lab.command(rung, *start, "--device", device, *options))
            [run] = [path.parent for path in folder.glob("*/result.json")]
            curve.keep(run)


def finished(run: Path) -> bool:
    """Whether a run was solved or gave up at its limit of steps."""
    result = run / "result.json"
    return result.exists() and json.loads(result.read_text())["stopped"] in ("solved", "step limit")


def tables() -> None:
    """The documents' tables and pictures from the CSV files that there are."""
    for name, document, marker, write in TABLES:
        if lab.path_of(name).exists():
            lab.put(document, marker, stamped_table(name, write))
    for name, draw in (("speed", bars), ("sweep", line), ("catch", catch.draw)):
        if lab.path_of(f"chapter09-{name}").exists():
            draw(lab.read(f"chapter09-{name}")[0])
    ladder.write()
    curves = curve.kept("pong")
    if curves:
        lab.put(CHAPTER, "curves", f"{curve.pictures(curves)}\n\n{solve_table(curves)}")
        lab.put(CHAPTER, "rates", curve.rates(curves))


def speed_table(frame: pd.DataFrame) -> str:
    """A row a rung: its speed, its ratio to the baseline round by round, its warm-up, the book's figures."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    warm_up = lab.rounds(frame, "rung", "warm_up_steps_per_second")
    ratio = lab.ratios(speeds, lab.BASELINE)
    rows = []
    for rung in speeds:
        ratios = lab.spread(ratio[rung], 2)
        book = BOOK[rung][0]
        rows.append((f"`{rung}`", lab.spread(speeds[rung]), ratios, f"{warm_up[rung].median():.0f}", book))
        rows[-1] += (f"{book / BOOK[lab.BASELINE][0]:.2f}",)
    header = ("rung", "agent steps/s", "ratio to 01 in the same round", "warm-up steps/s", "book, f/s", "book, ratio")
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(speeds)} rounds."


def parts_table(frame: pd.DataFrame) -> str:
    """A row a rung: milliseconds an agent step by part, medians; what the learner does not do itself is left empty."""
    medians = frame.groupby("rung", sort=False)[list(PARTS)].median()
    rows = []
    for rung, row in medians.iterrows():
        rows.append((f"`{rung}`", *(f"{value:.2f}" if value else "" for value in row), f"{row.sum():.2f}"))
    return f"{lab.table(('rung, ms an agent step', *PARTS, 'all'), rows)}\n\nMedians of all rounds."


def sweep_table(frame: pd.DataFrame) -> str:
    """A row a number of environments."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    ratios = lab.ratios(speeds, SWEEP[0])
    rows = []
    for rung in speeds:
        n = int(rung.split()[-1])
        rows.append((n, 32 * n, 32, f"1 / {n}", lab.spread(speeds[rung]), lab.spread(ratios[rung], 2)))
    header = ("N", "batch", "samples a step", "updates a step", "agent steps/s", "ratio to N = 1 in the same round")
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(speeds)} rounds."


def solve_table(curves: list[curve.Curve]) -> str:
    """A row a kept run: how far it came, and when its mean of the last 100 reached the bounds."""
    rows = []
    for name, frame, stamped in curves:
        if stamped["changed"]:
            continue
        result, last = stamped["result"], frame.iloc[-1]
        reached = []
        for mean in MEANS:
            when = result["reached"].get(mean)
            reached += [f"{when['step']:,}", f"{when['seconds'] / 60:.0f}"] if when else ["", ""]
        book = BOOK.get(stamped["rung"], ("", ""))[1]
        where = f"Beside {stamped['beside']} other runs. " if stamped["beside"] else ""
        where += lab.where(stamped)
        rows.append((f"`{name}`", f"{int(last.step):,}", f"{last.mean_100:.2f}", *reached, book, where))
    header = (
        "run",
        "agent steps",
        "mean of the last 100",
        "steps to 17",
        "min",
        "steps to 18",
        "min",
        "book, min",
        "where",
    )
    return lab.table(header, rows)


def bars(frame: pd.DataFrame) -> None:
    """Speeds side by side, the book's ratios beside ours, as docs/pictures/chapter09-speed.png."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    ratios = lab.ratios(speeds, lab.BASELINE)
    figure, axes = plt.subplots(figsize=(7, 3), layout="constrained")
    places = range(len(ratios.columns))
    low, high = (ratios.median() - ratios.min()), (ratios.max() - ratios.median())
    axes.barh([p - 0.2 for p in places], ratios.median(), 0.38, xerr=[low, high], label="here", capsize=2)
    axes.barh([p + 0.2 for p in places], [BOOK[r][0] / BOOK[lab.BASELINE][0] for r in ratios], 0.38, label="book, GPU")
    axes.set(yticks=list(places), yticklabels=list(ratios.columns), xlabel="agent steps/s, ratio to 01_baseline")
    axes.invert_yaxis()
    axes.legend()
    figure.savefig(lab.PICTURES / "chapter09-speed.png", dpi=110)


def line(frame: pd.DataFrame) -> None:
    """Speed against the number of environments, as docs/pictures/chapter09-sweep.png."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    numbers = [int(rung.split()[-1]) for rung in speeds]
    figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
    axes.fill_between(numbers, speeds.min(), speeds.max(), alpha=0.3)
    axes.plot(numbers, speeds.median(), marker="o")
    axes.set(xlabel="environments", ylabel="agent steps/s", ylim=(0, None))
    axes.grid(alpha=0.3)
    figure.savefig(lab.PICTURES / "chapter09-sweep.png", dpi=110)


TABLES = (
    ("chapter09-speed", "README.md", "speed", speed_table),
    ("chapter09-speed", CHAPTER, "speed", speed_table),
    ("chapter09-speed", CHAPTER, "rungs-parts", parts_table),
    ("chapter09-speed-cuda", CHAPTER, "speed-cuda", speed_table),
    ("chapter09-speed-cuda", CHAPTER, "rungs-parts-cuda", parts_table),
    ("chapter09-sweep", CHAPTER, "sweep", sweep_table),
    ("chapter09-bound", CHAPTER, "bound", bound.table),
    ("chapter09-wrappers", CHAPTER, "wrappers", wrappers.table),
    ("chapter09-catch", CHAPTER, "catch", catch.table),
    ("chapter09-parts", CHAPTER, "parts", profiles.parts_table),
    ("chapter09-memory", CHAPTER, "memory", profiles.memory_table),
)


def stamped_table(name: str, write: Callable[[pd.DataFrame], str]) -> str:
    """A table of a results file, with where it was measured."""
    frame, stamped = lab.read(name)
    return f"{write(frame)} {lab.where(stamped)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.experiments(parser, "speed", "sweep", "tables")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each measurement (default: 5)")
    parser.add_argument("--steps", type=int, default=1100, help="agent steps of learning of each run (default: 1100)")
    parser.add_argument("--device", type=lab.device, default="cpu", help="where the networks are (default: cpu)")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted measurement has left")
    parser.add_argument("--solve", action="store_true", help="train every rung until Pong is solved")
    parser.add_argument("--seeds", type=int, default=1, help="seeds of --solve (default: 1)")
    parser.add_argument("--options", type=shlex.split, default=[], help="more of the scripts', for --solve")
    args = parser.parse_args()
    if args.options and not args.solve:
        parser.error("--options is for --solve alone")
    if args.solve:
        solve(args.seeds, args.device, args.options)
    # All are opened before the first is measured, so that one that cannot be gone on with is refused at once.
    chosen = args.what or (() if args.solve else ("speed", "sweep"))
    machine = "" if args.device == "cpu" else f"-{args.device.partition(':')[0]}"
    columns = ("round", "rung", "steps_per_second", "warm_up_steps_per_second", *PARTS)
    stamped = lab.stamp(args.device, steps=args.steps, warm_up=lab.WARM_UP)
    opened = [
        (lab.Results(f"chapter09-{name}{machine}", columns, stamped, args.go_on), rungs)
        for name, rungs in (("speed", RUNGS), ("sweep", SWEEP))
        if name in chosen
    ]
    for results, rungs in opened:
        speed(results, rungs, args)
    tables()


if __name__ == "__main__":
    main()
