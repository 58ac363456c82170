#!/usr/bin/env python3
"""Train on environments given by --env-id: Snake, with and without a penalty, and Blocks.

PPO is trained on all three; DQN, 07_pong_in_minutes.py, on Snake and Blocks.

    ./own_environment.py                    # three seeds of each, two at a time; more than an hour
    ./own_environment.py random snake       # some of them
    ./own_environment.py --go-on            # after an interruption: keep the runs that have ended
    ./own_environment.py tables             # only the table and the picture

A player who picks any legal action at random is measured for comparison.
"""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import lab
import launch
import markup
from lib import cli
from lib.envs.single_env import make_env
from lib.run.episode_player import EpisodePlayer
from lib.run.policy import RandomPolicy

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

PPO = "distributed/02_ppo_fast --game pong"
DQN = "07_pong_in_minutes"
BIN = 10_000  # agent steps between two points of a curve
LAST = 50_000  # agent steps at the end of a run over which the table takes means
RANDOM_EPISODES = 3000
GREEDY_EPISODES = 100
COLUMNS = ("seed", "step", "episodes", "mean_return", "mean_steps", "greedy_return")


class Game(NamedTuple):
    """Environment and settings of a run.

    Attributes:
        module: module that registers the environment.
        env_id: id of the environment.
        steps: maximum number of agent steps of a run.
        settings: hyperparameters that differ from Pong's.
        penalty: penalty of each step. It is added back to the measured returns to make them comparable.
        goal: mean return that counts as solved, or None.
        rung: script that learns.
    """

    module: str
    env_id: str
    steps: int
    settings: tuple[str, ...] = ()
    penalty: float = 0.0
    goal: float | None = None
    rung: str = PPO


ENDLESS = ("stop_reward=none",)  # the run goes on after it has reached the game's reward threshold
GAMES = {
    "snake": Game("examples.snake", "Snake-v0", 300_000, ENDLESS, goal=7.0),  # a snake of 3 + 7 cells
    "penalty": Game("examples.snake", "SnakeStepPenalty-v0", 300_000, penalty=0.1),
    "blocks": Game(
        "examples.blocks",
        "Blocks-v0",
        900_000,
        ("gamma=0.99", "entropy=0.02", "kl_target=none", "stop_reward=20"),
    ),
    "snake-dqn": Game("examples.snake", "Snake-v0", 300_000, ENDLESS, goal=7.0, rung=DQN),
    "blocks-dqn": Game("examples.blocks", "Blocks-v0", 300_000, ENDLESS, rung=DQN),
}


def measure(turn: tuple[str, int]) -> list[dict[str, Any]]:
    """Return a row for each BIN of a run's steps. The last row also has the greedy return of the last checkpoint.

    Args:
        turn: name of the game, and the seed.
    """
    name, seed = turn
    game = GAMES[name]
    settings = itertools.chain(*(("--set", assignment) for assignment in game.settings))
    env_id = f"{game.module}:{game.env_id}"
    options = ["--env-id", env_id, "--seed", str(seed), *settings]
    environment = {"PYTHONPATH": str(lab.PROJECT), "OMP_NUM_THREADS": "1"}
    with launch.finished_run(game.rung, *options, "--stop-after", str(game.steps), **environment) as run:
        frame = pd.read_csv(run / "episodes.csv")
        greedy = launch.evaluate_greedily(run, GREEDY_EPISODES, seed, "--env-id", env_id, **environment)
    greedy_return = greedy["mean"] + game.penalty * sum(greedy["lengths"]) / GREEDY_EPISODES
    frame["return"] += game.penalty * frame["length"]
    by_bin = frame.groupby(((frame["step"] - 1) // BIN + 1) * BIN)
    rows: list[dict[str, Any]] = [
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
    """Measure the return of a player who picks any legal action."""
    results = lab.Results("own_environment/random", ("game", "mean_return", "mean_steps"), replace=True)
    for name, game in GAMES.items():
        if game.rung != PPO:
            continue
        env = make_env(f"{game.module}:{game.env_id}")
        player, policy = EpisodePlayer(env), RandomPolicy(env)
        played = [player.play(policy, 0, number) for number in range(RANDOM_EPISODES)]
        steps = np.mean([episode.length for episode in played])
        mean = np.mean([episode.total for episode in played]) + game.penalty * steps
        results.add(game=name, mean_return=f"{mean:.4f}", mean_steps=f"{steps:.2f}")


def complete_bins(frame: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the rows of a game, without those of the few steps that an update made beyond the last bin."""
    return frame[(frame.game == name) & (frame.step <= GAMES[name].steps)]


def last_means(frame: pd.DataFrame, name: str, value: str) -> pd.Series:
    """Return the mean of a value over the episodes that end in the LAST steps, by seed."""
    own = complete_bins(frame, name)
    own = own[own.step > own.groupby("seed").step.transform("max") - LAST]
    return (own[value] * own.episodes).groupby(own.seed).sum() / own.episodes.groupby(own.seed).sum()


def goal_of(name: str, random: pd.DataFrame) -> float | None:
    """Return the mean return that counts as solved. For Blocks it is ten times the random player's."""
    return float(10 * random.mean_return["blocks"]) if name.startswith("blocks") else GAMES[name].goal


def steps_to(goal: float | None, own: pd.DataFrame, most: int) -> str:
    """Return the steps in which the runs of a game reached its goal as text; empty without a goal.

    Args:
        goal: mean return over BIN steps.
        own: curves of the game.
        most: agent steps of a run.
    """
    if goal is None:
        return ""
    steps = own[own.mean_return >= goal].groupby("seed").step.min()
    return markup.spread_of_seeds(steps, own.seed.nunique()) if len(steps) else f"not in {most:,}"


def table(frame: pd.DataFrame, random: pd.DataFrame) -> str:
    """Return a row per game."""
    rows = []
    for name in dict.fromkeys(frame.game):
        goal = goal_of(name, random)
        own = frame[frame.game == name]
        rows.append(
            (
                f"`{GAMES[name].env_id}`",
                f"`{GAMES[name].rung.rpartition('/')[2]}`",
                f"{random.mean_return[name.removesuffix('-dqn')]:.2f}",
                markup.spread(last_means(frame, name, "mean_return")),
                markup.spread(own.groupby("seed").greedy_return.last()),
                "" if goal is None else f"{goal:.1f}",
                steps_to(goal, own, GAMES[name].steps),
                markup.spread(last_means(frame, name, "mean_steps"), 0),
                f"{random.mean_steps[name.removesuffix('-dqn')]:.0f}",
            )
        )
    header = (
        "environment",
        "script",
        "return of random play",
        f"return, last {LAST:,} steps",
        f"greedy return, {GREEDY_EPISODES} episodes",
        "goal",
        "steps to the goal (10,000-step bins)",
        "episode length",
        "episode length of random play",
    )
    return markup.table(header, rows)


def draw(frame: pd.DataFrame, random: pd.DataFrame) -> None:
    """Draw the curves with the range of their seeds as docs/pictures/own-environment.png."""
    figure, (cells, lengths, lines) = plt.subplots(1, 3, figsize=(12, 3.5), layout="constrained")
    snakes = {"snake": "PPO", "snake-dqn": "DQN", "penalty": "PPO, -0.1 a step"}
    blocks = {"blocks": "PPO", "blocks-dqn": "DQN"}
    panels = [
        (cells, "mean_return", 3, snakes),
        (lengths, "mean_steps", 0, snakes),
        (lines, "mean_return", 0, blocks),
    ]
    for axes, value, offset, labels in panels:
        for name, label in labels.items():
            own = complete_bins(frame, name)
            if own.empty:
                continue
            by_step = own.groupby(own.step / 1000)[value]
            [line] = axes.plot(offset + by_step.mean(), label=label)
            low, high = offset + by_step.min(), offset + by_step.max()
            axes.fill_between(low.index, low, high, alpha=0.2, color=line.get_color())
        axes.set(xlabel="thousand agent steps")
        axes.grid(alpha=0.3)
    for axes, name, offset in ((cells, "snake", 3), (lines, "blocks", 0)):
        goal = goal_of(name, random)
        assert goal is not None
        axes.axhline(offset + goal, color="grey", linestyle="--", linewidth=0.8)
    cells.set(title="Snake: cells at death, at least", ylabel="mean and range of the seeds")
    lengths.set(title="Snake: steps an episode", yscale="log")
    lines.set(title="Blocks: lines cleared")
    cells.legend()
    lines.legend()
    figure.savefig(markup.PICTURES / "own-environment.png", dpi=110)
    plt.close(figure)


def kept() -> list[str]:
    """Return the games that have results."""
    return [name for name in GAMES if lab.path_of(f"own_environment/{name}").exists()]


def measured() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return all curves, and the random player's results by game."""
    frame = pd.concat([lab.read(f"own_environment/{name}")[0].assign(game=name) for name in kept()])
    return frame, lab.read("own_environment/random")[0].set_index("game")


def blocks() -> Iterator[markup.Block]:
    """Yield the table of Snake and Blocks."""
    stamps = [lab.read(f"own_environment/{name}")[1] for name in kept()]
    yield markup.Block(markup.MEASUREMENTS, "own-environment", f"{table(*measured())}\n\n{markup.measured_on(stamps)}")


def pictures() -> None:
    """Draw the curves of Snake and Blocks."""
    draw(*measured())


def main() -> None:
    parser = lab.parser(__doc__)
    lab.add_experiments(parser, "random", *GAMES, "tables")
    parser.add_argument("--seeds", type=cli.positive, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--jobs", type=cli.positive, default=2, help="runs at a time, with a thread each (default: 2)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    chosen = args.what or ["random", *GAMES, "tables"]
    games = [name for name in GAMES if name in chosen]
    if "random" in chosen:
        random_play()
    results = {
        name: lab.Results(f"own_environment/{name}", COLUMNS, lab.stamp(threads=1, **GAMES[name]._asdict()), args.go_on)
        for name in games
    }
    turns = itertools.product(games, range(1, args.seeds + 1))
    missing = [(name, seed) for name, seed in turns if not results[name].has(seed=seed)]
    for (name, seed), bins in tqdm(launch.in_parallel(args.jobs, measure, missing), total=len(missing)):
        for row in bins:
            results[name].add(seed=seed, **row)
    if "tables" in chosen:
        markup.write(blocks())
        pictures()


if __name__ == "__main__":
    main()
