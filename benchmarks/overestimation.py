#!/usr/bin/env python3
"""Compare the values that DQN and double DQN predict with the returns that their policies earn, on Pong.

    ./overestimation.py                     # one seed of each, two runs at a time: an hour and a half on two slow cores
    ./overestimation.py --seeds 3 --go-on   # keep the runs that have ended, and measure the others
    ./overestimation.py tables              # only the table and the picture of docs/chapter08.md

After training, the greedy policy plays games. A state's predicted value is its largest action value. What the policy
earns from it is the discounted sum of the clipped rewards that follow; see van Hasselt et al. (2015), figure 3.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lab
import launch
import markup
from lib import cli
from lib.analysis.run_data import Run
from lib.analysis.trained_agent import TrainedAgent
from lib.run.folder import read_params
from lib.system.machine import cores

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "docs/chapter08.md"
NAME = "chapter08/overestimation"
SCRIPT = "chapter08/03_dqn_double"
VARIANTS = {"DQN": "--no-double", "double DQN": "--double"}
COLUMNS = ("variant", "seed", "step", "held_out", "mean_return", "predicted", "earned")
BIN = 10_000  # agent steps between two rows
GAMES = 10


def measure(turn: tuple[int, str], steps: int) -> list[dict[str, Any]]:
    """Train one variant and return a row for each BIN of its steps. The last row has what the policy earns.

    Args:
        turn: seed and variant.
        steps: agent steps of the run.
    """
    seed, variant = turn
    options = [
        *launch.tuned("best", SCRIPT),
        "--seed",
        str(seed),
        "--stop-after",
        str(steps),
        "--set",
        "stop_reward=none",
    ]
    with launch.finished_run(SCRIPT, VARIANTS[variant], *options, OMP_NUM_THREADS="1") as run:
        episodes = pd.read_csv(run / "episodes.csv")
        at, values = Run.read(run).scalars["train/values"]
        predicted, earned = play(run, seed)
    held_out = pd.Series(values).groupby((np.array(at) - 1) // BIN).mean()
    means = episodes.groupby((episodes["step"] - 1) // BIN)["return"].mean()
    rows: list[dict[str, Any]] = [
        {"step": (number + 1) * BIN, "held_out": f"{held_out[number]:.4f}", "mean_return": f"{means[number]:.3f}"}
        for number in held_out.index.intersection(means.index)
    ]
    rows[-1] |= {"predicted": f"{predicted:.4f}", "earned": f"{earned:.4f}"}
    return rows


def play(run: Path, seed: int) -> tuple[float, float]:
    """Return the mean predicted value of the states of GAMES greedy games, and the mean discounted return from them."""
    agent = TrainedAgent(run, "last")
    gamma = read_params(run)["hyperparameters"]["gamma"]
    env = agent.make_env()
    predicted: list[float] = []
    earned: list[float] = []
    for game in range(GAMES):
        state, _ = env.reset(seed=1000 * seed + game)
        rewards: list[float] = []
        over = False
        while not over:
            scores = agent.policy.scores(np.asarray(state)[None])[0]
            predicted.append(float(scores.max()))
            state, reward, terminated, truncated, _ = env.step(int(scores.argmax()))
            rewards.append(float(reward))
            over = terminated or truncated
        earned += discounted(rewards, gamma)
    return float(np.mean(predicted)), float(np.mean(earned))


def discounted(rewards: list[float], gamma: float) -> list[float]:
    """Return the discounted sum of the rewards from each step on."""
    sums = list(itertools.accumulate(reversed(rewards), lambda after, reward: reward + gamma * after))
    return sums[::-1]


def table(frame: pd.DataFrame) -> str:
    """Return a row per variant, from the ends of its runs."""
    last = frame.dropna(subset=["predicted"])
    rows = []
    for variant in VARIANTS:
        own = last[last.variant == variant]
        if own.empty:
            continue
        cells = (own.predicted, own.earned, own.predicted - own.earned, own.mean_return)
        rows.append((variant, len(own), *(markup.spread(cell.reset_index(drop=True), 2) for cell in cells)))
    return markup.table(
        ("", "seeds", "predicted value", "discounted return", "overestimated by", "mean return at the end"), rows
    )


def draw(frame: pd.DataFrame) -> None:
    """Draw the values of held-out states and the mean return as docs/pictures/chapter08-overestimation.png."""
    figure, both = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    colours: dict[str, str] = {}
    for variant, seed in itertools.product(VARIANTS, sorted(frame.seed.unique())):
        own = frame[(frame.variant == variant) & (frame.seed == seed)]
        for axes, column in zip(both, ("held_out", "mean_return"), strict=True):
            label = None if variant in colours else variant
            [line] = axes.plot(own.step / 1000, own[column], color=colours.get(variant), label=label)
        colours[variant] = line.get_color()
    for axes, name in zip(both, ("mean best value of held-out states", "mean return"), strict=True):
        axes.set(xlabel="thousand agent steps", ylabel=name)
        axes.grid(alpha=0.3)
    both[0].legend(*both[1].get_legend_handles_labels())
    figure.savefig(markup.PICTURES / "chapter08-overestimation.png", dpi=110)
    plt.close(figure)


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the page."""
    frame, stamped = lab.read(NAME)
    yield markup.Block(PAGE, "overestimation", f"{table(frame)}\n\n{markup.measured_on([stamped])}")


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "tables")
    parser.add_argument("--seeds", type=cli.positive, default=1, help="number of seeds (default: 1)")
    parser.add_argument("--steps", type=cli.positive, default=200_000, help="agent steps of a run (default: 200,000)")
    parser.add_argument(
        "--jobs", type=cli.positive, default=cores(), help="runs at a time, with a thread each (default: cores)"
    )
    lab.add_go_on(parser)
    args = parser.parse_args()
    if not args.what:
        results = lab.Results(NAME, COLUMNS, lab.stamp(threads=1, steps=args.steps), args.go_on)
        turns = itertools.product(range(1, args.seeds + 1), VARIANTS)
        missing = [turn for turn in turns if not results.has(seed=turn[0], variant=turn[1])]
        done = launch.in_parallel(args.jobs, lambda turn: measure(turn, args.steps), missing)
        for (seed, variant), rows in tqdm(done, total=len(missing)):
            for row in rows:
                results.add(seed=seed, variant=variant, **row)
    markup.write(blocks())
    draw(lab.read(NAME)[0])


if __name__ == "__main__":
    main()
