"""Train chapter 9's rungs until Pong is solved, and make the book's table of minutes; called by chapter09.py --params.

A run that was interrupted goes on from its checkpoint with --go-on. Its episodes are kept in results/minutes-<params>
when it has ended, and it is not trained again while that file exists. Minutes are a run's agent steps divided by its
rung's speed, which is measured on an otherwise idle machine with the rungs in turn. So several runs may be trained at
once, and a slow hour of the machine harms no rung.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import curve
import lab
import launch
import markup
from lib.run.folder import read_params

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt

# Rungs, and how many seeds are trained of each.
LADDER = {
    "00_slow_grads": 1,
    "01_baseline": 3,
    "02_n_envs --envs 3": 1,
    "03_parallel": 3,
    "04_wrappers --envs 3": 1,
    "04_wrappers --envs 3 --parallel": 3,
    "05_native_envs --envs 4": 1,
    "06_fast_learner --envs 4": 1,
    "07_pong_in_minutes": 3,
}
PLAIN = "04_wrappers --envs 3"
REMEDIES = [f"{PLAIN} {remedy}" for remedy in ("--stack 2", "--noop-max 0", "--max-frames 0")]
SWEEP = ["01_baseline", *(f"02_n_envs --envs {n}" for n in range(2, 7))]
SEEDS = dict.fromkeys([*REMEDIES, *SWEEP], 1) | LADDER
# Rungs that play and learn bit for bit as their parents do; see tests/test_scripts.py. Only their speeds differ, so
# they are trained only if --rung names them.
EQUAL = {"00_slow_grads": "01_baseline", "04_wrappers --envs 3": "02_n_envs --envs 3"}
GOALS = ("17.0", "18.0")


class Trained(NamedTuple):
    """A finished run.

    Attributes:
        rung: script with its options.
        frame: its episodes.
        stamped: its stamp.
    """

    rung: str
    frame: pd.DataFrame
    stamped: lab.Stamp

    def needed(self, goal: str, unit: str = "step") -> float:
        """Return what a run needed until the mean of its last 100 episodes reached a goal; infinity if it did not.

        Args:
            goal: mean return, such as "18.0".
            unit: "step" for agent steps, or "episode".
        """
        reached = self.stamped["result"]["reached"].get(goal)
        return reached[unit] if reached else np.inf


def train(params: str, device: str, go_on: bool, rungs: Sequence[str], seeds: int, jobs: int) -> None:
    """Train rungs, seed by seed, until they are solved or reach their step limit.

    Args:
        params: common, or best for configs/pong-cpu.json.
        device: device of the networks.
        go_on: continue interrupted runs; otherwise they are refused.
        rungs: rungs to train, or none for all.
        seeds: number of seeds of each rung; 0 for that of SEEDS.
        jobs: runs at once. With more than one, each has one thread.

    Raises:
        SystemExit: if a run was interrupted and `go_on` is not given, or if a script failed.
    """
    commands = []
    for folder, rung, seed in _folders(params, device, rungs, seeds):
        runs = runs_in(folder)
        if finished(runs[-1]) if runs else lab.path_of(_name(params, device, folder)).exists():
            continue
        if runs and not go_on:
            raise SystemExit(f"{runs[-1]} was interrupted; give --go-on to continue it, or delete it")
        new = [*launch.tuned(params, rung), "--seed", str(seed), "--runs-dir", str(folder)]
        start = ["--resume", str(runs[-1])] if runs else new
        commands.append(launch.command(rung, *start, "--device", device))
    environment = os.environ | ({} if jobs == 1 else {"OMP_NUM_THREADS": "1"})
    try:
        with launch.interrupts_left_to_children():
            list(launch.in_parallel(jobs, partial(subprocess.run, check=True, env=environment), commands))
    finally:
        for folder, rung, _ in _folders(params, device, rungs, seeds):
            runs, name = runs_in(folder), _name(params, device, folder)
            if runs and finished(runs[-1]) and not _is_kept(runs[-1], name):
                curve.write(runs[-1], name, rung, jobs - 1)


def _name(params: str, device: str, folder: Path) -> str:
    """Return the name of the results of the run in a folder."""
    return f"{folder_of(params, device)}/{folder.name}"


def _is_kept(run: Path, name: str) -> bool:
    """Return whether a results file already has all episodes of a finished run."""
    if not lab.path_of(name).exists():
        return False
    frame, stamped = lab.read(name)
    is_same = stamped["measured"] == curve.origin(read_params(run))["measured"]
    return is_same and len(frame) == len(pd.read_csv(run / "episodes.csv"))


def _folders(params: str, device: str, rungs: Sequence[str], seeds: int) -> Iterator[tuple[Path, str, int]]:
    """Yield the folder, the rung and the seed of each run that is asked for, first one seed of each."""
    ordered = LADDER | SEEDS
    for seed, (rung, number) in itertools.product(range(1, max(seeds, *SEEDS.values()) + 1), ordered.items()):
        if seed <= (seeds or number) and (rung in rungs if rungs else rung not in EQUAL):
            yield lab.PROJECT / "runs" / folder_of(params, device) / f"{lab.slug(rung)}-seed{seed}", rung, seed


def runs_in(folder: Path) -> list[Path]:
    """Return the run folders in a folder that have a checkpoint, the oldest first."""
    return sorted({path.parents[1] for path in folder.glob("*/checkpoints/step-*.pt")})


def folder_of(params: str, device: str = "cpu") -> str:
    """Return the name of the folder of runs and of results."""
    return f"minutes-{params}" + ("" if device == "cpu" else f"-{device.partition(':')[0]}")


def speed_of(params: str, device: str = "cpu", to: str = launch.BASELINE) -> str:
    """Return the name of the results with the speeds of the rungs that are compared with `to`, BASELINE or PLAIN."""
    return f"{folder_of(params, device)}/speed{'-remedies' if to == PLAIN else ''}"


def speeds(params: str, device: str = "cpu", to: str = launch.BASELINE) -> pd.DataFrame:
    """Return the agent steps per second, a column per rung and a row per round; see `speed_of`."""
    return lab.rounds(lab.read(speed_of(params, device, to))[0], "rung", "steps_per_second")


def has_speeds(name: str, rungs: Sequence[str], rounds: int) -> bool:
    """Return whether results have at least so many speeds of each of the rungs; see `speed_of`."""
    if not lab.path_of(name).exists():
        return False
    measured = lab.read(name)[0]["rung"].value_counts()
    return all(measured.get(rung, 0) >= rounds for rung in rungs)


def timed(params: str, to: str = launch.BASELINE) -> tuple[list[Trained], pd.DataFrame]:
    """Return the finished runs of the rungs whose speeds have been measured, and those speeds; see `speeds`."""
    if not lab.path_of(speed_of(params, to=to)).exists():
        return [], pd.DataFrame()
    measured = speeds(params, to=to)
    return [run for run in read(params) if run.rung in measured], measured


def finished(run: Path) -> bool:
    """Return whether a run was solved or reached its step limit."""
    return (run / "result.json").exists() and launch.result_of(run)["stopped"] in ("solved", "step limit")


def read(params: str, device: str = "cpu") -> list[Trained]:
    """Return the finished runs of each rung. A rung in EQUAL has those of its parent if it was not trained itself."""
    runs = {}
    for rung in SEEDS:
        paths = sorted((lab.RESULTS / folder_of(params, device)).glob(f"{lab.slug(rung)}-seed*.csv"))
        runs[rung] = [Trained(rung, *lab.read(f"{folder_of(params, device)}/{path.stem}")) for path in paths]
    for rung, parent in EQUAL.items():
        runs[rung] = runs[rung] or [run._replace(rung=rung) for run in runs[parent]]
    return [run for group in runs.values() for run in group]


def table(
    runs: Sequence[Trained],
    speeds: Mapping[str, pd.Series],
    rungs: Sequence[str] = tuple(LADDER),
    to: str = launch.BASELINE,
) -> str:
    """Return a row per rung with the book's columns.

    Args:
        runs: finished runs.
        speeds: agent steps per second of each rung, a number per round.
        rungs: rungs of the table. Those without a finished run are left out.
        to: rung whose median minutes to 18 the changes refer to. A rung with one seed has no change.
    """
    groups = {rung: group for rung in rungs if (group := [run for run in runs if run.rung == rung])}
    minutes = {
        rung: {goal: pd.Series([run.needed(goal) / speeds[rung].median() / 60 for run in group]) for goal in GOALS}
        for rung, group in groups.items()
    }
    steps = {rung: pd.Series([run.needed("18.0") for run in group]) for rung, group in groups.items()}
    needed = {rung: minutes[rung]["18.0"].median() for rung in groups}
    rows = []
    for rung, group in groups.items():
        change = 100 * (needed[rung] / needed[to] - 1) if np.isfinite(needed.get(to, np.inf)) else np.nan
        rows.append(
            (
                f"`{rung}`",
                len(group),
                markup.spread(speeds[rung], 0),
                *(markup.spread(minutes[rung][goal], 0) for goal in GOALS),
                "" if rung == to or len(group) == 1 or not np.isfinite(change) else f"{change:+.0f} %",
                markup.spread(pd.Series([run.needed("18.0", "episode") for run in group]), 0),
                markup.spread(steps[rung] / 1000, 0),
            )
        )
    header = (
        "script",
        "seeds",
        "steps/s",
        "minutes to 17",
        "to 18",
        "minutes to 18, change",
        "episodes",
        "thousand steps to 18",
    )
    return markup.table(header, rows)


def draw(runs: Sequence[Trained], speeds: Mapping[str, pd.Series], name: str, rungs: Sequence[str]) -> None:
    """Draw the mean return of rungs against minutes and against steps, as docs/pictures/<name>.png."""
    figure, both = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained", sharey=True)
    colours: dict[str, str] = {}
    for run in sorted((run for run in runs if run.rung in rungs), key=lambda run: rungs.index(run.rung)):
        label = None if run.rung in colours else run.rung
        minutes = run.frame.step / speeds[run.rung].median() / 60
        for axes, x in ((both[0], minutes), (both[1], run.frame.step / 1000)):
            [line] = axes.plot(x, run.frame.mean_100, color=colours.get(run.rung), label=label, linewidth=1.2)
            colours[run.rung] = line.get_color()
    for axes, label in zip(both, ("minutes", "thousand agent steps"), strict=True):
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    both[0].set(ylabel="mean return of the last 100 games")
    both[1].legend(fontsize=8)
    figure.savefig(markup.PICTURES / f"{name}.png", dpi=110)
    plt.close(figure)
