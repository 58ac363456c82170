#!/usr/bin/env python3
"""Are environments of one's own learnt, by --env-module and --env-id alone? Snake, with and without a penalty for each
step, and Blocks, beside a player who picks any legal action.

    ./own_environment.py                    # three seeds of each, two at a time; more than an hour
    ./own_environment.py random snake --seeds 1
    ./own_environment.py --go-on            # after an interruption
    ./own_environment.py tables             # the table and the picture of docs/your-environment.md
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import gymnasium as gym
import matplotlib
import pandas as pd
from tqdm import tqdm

import lab
from examples import random_player

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DOCUMENT = "docs/your-environment.md"
RUNG = "distributed/01_ppo"
BIN = 10_000  # agent steps between two points of a curve
LAST = 50_000  # agent steps at the end that the tables judge by
RANDOM_EPISODES = 3000
GREEDY_EPISODES = 100
COLUMNS = ("seed", "step", "episodes", "mean_return", "mean_steps", "greedy_return")


class Game(NamedTuple):
    """What is learnt.

    Attributes:
        module, env_id: as on the command line.
        steps: agent steps of a run at most.
        settings: other hyperparameters than those of Pong.
        penalty: of each step, part of the reward; taken out again, so that returns compare.
        goal: mean return that counts as solved; None for none.
    """

    module: str
    env_id: str
    steps: int
    settings: tuple[str, ...] = ()
    penalty: float = 0.0
    goal: float | None = None


GAMES = {
    "snake": Game("examples.snake", "Snake-v0", 300_000, goal=7.0),  # a snake of 3 + 7 cells
    "penalty": Game("examples.snake", "SnakeStepPenalty-v0", 300_000, penalty=0.1),
    "blocks": Game(
        "examples.blocks",
        "Blocks-v0",
        900_000,
        ("gamma=0.99", "entropy=0.02", "kl_target=none", "stop_reward=20", "final_temperature=1"),
    ),
}


def measure(turn: tuple[str, int]) -> list[dict[str, Any]]:
    """The episodes of a run that end in each BIN of its steps, and at its end, greedy ones of its last checkpoint."""
    name, seed = turn
    game = GAMES[name]
    settings = itertools.chain(*(("--set", assignment) for assignment in game.settings))
    options = ["--env-module", game.module, "--env-id", game.env_id, "--seed", str(seed), *settings]
    environment = {"PYTHONPATH": str(lab.PROJECT), "OMP_NUM_THREADS": "1"}
    with lab.finished_run(RUNG, *options, "--stop-after", str(game.steps), **environment) as run:
        frame = pd.read_csv(run / "episodes.csv")
        evaluate = [str(lab.PROJECT / "tools/evaluate.py"), str(run), "--checkpoint", "last", "--quiet"]
        options = ["--episodes", str(GREEDY_EPISODES), "--seed", str(seed)]
        subprocess.run([sys.executable, *evaluate, *options], check=True, env=os.environ | environment)
        greedy = json.loads((run / "evaluation.json").read_text())
    greedy_return = greedy["mean"] + game.penalty * sum(greedy["lengths"]) / GREEDY_EPISODES
    frame["return"] += game.penalty * frame["length"]
    by_bin = frame.groupby(((frame["step"] - 1) // BIN + 1) * BIN)
    rows = [
        {
            "step": int(step),
            "episodes": len(own),
            "mean_return": round(own["return"].mean(), 4),
            "mean_steps": round(own["length"].mean(), 2),
            "greedy_return": "",
        }
        for step, own in by_bin
    ]
    rows[-1]["greedy_return"] = round(greedy_return, 4)
    return rows


def random_play() -> None:
    """What a random legal player gets, as own-environment-random.csv."""
    results = lab.Results("own-environment-random", ("game", "mean_return", "mean_steps"))
    for name, game in GAMES.items():
        played = random_player.play(gym.make(f"{game.module}:{game.env_id}"), RANDOM_EPISODES)
        mean = (played["return"] + game.penalty * played["steps"]).mean()
        results.add(game=name, mean_return=f"{mean:.4f}", mean_steps=f"{played['steps'].mean():.2f}")


def last_means(frame: pd.DataFrame, name: str, value: str) -> pd.Series:
    """By seed, the mean of a value over the episodes that end in the LAST steps."""
    own = frame[frame.game == name]
    own = own[own.step > own.groupby("seed").step.transform("max") - LAST]
    return (own[value] * own.episodes).groupby(own.seed).sum() / own.episodes.groupby(own.seed).sum()


def goal_of(name: str, random: pd.DataFrame) -> float | None:
    """What counts as solved; for Blocks, ten times what a random legal player gets."""
    return 10 * random.mean_return[name] if name == "blocks" else GAMES[name].goal


def table(frame: pd.DataFrame, random: pd.DataFrame) -> str:
    """A row a game."""
    rows = []
    for name in dict.fromkeys(frame.game):
        means, goal = last_means(frame, name, "mean_return"), goal_of(name, random)
        curve = frame[frame.game == name]
        reached = curve[curve.mean_return >= (goal or float("inf"))].groupby("seed").step.min()
        rows.append(
            (
                f"`{GAMES[name].env_id}`",
                len(means),
                f"{random.mean_return[name]:.2f}",
                lab.spread(means),
                lab.spread(curve.groupby("seed").greedy_return.last()),
                "-" if goal is None else f"{goal:.1f}",
                "-" if goal is None else _reached(reached, len(means)),
                f"{random.mean_steps[name]:.0f}",
                lab.spread(last_means(frame, name, "mean_steps"), 0),
            )
        )
    returns = (f"return in the last {LAST:,} steps", f"greedy, {GREEDY_EPISODES} episodes")
    header = ("environment", "seeds", "random legal player", *returns, "goal")
    return lab.table((*header, "reached, after thousand steps", "its steps an episode", "steps an episode"), rows)


def _reached(steps: pd.Series, seeds: int) -> str:
    return f"{len(steps)} of {seeds}" + (f", {lab.spread(steps / 1000, 0)}" if len(steps) else "")


def draw(frame: pd.DataFrame, random: pd.DataFrame) -> None:
    """The curves with the range of their seeds as docs/pictures/own-environment.png."""
    figure, (cells, lived, lines) = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    panels = [
        (cells, "mean_return", 3, {"snake": "no penalty", "penalty": "-0.1 a step"}),
        (lived, "mean_steps", 0, {"snake": "no penalty", "penalty": "-0.1 a step"}),
        (lines, "mean_return", 0, {"blocks": "Blocks-v0"}),
    ]
    for axes, value, offset, labels in panels:
        for name, label in labels.items():
            own = frame[(frame.game == name) & (frame.step <= GAMES[name].steps)]  # whole bins: the last one is cut off
            if own.empty:
                continue
            by_step = own.groupby("step")[value]
            [line] = axes.plot(offset + by_step.mean(), label=label)
            low, high = offset + by_step.min(), offset + by_step.max()
            axes.fill_between(low.index, low, high, alpha=0.2, color=line.get_color())
        axes.set(xlabel="agent steps")
        axes.grid(alpha=0.3)
    for axes, name, offset in ((cells, "snake", 3), (lines, "blocks", 0)):
        goal = goal_of(name, random)
        assert goal is not None
        axes.axhline(offset + goal, color="grey", linestyle="--", linewidth=0.8)
    cells.set(title="Snake: cells at death, at least", ylabel="mean and range of the seeds")
    lived.set(title="Snake: steps an episode", yscale="log")
    lines.set(title="Blocks: lines cleared")
    cells.legend()
    figure.savefig(lab.PICTURES / "own-environment.png", dpi=110)
    plt.close(figure)


def measured() -> tuple[pd.DataFrame, pd.DataFrame]:
    """All curves, and by game what a random legal player gets."""
    frame = pd.concat([lab.read(f"own-environment-{name}")[0].assign(game=name) for name in GAMES])
    return frame, lab.read("own-environment-random")[0].set_index("game")


def tables() -> None:
    """Put the table and the picture into the document."""
    frame, random = measured()
    where = lab.places(lab.read(f"own-environment-{name}")[1] for name in (*GAMES, "random"))
    paragraphs = [table(frame, random), "Minimum / median / maximum of the seeds.", *where]
    lab.put(DOCUMENT, "own-environment", "\n\n".join(paragraphs))
    draw(frame, random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    lab.experiments(parser, "random", *GAMES, "tables")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, a thread each (default: 2)")
    parser.add_argument("--go-on", action="store_true", help="keep what an interrupted measurement has left")
    args = parser.parse_args()
    what = args.what or ["random", *GAMES, "tables"]
    games = [name for name in GAMES if name in what]
    if "random" in what:
        random_play()
    results = {
        name: lab.Results(f"own-environment-{name}", COLUMNS, lab.stamp(threads=1, **GAMES[name]._asdict()), args.go_on)
        for name in games
    }
    turns = itertools.product(games, range(1, args.seeds + 1))
    missing = [(name, seed) for name, seed in turns if not results[name].has(seed=seed)]
    with ThreadPoolExecutor(args.jobs) as pool:
        for (name, seed), bins in zip(missing, tqdm(pool.map(measure, missing), total=len(missing)), strict=True):
            for row in bins:
                results[name].add(seed=seed, **row)
    if "tables" in what:
        tables()


if __name__ == "__main__":
    main()
