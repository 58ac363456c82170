"""Curves of runs: what is drawn of them as numbers, and the pictures. A group of runs is a line with a band."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from lib.run.curve import rolling_mean
from lib.run.episodes import WINDOW

POINTS = 300  # of a grid


WIDTH, HEIGHT = 4.8, 3.3  # inches; two of them fill a screen, and one a telephone's with letters that can be read


LETTERS = 9  # points


DOTTED = 4  # groups at most whose single episodes are shown


COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")  # Okabe and Ito's


PARTS = {  # of the time, in the order in which an iteration has them
    "act": "#56b4e9",
    "environment": "#e69f00",
    "store": "#cc79a7",
    "wait": "#d55e00",
    "sample": "#009e73",
    "learn": "#0072b2",
    "rest": "#bbbbbb",
}


@dataclasses.dataclass(frozen=True)
class Series:
    """Values of a run, and lines between them.

    Attributes:
        x: (n,) places, which do not fall.
        y: (n,) values.
    """

    x: np.ndarray
    y: np.ndarray

    def at(self, grid: np.ndarray) -> np.ndarray:
        """The values at some places between the first and the last; the last one's where several are at one place."""
        return np.interp(grid, self.x, self.y)


@dataclasses.dataclass(frozen=True)
class Band:
    """Mean, lowest and highest of several runs' values on a grid, each (points,)."""

    grid: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def series(x: pd.Series | Sequence[float], y: pd.Series | Sequence[float]) -> Series:
    """Of two columns, without values that are not finite. A place before that of the value before, as environments may
    tell it that end together, is taken as the same."""
    places, values = np.asarray(x, float), np.asarray(y, float)
    finite = np.isfinite(values)
    return Series(np.maximum.accumulate(places[finite]), values[finite])


def band(runs: Sequence[Series], points: int = POINTS) -> Band | None:
    """What several runs have in common, over the stretch that all of them have.

    Args:
        runs: of one group.
        points: of the grid.

    Returns:
        It; None where no stretch is in all of them, or there is only one.
    """
    runs = [run for run in runs if len(run.x)]
    if len(runs) < 2:
        return None
    start, end = max(run.x[0] for run in runs), min(run.x[-1] for run in runs)
    if start >= end:
        return None
    grid = np.linspace(start, end, points)
    values = np.stack([run.at(grid) for run in runs])
    return Band(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def returns(
    groups: Mapping[str, Sequence[pd.DataFrame]],
    against: str,
    bounds: Sequence[float] = (),
    evaluations: Mapping[str, Sequence[Series]] | None = None,
) -> Figure:
    """Mean returns of the last 100 episodes.

    Args:
        groups: by label, the episodes of each run.
        against: "steps" or "minutes".
        bounds: mean returns that mean solved.
        evaluations: by label, mean returns of evaluations by agent step.
    """
    figure, axes = _figure(len(groups))
    for (label, frames), colour in zip(groups.items(), _colours(groups), strict=False):
        places = [frame["step"] if against == "steps" else frame["seconds"] / 60 for frame in frames]
        if len(groups) <= DOTTED:
            for x, frame in zip(places, frames, strict=True):
                axes.plot(x, frame["return"], ".", color=colour, markersize=2.5, alpha=0.3, markeredgewidth=0)
        _draw(
            axes,
            label,
            [series(x, rolling_mean(frame["return"])) for x, frame in zip(places, frames, strict=True)],
            colour,
        )
        for found in (evaluations or {}).get(label, ()):
            axes.plot(found.x, found.y, "D", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
    for bound in sorted(set(bounds)):
        axes.axhline(bound, color="#555555", linewidth=1, linestyle="--")
    x = "agent steps" if against == "steps" else "minutes"
    _name(axes, x, f"return, mean of the last {WINDOW}")
    _legend(figure, axes)
    return figure


def speeds(groups: Mapping[str, Sequence[Series]]) -> Figure:
    """Agent steps a second against agent steps; by label, each run's."""
    # PPO's first is told before there was a step to count.
    groups = {label: [Series(run.x[run.y > 0], run.y[run.y > 0]) for run in told] for label, told in groups.items()}
    figure, axes = _figure(len(groups))
    for (label, told), colour in zip(groups.items(), _colours(groups), strict=False):
        _draw(axes, label, told, colour)
    slowest, fastest = (
        choose((run.y.mean() for told in groups.values() for run in told if len(run.y)), default=1.0)
        for choose in (min, max)
    )
    if fastest > 20 * slowest > 0:
        axes.set_yscale("log")  # on any other scale the slow ones lie on the bottom
    else:
        axes.set_ylim(bottom=0)
    _name(axes, "agent steps", "agent steps a second")
    _legend(figure, axes)
    return figure


def shares(runs: Sequence[tuple[str, Mapping[str, float]]]) -> Figure:
    """Where the time went, a bar a run; by name, its parts in any unit."""
    figure = Figure(figsize=(WIDTH, 1.1 + 0.55 * len(runs)), layout="constrained")
    axes = figure.add_subplot()
    names = [part for part in PARTS if any(part in parts for _, parts in runs)]
    names += sorted({part for _, parts in runs for part in parts} - set(PARTS))
    for row, (name, parts) in enumerate(runs):
        left, whole = 0.0, sum(parts.values()) or 1.0
        for part in names:
            width = 100 * parts.get(part, 0.0) / whole
            label = part if row == 0 else "_"
            axes.barh(row, width, 0.5, left, color=PARTS.get(part, "#000000"), label=label, edgecolor="white")
            if width >= 8:
                white = part in ("learn", "sample", "wait")
                axes.text(
                    left + width / 2, row, f"{width:.0f}%", ha="center", va="center",
                    fontsize=LETTERS - 1, color="white" if white else "black",
                )  # fmt: skip
            left += width
        axes.text(0, row - 0.29, name, fontsize=LETTERS - 1, va="bottom", parse_math=False)
    axes.set(xlim=(0, 100), ylim=(len(runs) - 0.6, -0.75), yticks=[])
    _name(axes, "% of the time", "")
    axes.spines[["left", "right", "top"]].set_visible(False)
    _legend(figure, axes, columns=4)
    return figure


def colour(number: int) -> str:
    """That of the group of this number, on all pictures."""
    return COLOURS[number % len(COLOURS)]


def _colours(groups: Mapping) -> list[str]:
    return [colour(number) for number in range(len(groups))]


def _figure(lines: int) -> tuple[Figure, Axes]:
    """One with room for so many lines below it."""
    figure = Figure(figsize=(WIDTH, HEIGHT + 0.18 * lines), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    return figure, axes


def _name(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=LETTERS)
    axes.set_ylabel(y, fontsize=LETTERS)
    axes.tick_params(labelsize=LETTERS)
    for axis, name in ((axes.xaxis, x), (axes.yaxis, y)):
        if name.startswith("agent steps"):
            axis.set_major_formatter(EngFormatter(sep=""))  # 20k, 1.5M


def _draw(axes: Axes, label: str, runs: Sequence[Series], colour: str) -> None:
    """A group: the mean and the band where all its runs are, each run thinly; a single run as a line."""
    common = band(runs)
    for run in runs:
        axes.plot(run.x, run.y, color=colour, linewidth=0.7 if common else 1.6, alpha=0.45 if common else 1.0)
    told = label if len(runs) == 1 else f"{label} · {len(runs)} runs"
    if common:
        axes.fill_between(common.grid, common.low, common.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(common.grid, common.mean, color=colour, linewidth=2.2)
    axes.plot([], [], color=colour, linewidth=2, label=told)


def _legend(figure: Figure, axes: Axes, columns: int = 1) -> None:
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(handles, labels, loc="outside lower center", ncols=columns, fontsize=LETTERS, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may have two dollar signs
