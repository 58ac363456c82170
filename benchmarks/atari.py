#!/usr/bin/env python3
"""Train textbook PPO and fast PPO on six Atari games with the same hyperparameters, 10 million frames each.

    ./atari.py                                # two runs at a time; about a day
    ./atari.py --game Breakout --seeds 4 5    # other seeds
    ./atari.py tables                         # only the table and the picture of notes/atari.md

The same command goes on after an interruption, also in the middle of a run. The runs stay in runs/atari, where
tools/publish.py can make models of them.
"""

import itertools
import math
import os
import subprocess
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import curve
import lab
import launch
import markup
import minutes
from lib import cli
from lib.run.curve import rolling_mean
from lib.run.episodes import Episodes
from lib.run.folder import read_params

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "benchmarks/notes/atari.md"
PICTURE = lab.PROJECT / "benchmarks" / "notes" / "atari.png"
FOLDER = "atari"  # folder of the runs, and of their results
SCRIPTS = ("distributed/01_ppo", "distributed/02_ppo_fast")
STEPS = 2_500_000  # agent steps, 10 million frames
POINTS = 100  # points per curve
COLUMNS = ("step", "mean_100")


class Game(NamedTuple):
    """Published scores of a game.

    Attributes:
        seeds: number of seeds that are trained here.
        random: mean return of random play, Wang et al. (2016), table 2.
        human: mean return of a human, from the same table.
        dqn: mean return of Dopamine's DQN in the training episodes of its tenth iteration of a million frames; mean of
            five seeds, with sticky actions. baselines/atari/data of github.com/google/dopamine.
        rainbow: the same of Dopamine's Rainbow.
    """

    seeds: int
    random: float
    human: float
    dqn: float
    rainbow: float


GAMES = {
    "Breakout": Game(3, 1.7, 30.5, 21.5, 41.9),
    "Freeway": Game(1, 0.0, 29.6, 8.3, 32.2),
    "Boxing": Game(1, 0.1, 12.1, 37.3, 68.4),
    "Seaquest": Game(1, 68.4, 42054.7, 299.6, 1641.1),
    "BeamRider": Game(1, 363.9, 16926.5, 869.3, 5982.6),
    "SpaceInvaders": Game(1, 148.0, 1668.7, 663.3, 743.7),
}


def train(steps: int, device: str, turn: tuple[str, str, int]) -> Path:
    """Train to the end, or go on with a run that was interrupted. Return the run folder.

    Args:
        steps: agent steps of the run.
        device: device of the network.
        turn: script, game and seed.
    """
    script, game, seed = turn
    folder = lab.PROJECT / "runs" / name_of(script, game, seed, steps)
    new = ["--env-id", f"{game}NoFrameskip-v4", "--seed", str(seed), "--set", f"max_steps={steps}"]
    runs = minutes.runs_in(folder)
    if not runs or not minutes.finished(runs[-1]):
        options = ["--resume", str(runs[-1])] if runs else [*new, "--runs-dir", str(folder)]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        words = launch.command(script, *options, "--device", device, "--quiet")
        subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
        runs = minutes.runs_in(folder)
    return runs[-1]


def keep(run: Path, steps: int, script: str, game: str, seed: int) -> None:
    """Write a run's curve: agent step, and mean return of the last 100 training episodes. Its end is in the stamp."""
    result = launch.result_of(run)
    stamped = {
        **curve.origin(read_params(run)),
        "settings": {"script": script, "game": game, "seed": seed},
        "end": {name: result[name] for name in ("steps", "seconds", "mean_100")},
    }
    episodes = pd.read_csv(run / "episodes.csv")
    if len(episodes) < Episodes.MINIMUM:
        raise SystemExit(f"{run} has {len(episodes)} episodes, too few for a mean; give more --steps")
    episodes = episodes.assign(mean_100=rolling_mean(episodes["return"])).dropna(subset="mean_100", ignore_index=True)
    results = lab.Results(name_of(script, game, seed, steps), COLUMNS, stamped, replace=True)
    for index in np.unique(np.linspace(0, len(episodes) - 1, POINTS).astype(int)):
        results.add(step=int(episodes.step[index]), mean_100=f"{episodes.mean_100[index]:.2f}")


def name_of(script: str, game: str, seed: int, steps: int) -> str:
    """Return the name of a run's results file, and of the folder of the run."""
    length = "" if steps == STEPS else f" {steps} steps"
    return f"{FOLDER}/{lab.slug(f'{script} {game} seed{seed}{length}')}"


class Run(NamedTuple):
    """A finished run: its settings, its mean return at the end, and its curve."""

    script: str
    game: str
    seed: int
    mean_100: float
    curve: pd.DataFrame
    stamped: lab.Stamp


def read() -> list[Run]:
    """Return the finished runs of STEPS steps."""
    runs = []
    for path in sorted((lab.RESULTS / FOLDER).glob("*-seed*[0-9].csv")):
        points, stamped = lab.read(f"{FOLDER}/{path.stem}")
        runs.append(Run(**stamped["settings"], mean_100=stamped["end"]["mean_100"], curve=points, stamped=stamped))
    return runs


def table(runs: Sequence[Run]) -> str:
    """Return a row per game: the mean of the last 100 training episodes here, and published scores."""
    rows = []
    for name, game in GAMES.items():
        ends = [pd.Series([run.mean_100 for run in runs if (run.game, run.script) == (name, each)]) for each in SCRIPTS]
        if any(map(len, ends)):
            published = [f"{score:,.1f}" for score in (game.random, game.dqn, game.rainbow, game.human)]
            cells = [markup.spread(means, 1) if len(means) else "" for means in ends]
            seeds = dict.fromkeys(len(means) for means in ends if len(means))
            rows.append((name, " / ".join(map(str, seeds)), *cells, *published))
    names = [f"`{script.rpartition('/')[2]}`" for script in SCRIPTS]
    return markup.table(("game", "seeds", *names, "random", "DQN", "Rainbow", "human"), rows)


def draw(runs: Sequence[Run]) -> None:
    """Draw the curves, one pair of axes per game that has some."""
    measured = {run.game for run in runs}
    games = {name: game for name, game in GAMES.items() if name in measured}
    columns = min(3, len(games))
    rows = math.ceil(len(games) / columns)
    size = (0.3 + 3.3 * columns, 2.7 * rows)
    figure, grid = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    used, unused = np.split(grid.flat, [len(games)])
    for axes in unused:
        axes.remove()
    for axes, (name, game) in zip(used, games.items(), strict=True):
        for script, colour in zip(SCRIPTS, ("tab:blue", "tab:orange"), strict=True):
            label: str | None = script.rpartition("/")[2]
            for run in runs:
                if (run.game, run.script) == (name, script):
                    axes.plot(run.curve.step / 1e6, run.curve.mean_100, color=colour, label=label, linewidth=1.2)
                    label = None  # one per colour
        axes.axhline(game.dqn, color="grey", linestyle=":", label="DQN, published")
        axes.axhline(game.rainbow, color="grey", linestyle="--", label="Rainbow, published")
        axes.set(title=name)
        axes.grid(alpha=0.3)
    grid[0, 0].legend(fontsize=7)
    figure.supxlabel("million agent steps")
    figure.supylabel("mean return of 100 games")
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the page, if there are results."""
    if runs := read():
        yield markup.Block(PAGE, "atari", f"{table(runs)}\n\n{markup.measured_on(run.stamped for run in runs)}")


def measure(
    games: Sequence[str], scripts: Sequence[str], seeds: Sequence[int], steps: int, device: str, jobs: int
) -> None:
    """Train the runs that have no results yet: every game and script with the first seed, then with the next one."""
    numbers = seeds or range(1, max(GAMES[game].seeds for game in games) + 1)
    turns = [
        (script, game, seed)
        for seed, game, script in itertools.product(numbers, games, scripts)
        if (seeds or seed <= GAMES[game].seeds) and not lab.path_of(name_of(script, game, seed, steps)).exists()
    ]
    with launch.interrupts_left_to_children():
        for turn, run in tqdm(launch.in_parallel(jobs, partial(train, steps, device), turns), total=len(turns)):
            keep(run, steps, *turn)


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "runs", "tables")
    parser.add_argument("--game", action="append", choices=GAMES, help="only this game; repeatable")
    parser.add_argument("--script", action="append", choices=SCRIPTS, help="only this script; repeatable")
    parser.add_argument(
        "--seeds", type=cli.positive, nargs="+", default=[], help="seeds (default: 1; 1 to 3 for Breakout)"
    )
    parser.add_argument("--steps", type=cli.positive, default=STEPS, help=f"agent steps of a run (default: {STEPS:,})")
    parser.add_argument("--device", type=lab.device, default="cpu", help="device of the networks (default: cpu)")
    parser.add_argument("--jobs", type=cli.positive, default=2, help="runs at a time, with a thread each (default: 2)")
    args = parser.parse_args()
    if "runs" in (args.what or ["runs"]):
        measure(args.game or list(GAMES), args.script or SCRIPTS, args.seeds, args.steps, args.device, args.jobs)
    if runs := read():
        draw(runs)
    markup.write(blocks())


if __name__ == "__main__":
    main()
