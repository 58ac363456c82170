#!/usr/bin/env python3
"""Measure how long a script takes to solve Pong, from the start of its process, seed by seed.

    ./time_to_solve.py --first-seed 421 --seeds 5 --overwrite          # run it again after an interruption
    ./time_to_solve.py --script "07_pong_in_minutes --envs 32" --time-limit 1200
    ./time_to_solve.py speed --rounds 3                                # steps/s of the ladder's scripts, in turn
    ./time_to_solve.py speed --rounds 3 --go-on                        # after an interruption
    ./time_to_solve.py speed --device cuda                             # steps/s of PPO, with and without a GPU
    ./time_to_solve.py tables                                          # only the tables and the picture

Every run is its own process, as a person would start it. An interrupted run starts again, because its clock would not
be that of one process. At another commit, on another machine or with another time limit, the earlier results are
deleted, if they are committed; this takes --overwrite unless all their seeds are measured again. The emulator alone is
timed before each run, because a shared machine is not always equally fast.
"""

import argparse
import itertools
import math
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lab
import ladder
import launch
import markup
from lib import cli
from lib.envs import vector_env
from lib.run.curve import rolling_mean

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from tqdm import tqdm

PAGE = "docs/speed.md"
PARTS = ("act", "environment", "store", "wait", "sample", "learn", "rest")
GOAL = "18.0"
COLUMNS = (
    "seed",
    "stopped",
    "seconds",
    "steps",
    "episodes",
    "start",
    "steps_per_second",
    "emulator",
    "evaluation_mean",
    "evaluation_std",
    "evaluation_worst",
    "evaluation_distinct",
    *PARTS,
)
EMULATOR_ENVS = 16  # games that are stepped together to time the emulator
EMULATOR = "the emulator alone"
# Timed agent steps of each rung: about 10 to 110 seconds of learning. PPO learns from the first rollout before its time
# starts, so few rollouts would make it look slower.
LADDER = {
    "00_slow_grads": 1_100,
    launch.BASELINE: 1_100,
    "02_n_envs --envs 3": 1_100,
    "03_parallel": 1_100,
    "04_wrappers --envs 3": 1_100,
    "04_wrappers --envs 3 --parallel": 1_100,
    "05_native_envs --envs 16": 1_600,
    "06_fast_learner --envs 16": 3_200,
    "07_pong_in_minutes": 8_000,
    "distributed/01_ppo": 40_960,
    "distributed/02_ppo_fast": 40_960,
    "distributed/03_ppo_actors": 40_960,
}
GPU_SPEED = "solve/gpu-speed"
ON_GPU = " --device cuda"
GPU_RUNGS = {
    "distributed/01_ppo": 16_384,
    "distributed/02_ppo_fast": 40_960,
    "distributed/03_ppo_actors --actors 8": 40_960,
}


class Solved(NamedTuple):
    """Results of a script.

    Attributes:
        script: script with its options.
        name: name of the results file.
        frame: a row per seed.
        stamped: stamp of the measurement.
    """

    script: str
    name: str
    frame: pd.DataFrame
    stamped: lab.Stamp


def emulator_speed(seconds: float = 4.0) -> float:
    """Return the agent steps per second of 16 native games of Pong, without acting and learning."""
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", EMULATOR_ENVS)
    actions = np.random.default_rng(0).integers(0, 6, (1000, EMULATOR_ENVS))
    envs.reset(seed=1)
    for action in actions[:100]:
        envs.step(action)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        envs.step(actions[steps % len(actions)])
        steps += 1
    speed = steps * EMULATOR_ENVS / (time.perf_counter() - start)
    envs.close()
    return speed


def solve(script: str, seeds: Sequence[int], time_limit: int, overwrite: bool = False) -> None:
    """Run a script to its end once per seed. Seeds with the same commit, machine and settings are not repeated.

    Args:
        script: script with its options, see launch.command.
        seeds: seeds in the order of their runs.
        time_limit: seconds within which a run has to reach the goal.
        overwrite: delete results of other seeds that were measured with other settings.

    Raises:
        SystemExit: if such results would be deleted without `overwrite`.
    """
    name = results_of(script)
    stamped = lab.stamp(launch.device_of(script.split()), script=script, time_limit=time_limit)
    if not overwrite:
        lab.refuse_loss(name, lab.differences(name, COLUMNS, stamped), "seed", seeds)
    results = lab.Results(name, COLUMNS, stamped, go_on=True)
    for seed in seeds:
        if results.has(seed=seed):
            continue
        folder = lab.PROJECT / "runs" / "time-to-solve" / lab.slug(script) / f"seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # an interrupted run
        emulator = emulator_speed()
        limits = ("--seed", str(seed), "--runs-dir", str(folder), "--time-limit", str(time_limit))
        try:
            launch.start(launch.command(script, *limits, "--quiet"))
        except SystemExit:
            if not launch.diverged(folder):  # a diverged run has just not solved the game
                raise
        [run] = [path.parent for path in folder.glob("*/result.json")]
        result = launch.result_of(run)
        episodes = lab.Results(f"{name}-seed{seed}", ("step", "seconds", "return"), stamped, replace=True)
        for row in pd.read_csv(run / "episodes.csv").to_dict("records"):
            episodes.add(**{key: row[key] for key in ("step", "seconds", "return")})
        results.add(seed=seed, emulator=f"{emulator:.0f}", **figures(result))


def figures(result: dict[str, Any]) -> dict[str, object]:
    """Return the columns of a run's row. Seconds and steps are those at which the goal was reached, if it was."""
    process = result["this_process"]
    reached = result["reached"].get(GOAL)
    parts = process["parts"] | {"rest": process["training_seconds"] - sum(process["parts"].values())}
    seconds = reached["seconds"] if reached else result["seconds"]
    evaluation = result.get("evaluation", {})
    return {
        "stopped": result["stopped"],
        "seconds": f"{seconds:.1f}",
        "steps": reached["step"] if reached else result["steps"],
        "episodes": reached["episode"] if reached else result["episodes"],
        "start": f"{process['learning_since']:.1f}",
        "steps_per_second": f"{process['steps_per_second'] or math.nan:.0f}",  # unknown in the warm-up
        **{f"evaluation_{name}": evaluation.get(name, "") for name in ("mean", "std", "distinct")},
        "evaluation_worst": min(evaluation["returns"]) if evaluation else "",
        **{part: f"{parts.get(part, 0.0):.1f}" for part in PARTS},
    }


def results_of(script: str) -> str:
    """Return the name of a script's results file."""
    return f"solve/{lab.slug(script)}"


def speed(rounds: int, device: str, go_on: bool) -> None:
    """Measure agent steps per second, in turn.

    Args:
        rounds: number of rounds.
        device: "cpu" for the ladder and the emulator alone; "cuda" for PPO, with the learner on the CPU and on a
            GPU alternately.
        go_on: keep the rows of an interrupted measurement.
    """
    if device == "cpu":
        name, steps, rungs = ladder.SPEED, LADDER, [EMULATOR, *LADDER]
    else:
        name, steps, rungs = GPU_SPEED, GPU_RUNGS, [rung + option for rung in GPU_RUNGS for option in ("", ON_GPU)]
    results = lab.Results(name, ("round", "rung", "steps_per_second"), lab.stamp(device, steps=steps), go_on)
    turns = [turn for turn in lab.turns(rounds, rungs) if not results.has(round=turn[0], rung=turn[1])]
    for number, rung in tqdm(turns):
        measured = emulator_speed() if rung == EMULATOR else rung_speed(rung, steps[rung.removesuffix(ON_GPU)])
        results.add(round=number, rung=rung, steps_per_second=f"{measured:.1f}")


def gpu_speed_table(frame: pd.DataFrame) -> str:
    """Return a row per script: its speed on the CPU and on the GPU, and their ratio."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    rows = []
    for rung in GPU_RUNGS:
        on_cpu, on_gpu = speeds[rung], speeds[rung + ON_GPU]
        ratio = markup.spread(on_gpu / on_cpu, 2)
        rows.append((f"`{rung}`", markup.spread(on_cpu, 0), markup.spread(on_gpu, 0), ratio))
    return markup.table(("script", "agent steps/s, learner on the CPU", "on the GPU", "ratio"), rows)


def rung_speed(rung: str, steps: int) -> float:
    """Return the agent steps per second of a rung's `steps` steps of learning, without start-up and warm-up."""
    if rung.startswith("distributed"):
        limits = ["--stop-after", str(steps)]
    else:
        limits = ["--stop-after", str(launch.WARM_UP + steps), "--set", f"replay_initial={launch.WARM_UP}"]
    return float(launch.timed(rung, *limits)["steps_per_second"])


def speed_table(frame: pd.DataFrame) -> str:
    """Return a row per rung: its speed, and its ratios to the baseline and to the emulator alone."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    to_baseline, to_emulator = lab.ratios(speeds, launch.BASELINE), lab.ratios(speeds, EMULATOR)
    rows = []
    for rung in [*(rung for rung in LADDER if rung in speeds), EMULATOR]:
        name = rung if rung == EMULATOR else f"`{rung}`"
        ratios = (markup.spread(to_baseline[rung]), markup.spread(to_emulator[rung], 2))
        rows.append((name, markup.spread(speeds[rung], 0), *ratios))
    return markup.table(("script", "agent steps/s", "ratio to 01", "ratio to the emulator"), rows)


def solved_results() -> list[Solved]:
    """Return all results of `solve`."""
    kept = []
    for path in sorted((lab.RESULTS / "solve").glob("*.csv")):
        if not re.search(r"-(speed|seed\d+)$", path.stem):
            name = f"solve/{path.stem}"
            frame, stamped = lab.read(name)
            kept.append(Solved(stamped["settings"]["script"], name, frame, stamped))
    return kept


def time_to_goal(own: Solved) -> str:
    """Return the median and the range of the seconds to the goal over a script's seeds, as text.

    An unsolved run counts as slower than all others. If it were left out, the median would be too low.
    """
    solved = solved_in_time(own)
    if not solved.any():
        limit = f"in {own.stamped['settings']['time_limit']:,} s"
        return f"not {limit}" if len(solved) == 1 else f"none of {len(solved)} seeds {limit}"
    seconds = markup.spread(to_goal(own, own.frame["seconds"]), 0, unit=" s", single="seed")
    return seconds if len(solved) == 1 else f"{seconds}, {solved.sum()} of {len(solved)} seeds"


def to_goal(own: Solved, amounts: pd.Series) -> pd.Series:
    """Return what each seed needed to solve the game, such as steps; infinity for an unsolved run."""
    return amounts.where(solved_in_time(own), np.inf)


def solved_in_time(own: Solved) -> pd.Series:
    """Return for each seed whether its run was solved within the time limit."""
    in_time = own.frame["seconds"] <= own.stamped["settings"]["time_limit"]
    return (own.frame["stopped"] == "solved") & in_time


def _emulator_steps(own: Solved) -> str:
    """Return the seconds to the goal times the emulator's own steps a second, which depends less on the machine."""
    return markup.spread(to_goal(own, own.frame["seconds"] * own.frame["emulator"] / 1e6), 2)


def solve_table(results: list[Solved]) -> str:
    """Return a row per script: seconds and steps of its seeds, its speed, and the worst evaluation."""
    rows = []
    for own in results:
        solved = own.frame[solved_in_time(own)]
        speed = markup.spread(own.frame["steps_per_second"], 0)
        if solved.empty:
            rows.append((f"`{own.script}`", time_to_goal(own), "", "", speed, ""))
        else:
            steps = markup.spread(to_goal(own, own.frame["steps"] / 1000), 0)
            worst = f"{solved['evaluation_mean'].min():.1f}"
            rows.append((f"`{own.script}`", time_to_goal(own), _emulator_steps(own), steps, speed, worst))
    header = (
        "script",
        "time to solve Pong",
        "emulator alone in that time, million agent steps",
        "thousand agent steps",
        "agent steps/s",
        "lowest greedy mean",
    )
    return markup.table(header, rows)


def short_solve_table(results: list[Solved]) -> str:
    """Return the README's table: time and steps of the scripts until they solved Pong."""
    rows = []
    for own in results:
        steps = markup.spread(to_goal(own, own.frame["steps"]), 0) if solved_in_time(own).any() else ""
        rows.append((f"`{own.script}`", time_to_goal(own), steps))
    return markup.table(("script", "time to solve Pong: median (range)", "agent steps"), rows)


def seeds_table(results: list[Solved]) -> str:
    """Return a row per script and seed: its end, its evaluation, and its seconds by part."""
    rows = []
    for own in results:
        for row in own.frame.to_dict("records"):
            evaluated = not pd.isna(row["evaluation_mean"])
            evaluation = (
                f"{row['evaluation_mean']:.1f} ± {row['evaluation_std']:.1f}, {row['evaluation_worst']:g}"
                if evaluated
                else ""
            )
            rows.append(
                (
                    f"`{own.script}`",
                    row["seed"],
                    row["stopped"],
                    row["seconds"],
                    f"{row['steps']:,}",
                    row["episodes"],
                    evaluation,
                    f"{row['evaluation_distinct']:.0f}" if evaluated else "",
                    row["emulator"],
                    row["start"],
                    *(row.get(part, 0.0) for part in PARTS),  # older files lack some parts
                )
            )
    header = ("script", "seed", "ended", "seconds", "agent steps", "episodes", "greedy: mean ± std, worst", "distinct")
    return markup.table((*header, "emulator alone, agent steps/s", "start-up", *PARTS), rows)


def draw() -> None:
    """Draw the return against seconds of every timed script as docs/pictures/speed.png."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    colors = itertools.cycle(plt.rcParams["axes.prop_cycle"].by_key()["color"])
    for script, name, frame, _ in solved_results():
        color = next(colors)
        for number, seed in enumerate(frame["seed"]):
            episodes, _ = lab.read(f"{name}-seed{seed}")
            mean = rolling_mean(episodes["return"])
            axes.plot(episodes["seconds"], mean, label="" if number else script, color=color, linewidth=1)
    axes.axhline(float(GOAL), color="black", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="seconds since the process started", ylabel="mean return of the last 100 episodes")
    axes.legend(loc="upper left", fontsize="x-small")
    axes.grid(alpha=0.3, which="both")
    figure.savefig(markup.PICTURES / "speed.png", dpi=110)


def blocks() -> Iterator[markup.Block]:
    """Yield the tables of the pages."""
    results = solved_results()
    where = markup.measured_on(own.stamped for own in results)
    yield markup.Block(PAGE, "solve", f"{solve_table(results)}\n\n{where}")
    on_cpu = [own for own in results if own.stamped["machine"]["device"] == "cpu"]
    where_on_cpu = markup.measured_on(own.stamped for own in on_cpu)
    yield markup.Block("README.md", "solve", f"{short_solve_table(on_cpu)}\n\n{where_on_cpu}")
    yield markup.Block(markup.MEASUREMENTS, "seeds", f"{seeds_table(results)}\n\n{where}")
    frame, stamped = lab.read(ladder.SPEED)
    where = markup.measured_on([stamped], lab.count_rounds(frame))
    yield markup.Block(markup.MEASUREMENTS, "ladder-speed", f"{speed_table(frame)}\n\n{where}")
    frame, stamped = lab.read(GPU_SPEED)
    where = markup.measured_on([stamped], lab.count_rounds(frame))
    yield markup.Block(markup.MEASUREMENTS, "gpu-speed", f"{gpu_speed_table(frame)}\n\n{where}")


def rung(text: str) -> str:
    """argparse type: an existing script with its options, which plays Pong."""
    others = {"--game", "--env-id"} & {word.split("=")[0] for word in text.split()}
    if others:
        raise argparse.ArgumentTypeError(f"every run has to play Pong, but {others.pop()} selects another game")
    if not text.split() or not Path(launch.command(text)[1]).exists():
        raise argparse.ArgumentTypeError(
            f"no script is named {text!r}; name it without .py, such as distributed/01_ppo or '07_pong_in_minutes -n 4'"
        )
    if "stop_reward" in text:
        raise argparse.ArgumentTypeError(f"every run is timed until it reaches {GOAL}, so leave stop_reward out")
    return text


def main() -> None:
    parser = lab.parser(__doc__)
    parser.add_argument("what", nargs="?", default="solve", choices=("solve", "speed", "tables"))
    parser.add_argument("--script", type=rung, default="distributed/03_ppo_actors", help="script with its options")
    parser.add_argument("--seeds", type=cli.positive, default=5, help="number of seeds (default: 5)")
    parser.add_argument("--first-seed", type=cli.positive, default=1, help="first seed (default: 1)")
    parser.add_argument(
        "--time-limit",
        type=cli.positive,
        default=600,
        help="seconds in which a run has to reach the goal (default: 600)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: speeds of PPO on both")
    parser.add_argument(
        "--overwrite", action="store_true", help="delete the results of seeds that are not measured now"
    )
    parser.add_argument("--rounds", type=cli.positive, default=5, help="rounds of speed (default: 5)")
    lab.add_go_on(parser)
    args = parser.parse_args()
    if args.what == "solve" and args.device != "cpu":
        parser.error("--device is for speed; to solve Pong on a GPU, add --cuda to --script")
    if args.what == "solve":
        solve(args.script, range(args.first_seed, args.first_seed + args.seeds), args.time_limit, args.overwrite)
    elif args.what == "speed":
        speed(args.rounds, args.device, args.go_on)
    markup.write(blocks())
    draw()


if __name__ == "__main__":
    main()
