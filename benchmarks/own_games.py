#!/usr/bin/env python3
"""Train textbook PPO and fast PPO with default settings on seven games other than Atari's, three seeds each.

    ./own_games.py                                   # two runs at a time; two hours
    ./own_games.py --script distributed/02_ppo_fast  # only this script; a quarter of an hour
    ./own_games.py --game CartPole-v1 --seeds 4 5    # only some runs; the page and its results do not change
    ./own_games.py --go-on                           # after an interruption
    ./own_games.py tables                            # only the table of docs/your-environment.md

A game is solved when, after an iteration, the mean return of 100 training episodes reaches its goal: the reward
threshold with which it is registered, or GOALS if it has none. LunarLander and MiniGrid need
`pip install -e '.[games]'`.
"""

import argparse
import itertools
import math
from collections.abc import Iterator
from typing import Any

import lab
import launch
import markup
from lib import cli
from lib.envs.single_env import reward_threshold
from lib.run.episodes import WINDOW
from lib.run.folder import read_params

import pandas as pd
from tqdm import tqdm

PAGE = "docs/your-environment.md"
FOLDER = "own_games"  # of the results, a file per script
SELECTED = "own_games_selected"  # the same, of runs with --game or --seeds
SCRIPTS = ("distributed/01_ppo", "distributed/02_ppo_fast")
STEPS = {  # maximum agent steps of a run; those that `01_ppo` learns slowly come last
    "CartPole-v1": 300_000,
    "Acrobot-v1": 500_000,
    "LunarLander-v3": 1_500_000,
    "minigrid:MiniGrid-Empty-8x8-v0": 300_000,
    "examples.snake:Snake-v0": 500_000,
    "examples.blocks:Blocks-v0": 1_000_000,
    "examples.connect_four:ConnectFour-v0": 1_000_000,
}
GOALS = {"minigrid:MiniGrid-Empty-8x8-v0": 0.9}  # mean returns that count as solved; 0.96 is the best possible
SEEDS = [201, 202, 203]  # 101 to 104 served to choose learning_rate_max
EPISODES = 100  # episodes of the greedy evaluation
COLUMNS = ("script", "game", "seed", "solved_step", "solved_seconds", "steps", "seconds", "mean_100", "greedy")


def goal_of(game: str) -> float:
    """Return the mean return that counts as solved."""
    goal = GOALS.get(game) or reward_threshold(game)
    assert goal is not None
    return goal


def measure(turn: tuple[str, str, int]) -> dict[str, Any]:
    """Return the row of a run.

    Args:
        turn: script, game and seed.
    """
    script, game, seed = turn
    environment = {"PYTHONPATH": str(lab.PROJECT), "OMP_NUM_THREADS": "1"}
    options = ["--env-id", game, "--seed", str(seed), "--stop-after", str(STEPS[game])]
    with launch.finished_run(script, *options, **environment) as run:
        result = launch.result_of(run)
        episodes = pd.read_csv(run / "episodes.csv")
        params = read_params(run)["hyperparameters"]
        greedy = launch.evaluate_greedily(run, EPISODES, seed, "--env-id", game, **environment)
    step, seconds = goal_reached(game, result, episodes, params["envs"] * params["rollout"])
    return {
        "solved_step": step,
        "solved_seconds": round(seconds, 1),
        "steps": result["steps"],
        "seconds": round(result["seconds"], 1),
        "mean_100": launch.mean_return(result, 4),
        "greedy": round(greedy["mean"], 4),
    }


def goal_reached(game: str, result: dict[str, Any], episodes: pd.DataFrame, iteration: int) -> tuple[float, float]:
    """Return the agent steps and seconds at which a run reached its game's goal; infinity if it did not.

    Args:
        game: gymnasium id, with its module.
        result: result of the run, which lacks goals that the game does not register.
        episodes: step, seconds and return of the run's episodes.
        iteration: agent steps of an iteration.
    """
    if game not in GOALS:
        reached = result["reached"].get(str(goal_of(game)), {"step": math.inf, "seconds": math.inf})
        return reached["step"], reached["seconds"]
    means = episodes.assign(mean=episodes["return"].rolling(WINDOW).mean())
    last = means.groupby((means["step"] - 1) // iteration).tail(1)  # of each iteration
    at_goal = last[last["mean"] >= GOALS[game]]
    if at_goal.empty:
        return math.inf, math.inf
    return math.ceil(at_goal["step"].iloc[0] / iteration) * iteration, float(at_goal["seconds"].iloc[0])


def table(frame: pd.DataFrame) -> str:
    """Return a row per game and script."""
    rows = []
    for game, script in itertools.product(STEPS, SCRIPTS):
        own = frame[(frame.game == game) & (frame.script == script)]
        if own.empty:
            continue
        solved = own[own.solved_step < math.inf]
        rows.append(
            (
                f"`{game.rpartition(':')[2]}`",
                f"{goal_of(game):g}",
                f"`{script.rpartition('/')[2]}`",
                f"{len(solved)} of {len(own)}",
                markup.spread(own.solved_step, 0) if len(solved) else f"not in {STEPS[game]:,}",
                markup.spread(own.solved_seconds, 0) if len(solved) else "",
                markup.spread(own.greedy, 2),
            )
        )
    header = (
        "game",
        "goal",
        "script",
        "seeds solved",
        "steps to the goal",
        "seconds to the goal",
        f"greedy return, {EPISODES} episodes",
    )
    return markup.table(header, rows)


def results_of(script: str, folder: str = FOLDER) -> str:
    """Return the name of a script's results file."""
    return f"{folder}/{script.rpartition('/')[2]}"


def blocks() -> Iterator[markup.Block]:
    """Yield the table of the page, if there are results."""
    names = [name for name in map(results_of, SCRIPTS) if lab.path_of(name).exists()]
    if names:
        frames, stamps = zip(*map(lab.read, names), strict=True)
        yield markup.Block(PAGE, "own-games", f"{table(pd.concat(frames))}\n\n{markup.measured_on(stamps)}")


def game_id(text: str) -> str:
    """argparse type: a game of STEPS, with its module or without."""
    for each in STEPS:
        if text in (each, each.rpartition(":")[2]):
            return each
    raise argparse.ArgumentTypeError(f"unknown game {text!r}; choose one of {', '.join(STEPS)}")


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "runs", "tables")
    parser.add_argument("--game", type=game_id, action="append", metavar="ID", help="only this game; repeatable")
    parser.add_argument("--script", action="append", choices=SCRIPTS, help="only this script; repeatable")
    parser.add_argument("--seeds", type=cli.positive, nargs="+", default=SEEDS, help="seeds (default: 201 202 203)")
    parser.add_argument("--jobs", type=cli.positive, default=2, help="runs at a time, with a thread each (default: 2)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    is_selection = bool(args.game or args.seeds != SEEDS)
    if "runs" in (args.what or ["runs"]):
        scripts = args.script or SCRIPTS
        stamped = lab.stamp(threads=1, jobs=args.jobs)
        folder = SELECTED if is_selection else FOLDER
        results = {
            script: lab.Results(results_of(script, folder), COLUMNS, stamped, args.go_on, replace=is_selection)
            for script in scripts
        }
        turns = itertools.product(args.game or STEPS, scripts, args.seeds)
        missing = [
            (script, game, seed) for game, script, seed in turns if not results[script].has(game=game, seed=seed)
        ]
        done = launch.in_parallel(args.jobs, measure, missing)
        for (script, game, seed), row in tqdm(done, total=len(missing)):
            results[script].add(script=script, game=game, seed=seed, **row)
        if is_selection:
            print(table(pd.concat([lab.read(results_of(script, folder))[0] for script in scripts])))
            return
    markup.write(blocks())


if __name__ == "__main__":
    main()
