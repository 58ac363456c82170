#!/usr/bin/env python3
"""Compare chapter 8's extensions: what they learn from equal numbers of steps, and what a step costs.

    ./chapter08.py                          # step, draws and toy: about half an hour
    ./chapter08.py toy --seeds 5 --go-on    # keep the runs that have ended, and measure the others
    ./chapter08.py pong --seeds 3 --go-on --variants basic n_steps "double, n_steps" rainbow
                                            # 320,000 steps of Pong per run: an hour a seed
    ./chapter08.py tables                   # only the tables and pictures of docs/chapter08.md

Learning is compared on 08_dqn_rainbow.py with parts left out. With all parts left out it is basic DQN. With a single
part it is that extension with Rainbow's settings. The cost of a step is measured on the scripts themselves.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import lab
import launch
import markup
from lib import cli
from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Ring
from lib.system.machine import cores

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from ptan.experience import ExperienceFirstLast, PrioReplayBufferNaive, PrioritizedReplayBuffer
from tqdm import tqdm

PAGE = "docs/chapter08.md"
PARTS = ("double", "dueling", "noisy", "prioritised", "n_step", "distributional")
VARIANTS = {
    "basic": (),
    "n_steps": ("n_step",),
    "double": ("double",),
    "noisy_net": ("noisy",),
    "prio_replay": ("prioritised",),
    "dueling": ("dueling",),
    "distrib": ("distributional",),
    "double, n_steps": ("double", "n_step"),
    "rainbow": PARTS,
}
SCRIPTS = [
    "chapter08/01_dqn_basic",
    "chapter08/02_dqn_n_steps",
    "chapter08/03_dqn_double",
    "chapter08/04_dqn_noisy_net",
    "chapter08/05_dqn_prio_replay",
    "chapter08/06_dqn_dueling",
    "chapter08/07_dqn_distrib",
    "chapter08/08_dqn_rainbow",
]
BARE_RAINBOW = " ".join([SCRIPTS[-1], *(f"--without {part}" for part in PARTS)])  # bfloat16 remains
TIMED_SCRIPTS = [*SCRIPTS, BARE_RAINBOW]
TIMED_STEPS = 500  # agent steps of a timed script
COLUMNS = ("variant", "seed", "step", "mean_return", "reached")


class Task(NamedTuple):
    """Task on which the variants learn.

    Attributes:
        options: options of the script.
        fields: hyperparameters.
        steps: agent steps of a run.
        width: agent steps of a bin of the curve.
        goal: goal for the mean return over 100 episodes, and over a bin.
    """

    options: list[str]
    fields: dict[str, Any]
    steps: int
    width: int
    goal: float


TASKS = {
    "toy": Task(
        options=["--env-id", "fakes:Delayed-v0"],
        fields={
            "replay_initial": 200,
            "replay_size": 5000,
            "epsilon_frames": 1500,
            "epsilon_final": 0.02,
            "target_net_sync": 100,
            "learning_rate": 1e-3,
            "checkpoint_replay": "false",
        },
        steps=6000,
        width=250,
        goal=0.9,
    ),
    "pong": Task(
        options=["--fast", "--envs", "8", "--v-max", "2"],
        fields={
            "replay_initial": 5000,
            "batch_size": 4,
            "epsilon_frames": 25_000,
            "learning_rate": 5e-4,
            "checkpoint_replay": "false",
        },
        steps=320_000,
        width=10_000,
        goal=0.0,
    ),
}


def learn(task: str, variants: list[str], seeds: int, jobs: int, go_on: bool) -> None:
    """Measure the mean return by steps of every variant and seed, each run into a file of its own.

    Learning curves against steps are the same on every machine except for rounding. So results of other machines are
    kept.
    """
    stamped = lab.stamp(threads=1, place=list(TASKS[task]))  # another name would make the kept files differ
    turns = itertools.product(range(1, seeds + 1), variants)
    missing = [turn for turn in turns if not (go_on and lab.path_of(file_of(task, *turn)).exists())]
    opened = {turn: lab.Results(file_of(task, *turn), COLUMNS, stamped) for turn in missing}
    done = launch.in_parallel(jobs, lambda turn: curve(task, *turn), missing)
    for (seed, variant), (means, reached) in tqdm(done, total=len(missing)):
        results = opened[seed, variant]
        for last_step, mean in means.items():
            results.add(variant=variant, seed=seed, step=last_step, mean_return=f"{mean:.4f}", reached=reached)


def file_of(task: str, seed: int, variant: str) -> str:
    """Return the name of a run's results file."""
    return f"chapter08/{task}-{lab.slug(variant)}-seed{seed}"


def measured(name: str) -> tuple[pd.DataFrame, list[lab.Stamp]]:
    """Return all results of an experiment and their stamps. A learning task has one file per run.

    Raises:
        SystemExit: if the files have different settings.
    """
    names = sorted(f"chapter08/{path.stem}" for path in (lab.RESULTS / "chapter08").glob(f"{name}-*-seed*.csv"))
    frames, stamps = zip(*map(lab.read, names or [f"chapter08/{name}"]), strict=True)
    if any(stamped["settings"] != stamps[0]["settings"] for stamped in stamps):
        raise SystemExit(f"{', '.join(names)} were measured with different settings; remove the older ones")
    return pd.concat(frames, ignore_index=True), list(stamps)


def curve(task: str, seed: int, variant: str) -> tuple[dict[int, float], float]:
    """Train one variant.

    Returns:
        Mean return of the episodes that ended in each bin, by the bin's last step; and the step at which the mean of
        100 episodes reached the goal, or NaN.
    """
    options, fields, steps, width, goal = TASKS[task]
    without = itertools.chain(*(("--without", part) for part in PARTS if part not in VARIANTS[variant]))
    limits = ("--stop-after", str(steps), "--set", "stop_reward=none", "--seed", str(seed))
    modules = os.pathsep.join([str(lab.PROJECT), str(lab.PROJECT / "tests")])
    environment = {"PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}
    words = [*without, *options, *launch.assignments(fields), *limits]
    with launch.finished_run("chapter08/08_dqn_rainbow", *words, **environment) as run:
        frame = pd.read_csv(run / "episodes.csv")
    means = frame.groupby((frame["step"] - 1) // width)["return"].mean()
    reached = frame["step"][frame["return"].rolling(100).mean() >= goal].min()
    return {(int(number) + 1) * width: mean for number, mean in means.items()}, reached


def step(rounds: int, go_on: bool) -> None:
    """Measure the milliseconds of an agent step, learning included, of every script in turn."""
    columns = ("round", "script", "milliseconds")
    results = lab.Results("chapter08/step", columns, lab.stamp(steps=TIMED_STEPS), go_on)
    limits = ("--set", f"replay_initial={launch.WARM_UP}", "--stop-after", str(launch.WARM_UP + TIMED_STEPS))
    for number, script in tqdm(list(lab.turns(rounds, TIMED_SCRIPTS))):
        if not results.has(round=number, script=script):
            milliseconds = 1000 / launch.timed(script, *limits)["steps_per_second"]
            results.add(round=number, script=script, milliseconds=f"{milliseconds:.3f}")


def draws(go_on: bool) -> None:
    """Measure the microseconds for a batch of 32 transitions from each of the replays."""
    results = lab.Results("chapter08/draws", ("replay", "size", "microseconds"), lab.stamp(batch=32), go_on)
    for name, size, sample in replays():
        if not results.has(replay=name, size=size):
            results.add(replay=name, size=size, microseconds=f"{1e6 * seconds(sample):.1f}")


def replays() -> Iterator[tuple[str, int, Callable[[], object]]]:
    """Yield full replays: name, number of transitions, and a function that draws a batch of 32.

    Prioritised replays have random priorities and small states. The uniform rings have Atari screens.
    """
    rng = np.random.default_rng(0)
    for size in (100_000, 1_000_000):
        ring = PrioritisedRing(size, 100, (4,), stack=1)
        zeros = step_with(np.zeros((100, 4), np.uint8))
        for _ in range(ring.length):
            ring.add(*zeros)
            ring._highest = float(rng.random() + 0.5)
        yield "PrioritisedRing", size, partial(ring.sample, 32)
    transition = ExperienceFirstLast(np.zeros(4), 0, 0.0, np.zeros(4))
    tree, naive = PrioritizedReplayBuffer(None, 100_000, 0.6), PrioReplayBufferNaive([], 100_000)
    for _ in range(100_000):
        tree._add(transition)
    naive.buffer = [transition] * 100_000
    for buffer in (tree, naive):
        buffer.update_priorities(range(100_000), rng.random(100_000) + 0.5)
        yield f"ptan's {type(buffer).__name__}", 100_000, partial(buffer.sample, 32, 0.4)
    for n_step in (1, 3):
        screens = Ring(10_000, 1, (84, 84), n_step=n_step)
        for _ in range(screens.length):
            screens.add(*step_with(rng.integers(0, 256, (1, 84, 84), np.uint8)))
        yield f"Ring of screens, n_step={n_step}", screens.length, partial(screens.sample, 32)


def step_with(frames: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the arguments of Ring.add for a step with these frames and no reward."""
    n = len(frames)
    return frames, np.zeros(n, int), np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)


def seconds(call: Callable[[], object], calls: int = 300) -> float:
    """Return the median seconds of a call, after 30 calls that are not counted."""
    for _ in range(30):
        call()
    taken = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def by_variant(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the rows of each variant, in the order of VARIANTS."""
    present = set(frame["variant"])
    return [(variant, frame[frame["variant"] == variant]) for variant in VARIANTS if variant in present]


def learn_table(task: str, frame: pd.DataFrame) -> str:
    """Return a row per variant: mean return over the whole run and at its end, and the steps to the goal."""
    goal, width, last_step = TASKS[task].goal, TASKS[task].width, frame["step"].max()
    rows = []
    for variant, own in by_variant(frame):
        # Bins in which no episode ended are interpolated linearly.
        curves = own.pivot(index="step", columns="seed", values="mean_return").interpolate(limit_area="inside")
        whole, late = curves.mean(), curves[curves.index > 0.75 * last_step].mean()
        by_bin = own[own["mean_return"] >= goal].groupby("seed")["step"].min()
        by_episodes = own.groupby("seed")["reached"].first().dropna()
        rows.append(
            (
                variant,
                f"{whole.mean():.2f} ({whole.min():.2f} to {whole.max():.2f})",
                f"{late.mean():.2f}",
                markup.spread_of_seeds(by_bin, len(whole)),
                markup.spread_of_seeds(by_episodes, len(whole)),
            )
        )
    header = (
        "variant",
        "mean return (range)",
        "last quarter",
        f"steps until the mean over {width:,} steps reaches {goal:g}",
        f"steps until the mean over 100 episodes reaches {goal:g}",
    )
    return markup.table(header, rows)


def draw(task: str, frame: pd.DataFrame) -> None:
    """Draw the mean return against steps, with the range of the seeds, as docs/pictures/chapter08-<task>.png."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for variant, own in by_variant(frame):
        table = own.pivot(index="step", columns="seed", values="mean_return").dropna()
        [line] = axes.plot(table.index, table.mean(axis=1), label=variant)
        axes.fill_between(table.index, table.min(axis=1), table.max(axis=1), color=line.get_color(), alpha=0.15)
    axes.set(xlabel="agent steps", ylabel="mean return")
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(markup.PICTURES / f"chapter08-{task}.png", dpi=110)


def step_table(frame: pd.DataFrame) -> str:
    """Return a row per script: its milliseconds and its ratio to basic DQN in the same round."""
    spent = lab.rounds(frame, "script", "milliseconds")
    to_basic = lab.ratios(spent, SCRIPTS[0])
    rows = []
    for script in spent:
        name = (
            "`08_dqn_rainbow` with all parts left out"
            if script == BARE_RAINBOW
            else f"`{script.removeprefix('chapter08/')}`"
        )
        rows.append((name, markup.spread(spent[script]), markup.spread(to_basic[script], 2)))
    return markup.table(("script", "ms per agent step", "ratio to 01"), rows)


def draws_table(frame: pd.DataFrame) -> str:
    """Return a row per replay."""
    rows = [(row.replay, f"{row.size:,}", f"{row.microseconds:,.0f}") for row in frame.itertuples(index=False)]
    return markup.table(("replay", "transitions", "µs for a batch of 32"), rows)


TABLES: dict[str, tuple[str, Callable[[pd.DataFrame], str]]] = {  # page and table of each experiment
    "toy": (markup.MEASUREMENTS, partial(learn_table, "toy")),
    "pong": (PAGE, partial(learn_table, "pong")),
    "step": (markup.MEASUREMENTS, step_table),
    "draws": (markup.MEASUREMENTS, draws_table),
}


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages."""
    for name, (page, make_table) in TABLES.items():
        frame, stamps = measured(name)
        where = markup.measured_on(stamps, lab.count_rounds(frame))
        yield markup.Block(page, name, f"{make_table(frame)}\n\n{where}")


def pictures() -> None:
    """Draw the pictures of the page."""
    for task in TASKS:
        draw(task, measured(task)[0])


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "step", "draws", *TASKS, "tables")
    parser.add_argument("--seeds", type=cli.positive, default=5, help="number of seeds of toy and pong (default: 5)")
    parser.add_argument("--variants", nargs="+", choices=tuple(VARIANTS), default=list(VARIANTS), help="default: all")
    parser.add_argument(
        "--jobs", type=cli.positive, default=cores(), help="runs at a time, with a thread each (default: cores)"
    )
    parser.add_argument("--rounds", type=cli.positive, default=5, help="rounds of step (default: 5)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    chosen = args.what or ["step", "draws", "toy"]
    if "step" in chosen:
        step(args.rounds, args.go_on)
    if "draws" in chosen:
        draws(args.go_on)
    for task in TASKS:
        if task in chosen:
            learn(task, args.variants, args.seeds, args.jobs, args.go_on)
    markup.write(blocks())
    pictures()


if __name__ == "__main__":
    main()
