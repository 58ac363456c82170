"""Pictures of docs/, made from the results. `./bench.py tables` draws them."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from experiments import BASELINE, CHAPTER08, CHAPTER09, EQUAL, EXPERIMENTS, MINUTES, STEP_PENALTY
from lib.envs.single_env import reward_threshold
from results import PROJECT, curves, rounds, runs
from tables import by_variant, minutes

import matplotlib
import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import MultipleLocator

matplotlib.use("Agg")  # no benchmark opens a window

PICTURES = PROJECT / "docs" / "pictures"
STEP_PARTS = {  # parts of a step, as in results/runs.csv, with their labels
    "learn": "learn: loss, gradients, optimizer",
    "act": "act: the network chooses actions",
    "environment": "environment: emulator and wrappers",
    "wait": "wait for actors",
    "sample": "sample a batch, store a rollout",
    "rest": "everything else",
}


def axes_of(name: str, width: float, height: float, columns: int = 1, **options: Any) -> tuple[Any, Callable[[], None]]:
    """Return the axes of a new picture, and a function that saves it as docs/pictures/<name>.png."""
    figure, axes = plt.subplots(ncols=columns, figsize=(width, height), layout="constrained", **options)

    def save() -> None:
        for each in figure.axes:
            each.grid(alpha=0.3)
        figure.savefig(PICTURES / f"{name}.png", dpi=110)
        plt.close(figure)

    return axes, save


def draw_seeds(axes: Axes, points: pd.DataFrame, x: str, names: Iterable[str] = ()) -> None:
    """Draw the curve of every seed, in one colour per variant."""
    for number, (variant, own) in enumerate(by_variant(points, names)):
        for index, (_, curve) in enumerate(own.groupby("seed")):
            label = "" if index else variant
            axes.plot(curve[x], curve["value"], label=label, color=f"C{number % 10}", linewidth=1)


def draw_ranges(axes: Axes, points: pd.DataFrame, x: str, names: Mapping[str, str]) -> None:
    """Draw the mean of the seeds and their range, in one colour per variant.

    Args:
        axes: where to draw.
        points: the curves.
        x: "step" or "seconds".
        names: label of each variant.
    """
    for variant, label in names.items():
        own = points[points["variant"] == variant].pivot(index=x, columns="seed", values="value")
        if len(own):
            [line] = axes.plot(own.index, own.mean(axis=1), label=label)
            axes.fill_between(own.index, own.min(axis=1), own.max(axis=1), color=line.get_color(), alpha=0.15)


def draw_panels(name: str, points: pd.DataFrame, label: str, variants: Sequence[str], baseline: str) -> None:
    """Draw every seed's return against x, one panel a variant, with the baseline in grey. `label` says what x is."""
    columns = math.ceil(len(variants) / 2)
    panels, save = axes_of(name, 10, 4.6, columns, nrows=2, sharex=True, sharey=True)
    for axes, variant in zip(panels.flat, variants, strict=True):
        for shown, color in ((baseline, "darkgrey"), (variant, "C0")):
            for _, curve in points[points["variant"] == shown].groupby("seed"):
                axes.plot(curve["x"], curve["value"], color=color, linewidth=1.2)
        axes.set_title(variant, fontsize=9)
    panels[0, 0].figure.supxlabel(f"{label} ({baseline} in grey)", fontsize=10)
    panels[0, 0].figure.supylabel("mean return", fontsize=10)
    save()


def draw_pong(experiment: str, name: str) -> None:
    """Draw the return against seconds of an experiment's runs of Pong: every seed, or median and range of three."""
    axes, save = axes_of(name, 8, 3.6)
    points = curves(experiment, "mean_100")
    for number, (variant, own) in enumerate(by_variant(points, EXPERIMENTS[experiment].variants)):
        color = f"C{number % 10}"
        lines = [curve.groupby("seconds")["value"].last() for _, curve in own.groupby("seed")]
        if len(lines) >= 3:
            low, middle, high = spread_over_seconds(lines)
            axes.fill_between(low.index, low, high, color=color, alpha=0.15)
            lines = [middle]
        for index, line in enumerate(lines):
            axes.plot(line.index, line, label="" if index else variant, color=color, linewidth=1.2)
    axes.axhline(18.0, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="minutes since the process started", ylabel="mean return of 100 games")
    axes.xaxis.set_major_locator(MultipleLocator(300))
    axes.xaxis.set_major_formatter(lambda seconds, _: f"{seconds / 60:.0f}")
    axes.legend(fontsize=8, loc="lower right")
    save()


def spread_over_seconds(lines: Sequence[pd.Series]) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return minimum, median and maximum of curves over seconds. A curve that has ended stays at its last value."""
    table = pd.concat(lines, axis=1).sort_index().interpolate(method="index", limit_area="inside").ffill().dropna()
    return table.min(axis=1), table.median(axis=1), table.max(axis=1)


def draw_peers() -> None:
    """Draw the agent steps a second of other projects and of this one's PPO scripts, as peers.png."""
    own = runs("solve")
    own = own[own["variant"].str.startswith("distributed")]
    speeds = pd.concat([runs("peers"), own]).groupby("variant", sort=False)["steps_per_second"].median()
    axes, save = axes_of("peers", 7, 2.4)
    axes.barh(speeds.index, speeds, color=["C1" if name.startswith("distributed") else "C0" for name in speeds.index])
    axes.set(xlabel="agent steps a second, while learning")
    axes.invert_yaxis()
    save()


def draw_chapter08() -> None:
    """Draw the mean return of chapter 8's variants against steps, as chapter08-pong.png."""
    points = curves("chapter08", "return").dropna(subset="value")
    points = points.assign(x=points["step"] / 1000)
    basic, *others = CHAPTER08
    draw_panels("chapter08-pong", points, "thousand agent steps", others, basic)


def draw_overestimation() -> None:
    """Draw the values of fixed states and the mean return, as chapter08-overestimation.png."""
    (left, right), save = axes_of("chapter08-overestimation", 9, 3.4, 2)
    for axes, curve, label in ((left, "values", "mean best value of fixed states"), (right, "return", "mean return")):
        points = curves("overestimation", curve)
        draw_seeds(axes, points.assign(step=points["step"] / 1000), "step", EXPERIMENTS["overestimation"].variants)
        axes.set(xlabel="thousand agent steps", ylabel=label)
    left.legend()
    save()


def milliseconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row per variant with the milliseconds of an agent step by part, median over its rows of runs.csv."""
    frame = frame.reindex(columns=["variant", "steps_per_second", "last_1000_steps_per_second", *STEP_PARTS, "store"])
    speed = frame["steps_per_second"].fillna(frame["last_1000_steps_per_second"])
    seconds = frame[[*STEP_PARTS]].assign(sample=frame["sample"] + frame["store"])
    shares = seconds.div(seconds.sum(axis=1), axis=0)
    return shares.mul(1000 / speed, axis=0).groupby(frame["variant"]).median()


def draw_parts() -> None:
    """Draw the time of an agent step by part, as step-parts.png. PPO was measured on another machine."""
    book = milliseconds(runs("chapter09")).loc[CHAPTER09[1:]]
    tuned = milliseconds(runs("minutes-speed")).loc[list(MINUTES[1:])]
    ppo = milliseconds(runs("solve"))
    ppo = ppo[ppo.index.str.startswith("distributed")]
    panels = (("the book's settings", book), ("settings for a CPU; below, PPO", pd.concat([tuned, ppo])))
    (left, right), save = axes_of("step-parts", 11, 3.8, 2)
    for axes, (title, table) in zip((left, right), panels, strict=True):
        start = pd.Series(0.0, table.index)
        for color, (part, label) in enumerate(STEP_PARTS.items()):
            axes.barh(table.index, table[part], left=start, label=label, color=f"C{color}")
            start = start + table[part]
        for row, total in enumerate(start):
            axes.text(total, row, f" {total:.1f}", va="center", fontsize=8)
        axes.set(title=title, xlabel="milliseconds per agent step", xlim=(0, 1.12 * start.max()))
        axes.invert_yaxis()
        axes.tick_params(axis="y", labelsize=8)
    left.figure.legend(*left.get_legend_handles_labels(), fontsize=8, loc="outside lower center", ncols=3)
    save()


def draw_sweep() -> None:
    """Draw the speed against the number of environments, as chapter09-sweep.png."""
    speeds = rounds(runs("sweep"), "last_1000_steps_per_second", EXPERIMENTS["sweep"].variants)
    numbers = [int(rung.split()[-1]) for rung in speeds]
    axes, save = axes_of("chapter09-sweep", 5, 3)
    axes.fill_between(numbers, speeds.min(), speeds.max(), alpha=0.3)
    axes.plot(numbers, speeds.median(), marker="o")
    axes.set(xlabel="environments", ylabel="agent steps/s", ylim=(0, None))
    save()


def draw_minutes() -> None:
    """Draw the mean return of chapter 9's rungs against minutes, as chapter09-minutes.png."""
    rungs, speeds = minutes()
    points = curves("minutes", "mean_100")
    copies = [points[points["variant"] == EQUAL.get(rung, rung)].assign(variant=rung) for rung in rungs]
    points = pd.concat(copies)
    points = points.assign(x=points["step"] / points["variant"].map(speeds.median()) / 60)
    shown = [rung for rung in rungs if rung not in EQUAL and rung != BASELINE]
    draw_panels("chapter09-minutes", points, "minutes", shown, BASELINE)


def draw_actors() -> None:
    """Draw the mean return against seconds of eight actors and one, as distributed-curve.png."""
    axes, save = axes_of("distributed-curve", 8, 4)
    draw_ranges(axes, curves("actors", "return"), "seconds", {"1": "1 actor", "8": "8 actors"})
    axes.set(xlabel="seconds since the process started", ylabel="mean return")
    axes.legend()
    save()


def draw_snake_and_blocks() -> None:
    """Draw the learning curves of Snake and Blocks, as own-environment.png. A snake begins with three cells."""
    returns, lengths = curves("snake-blocks", "return"), curves("snake-blocks", "length")
    # The penalty is added back, to make the returns comparable.
    penalised = returns["variant"] == "penalty"
    steps = returns.merge(lengths, on=["variant", "seed", "step"])["value_y"].to_numpy()
    returns = returns.assign(value=returns["value"] + STEP_PENALTY * steps * penalised)
    snakes = {"snake": "PPO", "snake-dqn": "DQN", "penalty": "PPO, -0.1 a step"}
    blocks = {"blocks": "PPO", "blocks-dqn": "DQN"}
    (cells, length, lines), save = axes_of("own-environment", 12, 3.5, 3)
    panels = ((cells, returns, 3, snakes), (length, lengths, 0, snakes), (lines, returns, 0, blocks))
    for axes, points, offset, names in panels:
        most = points["variant"].map(lambda name: 900_000 if name == "blocks" else 300_000)
        points = points[points["step"] <= most]  # without the few steps of an update beyond the last bin
        draw_ranges(axes, points.assign(step=points["step"] / 1000, value=points["value"] + offset), "step", names)
        axes.set(xlabel="thousand agent steps")
    for axes, game, offset in ((cells, "examples.snake:Snake-v0", 3), (lines, "examples.blocks:Blocks-v0", 0)):
        axes.axhline(offset + (reward_threshold(game) or math.nan), color="grey", linestyle="--", linewidth=0.8)
    cells.set(title="Snake: cells at death, at least", ylabel="mean and range of the seeds")
    length.set(title="Snake: steps an episode", yscale="log")
    lines.set(title="Blocks: lines cleared")
    cells.legend()
    lines.legend()
    save()


def draw() -> None:
    """Draw all pictures."""
    draw_pong("solve", "speed")
    draw_peers()
    draw_parts()
    draw_chapter08()
    draw_overestimation()
    draw_sweep()
    draw_minutes()
    draw_actors()
    draw_snake_and_blocks()
