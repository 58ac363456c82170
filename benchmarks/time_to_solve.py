#!/usr/bin/env python3
"""How long a script takes to solve Pong, from the start of its process on, seed after seed.

    ./time_to_solve.py --script distributed/02_ppo_actors --seeds 5
    ./time_to_solve.py --script distributed/02_ppo_actors --seeds 5    # after an interruption: only what is missing
    ./time_to_solve.py --script "07_pong_in_minutes --envs 32" --time-limit 1200
    ./time_to_solve.py speed                                           # steps/s of the fast rungs, in turn
    ./time_to_solve.py tables                                          # only docs/speed.md's tables and picture anew

Every run is a process of its own, as a person would start it. A run that was interrupted is begun anew, as its clock
would not be that of one process; at another commit, on another machine or with another time limit all seeds are
measured anew. Before each, the emulator alone is timed: a machine that others use is not always equally fast, and a
figure says more beside what the machine could do just then.
"""

import argparse
import itertools
import json
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from tqdm import tqdm

import curve
import lab

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from lib import cli
from lib.envs import vector_env
from lib.run.curve import rolling_mean

PAGE = "docs/speed.md"
PARTS = ("act", "environment", "store", "wait", "sample", "learn", "rest")
GOAL = "18.0"
COLUMNS = (
    *("seed", "stopped", "seconds", "steps", "episodes", "start", "steps_per_second", "emulator"),
    *("evaluation_mean", "evaluation_std", "evaluation_worst", "evaluation_distinct"),
    *PARTS,
)
ENVS = 16  # of the emulator that is timed alone
# Agent steps that are timed of each rung, 15 to 35 seconds of them; the warm-up comes before.
FAST = {
    lab.BASELINE: 1_100,
    "05_native_envs --envs 16": 1_600,
    "06_fast_learner --envs 16": 3_200,
    "07_pong_in_minutes": 8_000,
    "distributed/01_ppo": 40_960,
    "distributed/02_ppo_actors": 40_960,
}
EMULATOR = "the emulator alone"


def emulator_speed(seconds: float = 4.0) -> float:
    """Agent steps a second of 16 native games of Pong that nobody acts in or learns from."""
    envs = vector_env.make_vector_env("PongNoFrameskip-v4", ENVS)
    actions = np.random.default_rng(0).integers(0, 6, (1000, ENVS))
    envs.reset(seed=1)
    for taken in actions[:100]:
        envs.step(taken)
    start, steps = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        envs.step(actions[steps % len(actions)])
        steps += 1
    measured = steps * ENVS / (time.perf_counter() - start)
    envs.close()
    return measured


def solve(script: str, seeds: int, time_limit: int) -> None:
    """Run a script to the end once a seed; what is there of the same commit, machine and settings is left out.

    Args:
        script: as lab.command takes it, with its options.
        seeds: 1, 2, ... so many.
        time_limit: seconds after which a run counts as not solved.
    """
    name = results_of(script)
    stamped = lab.stamp(lab.device_of(script.split()), script=script, time_limit=time_limit)
    results = lab.Results(name, COLUMNS, stamped, lab.can_go_on(name, COLUMNS, stamped))
    for seed in range(1, seeds + 1):
        if results.has(seed=seed):
            continue
        folder = lab.PROJECT / "runs" / "time-to-solve" / name / f"seed{seed}"
        shutil.rmtree(folder, ignore_errors=True)  # one that was interrupted
        emulator = emulator_speed()
        limits = ("--seed", str(seed), "--runs-dir", str(folder), "--time-limit", str(time_limit))
        try:
            lab.start(lab.command(script, *limits, "--quiet"))
        except SystemExit:
            if not lab.ran_away(folder):
                raise  # it was stopped, or failed; one whose loss ran away has just not solved the game
        [run] = [path.parent for path in folder.glob("*/result.json")]
        result = json.loads((run / "result.json").read_text())
        episodes = lab.Results(f"{name}-seed{seed}", ("step", "seconds", "return"), stamped)
        for row in pd.read_csv(run / "episodes.csv").to_dict("records"):
            episodes.add(**{key: row[key] for key in ("step", "seconds", "return")})
        results.add(seed=seed, emulator=f"{emulator:.0f}", **figures(result))


def figures(result: dict) -> dict[str, object]:
    """The columns that a run's result.json tells; seconds and steps are those at which the goal was reached, if any."""
    process = result["this_process"]
    reached = result["reached"].get(GOAL)
    parts = process["parts"] | {"rest": process["training_seconds"] - sum(process["parts"].values())}
    seconds = reached["seconds"] if reached else result["seconds"]
    evaluation = result.get("evaluation", {})
    worst = min(evaluation["returns"]) if evaluation else ""
    return {
        "stopped": result["stopped"],
        "seconds": f"{seconds:.1f}",
        "steps": reached["step"] if reached else result["steps"],
        "episodes": reached["episode"] if reached else result["episodes"],
        "start": f"{seconds - process['training_seconds']:.1f}",
        "steps_per_second": f"{process['steps_per_second']:.0f}",
        **{f"evaluation_{name}": evaluation.get(name, "") for name in ("mean", "std", "distinct")},
        "evaluation_worst": worst,
        **{part: f"{parts.get(part, 0.0):.1f}" for part in PARTS},
    }


def results_of(script: str) -> str:
    """The results file's name."""
    return f"solve-{lab.slug(script)}"


def speed(rounds: int) -> None:
    """Agent steps a second of the fast rungs and of the emulator alone, in turn."""
    results = lab.Results("fast-speed", ("round", "rung", "steps_per_second"), lab.stamp(steps=FAST), go_on=False)
    for number, rung in tqdm(list(lab.turns(rounds, [EMULATOR, *FAST]))):
        measured = emulator_speed() if rung == EMULATOR else rung_speed(rung)
        results.add(round=number, rung=rung, steps_per_second=f"{measured:.1f}")


def rung_speed(rung: str) -> float:
    """Agent steps a second of a rung's learning, warm-up and start left out."""
    warm_up = 0 if rung.startswith("distributed") else lab.WARM_UP
    limits = ["--stop-after", str(warm_up + FAST[rung])]
    limits += ["--set", f"replay_initial={warm_up}"] if warm_up else []
    return lab.timed(rung, *limits)["steps_per_second"]


def speed_table(frame: pd.DataFrame) -> str:
    """A row a rung: its speed, and its ratios to the baseline and to the emulator alone, round by round."""
    speeds = lab.rounds(frame, "rung", "steps_per_second")
    to_baseline, to_emulator = lab.ratios(speeds, lab.BASELINE), lab.ratios(speeds, EMULATOR)
    rows = [
        (f"`{rung}`", lab.spread(speeds[rung], 0), lab.spread(to_baseline[rung]), lab.spread(to_emulator[rung], 2))
        for rung in [*FAST, EMULATOR]
    ]
    header = ("rung", "agent steps/s", "ratio to 01 in the same round", "ratio to the emulator alone")
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum of {len(speeds)} rounds."


def kept() -> Iterator[tuple[str, pd.DataFrame, dict]]:
    """All results of `solve`: (script with options, rows, stamp)."""
    for path in sorted(lab.RESULTS.glob("solve-*.csv")):
        if not re.search(r"-seed\d+$", path.stem):
            frame, stamped = lab.read(path.stem)
            yield stamped["settings"]["script"], frame, stamped


def solve_table(only_solved: bool = False) -> str:
    """A row a script: seconds and steps of its seeds; of those that solved Pong at all, or of all."""
    rows = []
    for script, frame, stamped in kept():
        solved = frame[frame["stopped"] == "solved"]
        if only_solved and solved.empty:
            continue
        limit = stamped["settings"]["time_limit"]
        # One that was not solved counts as slower than all others, so a median of solved ones alone would be too good.
        seconds = frame["seconds"].where(frame["stopped"] == "solved", np.inf)
        rows.append(
            (
                f"`{script}`",
                f"{len(solved)} of {len(frame)} in {limit} s",
                lab.spread(seconds, 0).replace("inf", "-"),
                lab.spread(solved["steps"] / 1000, 0) if len(solved) else "",
                lab.spread(frame["steps_per_second"], 0),
                lab.spread(frame["emulator"], 0),
                f"{solved['evaluation_mean'].min():.1f}" if solved["evaluation_mean"].notna().any() else "",
                lab.where(stamped),
            )
        )
    header = (
        *(
            "script",
            "solved",
            "seconds to 18",
            "thousand agent steps, of the solved",
            "agent steps/s",
            "emulator alone, steps/s",
        ),
        *("lowest mean of 20 greedy episodes", "where"),
    )
    return f"{lab.table(header, rows)}\n\nMinimum / median / maximum over the seeds."


def seeds_table() -> str:
    """A row a seed of every script: when it was solved, its evaluation, its seconds by part."""
    rows = []
    for script, frame, _ in kept():
        for row in frame.to_dict("records"):
            greedy = row["evaluation_mean"]
            found = (
                "" if pd.isna(greedy) else f"{greedy:.1f} ± {row['evaluation_std']:.1f}, {row['evaluation_worst']:g}"
            )
            cells = (f"`{script}`", row["seed"], row["stopped"], row["seconds"], f"{row['steps']:,}", row["episodes"])
            distinct = "" if pd.isna(greedy) else f"{row['evaluation_distinct']:.0f}"
            parts = (row.get(part, 0.0) for part in PARTS)  # older files lack some
            rows.append((*cells, found, distinct, row["start"], *parts))
    header = ("script", "seed", "ended", "seconds", "agent steps", "episodes", "greedy: mean ± std, worst", "distinct")
    return lab.table((*header, "start-up", *PARTS), rows)


def draw() -> None:
    """Return against seconds, on a logarithmic axis, of every script that was timed, as docs/pictures/speed.png."""
    figure, axes = plt.subplots(figsize=(8, 4), layout="constrained")
    greys = itertools.cycle(("-", "--", ":", "-."))
    for name, frame, stamped in curve.kept("pong"):
        if not stamped["changed"] and stamped["beside"] <= 1 and stamped["machine"]["device"] == "cpu":
            also = ", beside another run" if stamped["beside"] else ""
            style = next(greys)
            axes.plot(frame["seconds"], frame["mean_100"], style, label=name + also, color="grey", linewidth=1)
    colors = itertools.cycle(plt.rcParams["axes.prop_cycle"].by_key()["color"])
    for (script, frame, _), color in zip(kept(), colors, strict=False):
        name = results_of(script)
        for number, seed in enumerate(frame["seed"]):
            episodes, _ = lab.read(f"{name}-seed{seed}")
            mean = rolling_mean(episodes["return"])
            axes.plot(episodes["seconds"], mean, label="" if number else script, color=color, linewidth=1)
    axes.axhline(float(GOAL), color="black", linewidth=0.8, linestyle="--")
    axes.set(xscale="log", xlabel="seconds since the process started", ylabel="mean return of the last 100 episodes")
    axes.legend(loc="upper left", fontsize="x-small")
    axes.grid(alpha=0.3, which="both")
    figure.savefig(lab.PICTURES / "speed.png", dpi=110)


def tables() -> None:
    """docs/speed.md's tables and picture, and the README's table, from the CSV files that there are."""
    lab.put(PAGE, "solve", solve_table())
    lab.put("README.md", "solve", solve_table(only_solved=True))
    lab.put(PAGE, "seeds", seeds_table())
    if lab.path_of("fast-speed").exists():
        frame, stamped = lab.read("fast-speed")
        lab.put(PAGE, "fast-speed", f"{speed_table(frame)} {lab.where(stamped)}")
    draw()


def rung(text: str) -> str:
    """argparse type: a script that is there, with its options, which plays Pong."""
    if others := {"--game", "--env-id"} & {word.split("=")[0] for word in text.split()}:
        raise argparse.ArgumentTypeError(f"all times are of Pong, and {others.pop()} is of another game; leave it out")
    if not text.split() or not Path(lab.command(text)[1]).exists():
        raise argparse.ArgumentTypeError(
            f"no script is named {text!r}; give it without .py, as in distributed/01_ppo or '07_pong_in_minutes -n 4'"
        )
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="solve", choices=("solve", "speed", "tables"))
    parser.add_argument("--script", type=rung, default="distributed/02_ppo_actors", help="the script and its options")
    parser.add_argument("--seeds", type=cli.positive, default=5, help="1 to this one (default: 5)")
    parser.add_argument("--time-limit", type=cli.positive, default=600, help="seconds of a run (default: 600)")
    parser.add_argument("--rounds", type=cli.positive, default=5, help="of speed (default: 5)")
    args = parser.parse_args()
    if args.what == "solve":
        solve(args.script, args.seeds, args.time_limit)
    elif args.what == "speed":
        speed(args.rounds)
    tables()


if __name__ == "__main__":
    main()
