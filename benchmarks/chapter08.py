#!/usr/bin/env python3
"""Chapter 8's extensions beside each other: what they learn from equal steps, and what they cost.

    ./chapter08.py                        # step, draws, toy: about half an hour
    ./chapter08.py toy --seeds 5 --go-on  # after an interruption: only what is missing
    ./chapter08.py pong --seeds 3 --go-on --variants basic n_steps "double, n_steps" rainbow
                                          # 320,000 steps of Pong each: an hour a seed. Each run has a file of its own,
                                          # and is measured when and where there is time
    ./chapter08.py tables                 # only the tables and pictures of docs/chapter08.md anew

Learning is compared on the fast path, 08_dqn_rainbow.py, on Pong with --fast and several games, from which parts are
left out: with none of them it is basic DQN, with one it is that extension, as Rainbow has it (draws by the square
root of priority, less noise at first and epsilon beside it). What a step costs is measured of the scripts themselves.
"""

import argparse
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from ptan.experience import ExperienceFirstLast, PrioReplayBufferNaive, PrioritizedReplayBuffer
from tqdm import tqdm

import lab

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib.experience.priority_ring import PrioritisedRing
from lib.experience.ring import Ring
from lib.system.machine import cores

PAGE = "docs/chapter08.md"
PARTS = ("double", "dueling", "noisy", "prioritised", "n_step", "distributional")
LEARNT = {
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
    f"chapter08/{name}"
    for name in (
        *("01_dqn_basic", "02_dqn_n_steps", "03_dqn_double", "04_dqn_noisy_net", "05_dqn_prio_replay"),
        *("06_dqn_dueling", "07_dqn_distrib", "08_dqn_rainbow"),
    )
]
BARE = " ".join([SCRIPTS[-1], *(f"--without {part}" for part in PARTS)])  # bfloat16, as Rainbow, and nothing else of it
TURNS = [*SCRIPTS, BARE]
TOY = {
    "replay_initial": 200,
    "replay_size": 5000,
    "epsilon_frames": 1500,
    "epsilon_final": 0.02,
    "target_net_sync": 100,
    "learning_rate": 1e-3,
    "checkpoint_replay": "false",
}
PONG = {
    "replay_initial": 5000,
    "batch_size": 4,
    "epsilon_frames": 25_000,
    "learning_rate": 5e-4,
    "checkpoint_replay": "false",
}


class Place(NamedTuple):
    """Where it is learnt."""

    options: list[str]
    fields: dict[str, Any]  # hyperparameters
    steps: int
    width: int  # steps of a bin
    goal: float  # mean return of 100 episodes


PLACES = {
    "toy": Place(["--env-id", "fakes:Delayed-v0"], TOY, 6000, 250, 0.9),
    "pong": Place(["--fast", "--envs", "8", "--v-max", "2"], PONG, 320_000, 10_000, 0.0),
}
COLUMNS = ("variant", "seed", "step", "mean_return", "reached")
TIMED = 500  # agent steps of a script


def learn(place: str, variants: list[str], seeds: int, jobs: int, go_on: bool) -> None:
    """Mean return by steps of every variant, seed by seed, so many runs at a time, each into a file of its own.

    Learning by steps is the same on any machine, but for rounding, coarser where there is bfloat16: runs that another
    one has measured are left alone.
    """
    stamp = lab.stamp(threads=1, place=list(PLACES[place]))
    turns = itertools.product(range(1, seeds + 1), variants)
    missing = [turn for turn in turns if not (go_on and lab.path_of(file_of(place, *turn)).exists())]
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(curve, place, *turn): turn for turn in missing}
        for run in tqdm(as_completed(running), total=len(running)):
            (seed, variant), (means, reached) = running[run], run.result()
            results = lab.Results(file_of(place, seed, variant), COLUMNS, stamp)
            for at, value in means.items():
                results.add(variant=variant, seed=seed, step=at, mean_return=f"{value:.4f}", reached=reached)


def file_of(place: str, seed: int, variant: str) -> str:
    """The name of a run's file of results."""
    return f"chapter08-{place}-{lab.slug(variant)}-seed{seed}"


def kept(name: str) -> tuple[pd.DataFrame, list[str]]:
    """All results of a kind, and where they were measured; what is learnt has a file a run."""
    names = sorted(path.stem for path in lab.RESULTS.glob(f"chapter08-{name}-*-seed*.csv")) or [f"chapter08-{name}"]
    frames, stamps = zip(*map(lab.read, names), strict=True)
    if any(stamp["settings"] != stamps[0]["settings"] for stamp in stamps):
        raise SystemExit(f"{', '.join(names)} were measured with different settings; remove those of the older ones")
    return pd.concat(frames, ignore_index=True), lab.places(stamps)


def curve(place: str, seed: int, variant: str) -> tuple[dict[int, float], float]:
    """A run: mean returns of the episodes that ended in each bin, by the bin's last step; and when it reached the goal.

    Returns:
        The second is no number where it never did.
    """
    options, settings, steps, width, goal = PLACES[place]
    fields = lab.assignments(settings)
    without = itertools.chain(*(("--without", part) for part in PARTS if part not in LEARNT[variant]))
    limits = ("--stop-after", str(steps), "--set", "stop_reward=none", "--seed", str(seed))
    modules = os.pathsep.join(map(str, (lab.PROJECT, lab.PROJECT / "tests")))
    environment = {"PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}
    with lab.finished_run("chapter08/08_dqn_rainbow", *without, *options, *fields, *limits, **environment) as run:
        frame = pd.read_csv(run / "episodes.csv")
    means = frame.groupby((frame["step"] - 1) // width)["return"].mean()
    reached = frame["step"][frame["return"].rolling(100).mean() >= goal].min()
    return {(int(number) + 1) * width: value for number, value in means.items()}, reached


def step(rounds: int, go_on: bool) -> None:
    """Milliseconds of an agent step of every script, learning included, in turn."""
    results = lab.Results("chapter08-step", ("round", "script", "milliseconds"), lab.stamp(steps=TIMED), go_on)
    for number, script in tqdm(
        [turn for turn in lab.turns(rounds, TURNS) if not results.has(round=turn[0], script=turn[1])]
    ):
        limits = ("--set", f"replay_initial={lab.WARM_UP}", "--stop-after", str(lab.WARM_UP + TIMED))
        results.add(
            round=number, script=script, milliseconds=f"{1000 / lab.timed(script, *limits)['steps_per_second']:.3f}"
        )


def draws(go_on: bool) -> None:
    """Microseconds of drawing 32 transitions: by priority, ours and ptan's, and of one or several steps."""
    results = lab.Results("chapter08-draws", ("replay", "size", "microseconds"), lab.stamp(batch=32), go_on)
    for name, size, sample in replays():
        if not results.has(replay=name, size=size):
            results.add(replay=name, size=size, microseconds=f"{1e6 * seconds(sample):.1f}")


def replays() -> list[tuple[str, int, Callable[[], object]]]:
    """Full replays: whose, how many transitions, how 32 are drawn.

    Those with priorities have random ones and small states; the others have Atari's screens.
    """
    rng = np.random.default_rng(0)
    made: list[tuple[str, int, Callable[[], object]]] = []
    for size in (100_000, 1_000_000):
        ring = PrioritisedRing(size, 100, (4,), stack=1)
        step = uneventful(np.zeros((100, 4), np.uint8))
        for _ in range(ring.length):
            ring.add(*step)
            ring._highest = float(rng.random() + 0.5)
        made.append(("lib.experience.priority_ring.PrioritisedRing", size, lambda ring=ring: ring.sample(32)))
    transition = ExperienceFirstLast(np.zeros(4), 0, 0.0, np.zeros(4))
    tree, naive = PrioritizedReplayBuffer(None, 100_000, 0.6), PrioReplayBufferNaive([], 100_000)
    for _ in range(100_000):
        tree._add(transition)
    naive.buffer = [transition] * 100_000
    for buffer in (tree, naive):
        buffer.update_priorities(range(100_000), rng.random(100_000) + 0.5)
        made.append((f"ptan's {type(buffer).__name__}", 100_000, lambda buffer=buffer: buffer.sample(32, 0.4)))
    for n_step in (1, 3):
        screens = Ring(10_000, 1, (84, 84), n_step=n_step)
        for _ in range(screens.length):
            screens.add(*uneventful(rng.integers(0, 256, (1, 84, 84), np.uint8)))
        name = f"lib.replay.Ring of screens, n_step={n_step}"
        made.append((name, screens.length, lambda screens=screens: screens.sample(32)))
    return made


def uneventful(frames: np.ndarray) -> tuple[np.ndarray, ...]:
    """What Ring.add takes: a step that shows these, one an environment, and nothing else happens in."""
    n = len(frames)
    return frames, np.zeros(n, int), np.zeros(n), np.zeros(n, bool), np.zeros(n, bool)


def seconds(call: Callable[[], object], calls: int = 300) -> float:
    """The median of so many calls, after some that are not counted."""
    taken = []
    for number in range(calls + 30):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start if number >= 30 else np.nan)
    return float(np.nanmedian(taken))


def interval(values: np.ndarray, draws: int = 10_000) -> tuple[float, float]:
    """The 95 % interval of the mean over seeds, by the percentile bootstrap (Agarwal et al., 2021)."""
    drawn = np.random.default_rng(0).choice(values, (draws, len(values))).mean(1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)


def by_variant(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """The rows of each variant, in the order of LEARNT."""
    return [(variant, frame[frame["variant"] == variant]) for variant in LEARNT if variant in set(frame["variant"])]


def learn_table(place: str, frame: pd.DataFrame) -> str:
    """A row a variant: its mean return over the whole run and at the end, and when it reached the goal."""
    goal, width, steps = PLACES[place].goal, PLACES[place].width, frame["step"].max()
    rows = []
    for variant, found in by_variant(frame):
        area = found.groupby("seed")["mean_return"].mean()
        late = found[found["step"] > 0.75 * steps].groupby("seed")["mean_return"].mean()
        first = found[found["mean_return"] >= goal].groupby("seed")["step"].min()
        reached = found.groupby("seed")["reached"].first().dropna()
        between = f" ({' to '.join(f'{end:.2f}' for end in interval(area.to_numpy()))})" if len(area) > 1 else ""
        rows.append(
            (
                variant,
                len(area),
                f"{area.mean():.2f}{between}",
                f"{late.mean():.2f}",
                *(of_seeds(steps_to, len(area)) for steps_to in (first, reached)),
            )
        )
    header = (
        *("variant", "seeds", "mean return of the whole run (95 % interval)", "of the last quarter"),
        *(f"mean of {width:,} steps at {goal:g}, after agent steps", f"mean of 100 episodes at {goal:g}"),
    )
    return lab.table(header, rows)


def of_seeds(steps: pd.Series, seeds: int) -> str:
    """After how many steps, of those seeds that got there."""
    return f"{len(steps)} of {seeds}" + (f": {lab.spread(steps, 0)}" if len(steps) else "")


def draw(place: str, frame: pd.DataFrame) -> None:
    """Mean return against steps, a line a variant with its interval over seeds."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    for variant, found in by_variant(frame):
        table = found.pivot(index="step", columns="seed", values="mean_return").dropna()
        [line] = axes.plot(table.index, table.mean(axis=1), label=variant)
        lows, highs = zip(*(interval(row) for row in table.to_numpy()), strict=True)
        axes.fill_between(table.index, lows, highs, color=line.get_color(), alpha=0.15)
    axes.set(xlabel="agent steps", ylabel="mean return")
    axes.legend(fontsize="x-small")
    axes.grid(alpha=0.3)
    figure.savefig(lab.PICTURES / f"chapter08-{place}.png", dpi=110)


def step_table(frame: pd.DataFrame) -> str:
    """A row a script: its milliseconds, and its ratio to basic in the same round."""
    spent = lab.rounds(frame, "script", "milliseconds")
    to_basic, to_bare = lab.ratios(spent, SCRIPTS[0]), lab.ratios(spent, BARE)
    rows = []
    for script in spent:
        name = "08 without all parts" if script == BARE else f"`{script.removeprefix('chapter08/')}`"
        of_bare = lab.spread(to_bare[script], 2) if script in (SCRIPTS[-1], BARE) else ""
        rows.append((name, lab.spread(spent[script]), lab.spread(to_basic[script], 2), of_bare))
    header = (
        "script",
        "ms an agent step",
        "ratio to 01 in the same round",
        "ratio to 08 without all parts",
    )
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(spent)} rounds."


def draws_table(frame: pd.DataFrame) -> str:
    """A row a replay."""
    rows = [(row.replay, f"{row.size:,}", f"{row.microseconds:.0f}") for row in frame.itertuples(index=False)]
    return lab.table(("replay", "transitions", "microseconds for 32 of them"), rows)


TABLES = {place: partial(learn_table, place) for place in PLACES} | {"step": step_table, "draws": draws_table}


def stamped_table(name: str) -> str:
    frame, where = kept(name)
    return "\n\n".join([TABLES[name](frame), *where])


def tables() -> None:
    """The page's tables and pictures from the CSV files that there are."""
    for name in TABLES:
        if list(lab.RESULTS.glob(f"chapter08-{name}*.csv")):
            lab.put(PAGE, name, stamped_table(name))
            if name in PLACES:
                draw(name, kept(name)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.experiments(parser, "step", "draws", *PLACES, "tables")
    parser.add_argument("--seeds", type=int, default=5, help=f"of {', '.join(PLACES)}: 1 to this one (default: 5)")
    parser.add_argument(
        "--variants", nargs="+", choices=tuple(LEARNT), default=list(LEARNT), help="some (default: all)"
    )
    parser.add_argument("--jobs", type=int, default=cores(), help="runs at a time, a thread each (default: cores)")
    parser.add_argument("--rounds", type=int, default=5, help="of step (default: 5)")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted measurement has")
    args = parser.parse_args()
    what = args.what or ["step", "draws", "toy"]
    if "step" in what:
        step(args.rounds, args.go_on)
    if "draws" in what:
        draws(args.go_on)
    for place in PLACES:
        if place in what:
            learn(place, args.variants, args.seeds, args.jobs, args.go_on)
    tables()


if __name__ == "__main__":
    main()
