"""Figures of the report: learning curves, speeds and time shares. A group of runs is drawn as a line with a band."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from lib.run.curve import rolling_mean
from lib.run.episodes import WINDOW

GRID_POINTS = 300
WIDTH, HEIGHT = 4.8, 3.3  # inches; two figures fit side by side on a screen, and one fits on a phone
FONT_SIZE = 9
MAX_GROUPS_WITH_DOTS = 4  # with more groups, single episodes would hide the curves
# The first six are from the palette of Okabe and Ito.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b")

PART_COLOURS = {  # parts of an iteration in the order in which they run
    "act": "#56b4e9",
    "environment": "#e69f00",
    "store": "#cc79a7",
    "wait": "#d55e00",
    "sample": "#009e73",
    "learn": "#0072b2",
    "rest": "#bbbbbb",
}
DARK_PARTS = ("learn", "sample", "wait")  # their percentages are written in white
MIN_LABELLED_PERCENT = 8


@dataclasses.dataclass(frozen=True)
class Series:
    """Values of one run, with linear interpolation between them.

    Attributes:
        x: (n,) float64, non-decreasing.
        y: (n,) float64.
    """

    x: np.ndarray
    y: np.ndarray

    @classmethod
    def of(cls, x: pd.Series | Sequence[float], y: pd.Series | Sequence[float]) -> "Series":
        """Build a series from two columns. Values that are not finite are dropped.

        Episodes that end together may be reported out of order. An x below its predecessor is raised to that value.
        """
        positions, values = np.asarray(x, float), np.asarray(y, float)
        finite = np.isfinite(values)
        return cls(np.maximum.accumulate(positions[finite]), values[finite])

    def at(self, grid: np.ndarray) -> np.ndarray:
        """Interpolate at the points of a grid between the first and the last x."""
        values: np.ndarray = np.interp(grid, self.x, self.y)
        return values


@dataclasses.dataclass(frozen=True)
class Band:
    """Mean, lowest and highest value of several runs on a grid, each (points,) float64."""

    grid: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray


def common_band(runs: Sequence[Series], points: int = GRID_POINTS) -> Band | None:
    """Compute the band of several runs over the range of x that all of them cover.

    Args:
        runs: series of one group.
        points: number of grid points.

    Returns:
        The band, or None for fewer than two runs or if no range is common to all.
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


def draw_returns(
    groups: Mapping[str, Sequence[pd.DataFrame]],
    against: str,
    stop_rewards: Sequence[float] = (),
    evaluations: Mapping[str, Sequence[Series]] | None = None,
) -> Figure:
    """Draw mean returns of the last 100 episodes.

    Args:
        groups: episodes of each run by group label.
        against: x axis, "steps" or "minutes".
        stop_rewards: mean returns that count as solved.
        evaluations: mean returns of evaluations against agent steps, by group label.
    """
    figure, axes = _figure(len(groups))
    for number, (label, runs) in enumerate(groups.items()):
        colour = group_colour(number)
        curves = []
        for episodes in runs:
            x = episodes["step"] if against == "steps" else episodes["seconds"] / 60
            curves.append(Series.of(x, rolling_mean(episodes["return"])))
            if len(groups) <= MAX_GROUPS_WITH_DOTS:
                axes.plot(x, episodes["return"], ".", color=colour, markersize=2.5, alpha=0.3, markeredgewidth=0)
        _draw_group(axes, label, curves, colour)
        for points in (evaluations or {}).get(label, ()):
            axes.plot(points.x, points.y, "D", color=colour, markersize=4, markeredgecolor="white", markeredgewidth=0.6)
    for stop_reward in sorted(set(stop_rewards)):
        axes.axhline(stop_reward, color="#555555", linewidth=1, linestyle="--")
    _label_axes(axes, "agent steps" if against == "steps" else "minutes", f"return, mean of the last {WINDOW}")
    _add_legend(figure, axes)
    return figure


def draw_speeds(groups: Mapping[str, Sequence[Series]]) -> Figure:
    """Draw agent steps per second against agent steps.

    Args:
        groups: speeds of each run by group label.
    """
    figure, axes = _figure(len(groups))
    means = []
    for number, (label, runs) in enumerate(groups.items()):
        # PPO writes a speed of 0 before its first steps are counted.
        positive = [Series(run.x[run.y > 0], run.y[run.y > 0]) for run in runs]
        _draw_group(axes, label, positive, group_colour(number))
        means += [run.y.mean() for run in positive if len(run.y)]
    if means and max(means) > 20 * min(means):
        axes.set_yscale("log")  # a linear scale would draw slow runs along the x axis
    else:
        axes.set_ylim(bottom=0)
    _label_axes(axes, "agent steps", "agent steps per second")
    _add_legend(figure, axes)
    return figure


def draw_time_shares(runs: Sequence[tuple[str, Mapping[str, float]]]) -> Figure:
    """Draw how the training time is divided, one bar per run.

    Args:
        runs: name of each run and its time by part, in any unit.
    """
    figure = Figure(figsize=(WIDTH, 1.1 + 0.55 * len(runs)), layout="constrained")
    axes = figure.add_subplot()
    used = {part for _, times in runs for part in times}
    parts = [part for part in PART_COLOURS if part in used] + sorted(used - set(PART_COLOURS))
    for row, (name, times) in enumerate(runs):
        _draw_bar(axes, row, times, parts)
        axes.text(0, row - 0.29, name, fontsize=FONT_SIZE - 1, va="bottom", parse_math=False)
    axes.set(xlim=(0, 100), ylim=(len(runs) - 0.6, -0.75), yticks=[])
    _label_axes(axes, "% of the time", "")
    axes.spines[["left", "right", "top"]].set_visible(False)
    _add_legend(figure, axes, columns=4)
    return figure


def group_colour(number: int) -> str:
    """Return the colour of the n-th group, which is the same in all figures."""
    return COLOURS[number % len(COLOURS)]


def _figure(legend_lines: int) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, HEIGHT + 0.18 * legend_lines), layout="constrained")
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    return figure, axes


def _label_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=FONT_SIZE)
    axes.set_ylabel(y, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE)
    for axis, label in ((axes.xaxis, x), (axes.yaxis, y)):
        if label.startswith("agent steps"):
            axis.set_major_formatter(EngFormatter(sep=""))  # 20k, 1.5M


def _draw_group(axes: Axes, label: str, runs: Sequence[Series], colour: str) -> None:
    """Draw a mean line, a band and thin lines for several runs, or one normal line per run if there is no band."""
    band = common_band(runs)
    for run in runs:
        axes.plot(run.x, run.y, color=colour, linewidth=0.7 if band else 1.6, alpha=0.45 if band else 1.0)
    if band:
        axes.fill_between(band.grid, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(band.grid, band.mean, color=colour, linewidth=2.2)
    legend = label if len(runs) == 1 else f"{label} · {len(runs)} runs"
    axes.plot([], [], color=colour, linewidth=2, label=legend)


def _draw_bar(axes: Axes, row: int, times: Mapping[str, float], parts: Sequence[str]) -> None:
    left, total = 0.0, sum(times.values()) or 1.0
    for part in parts:
        percent = 100 * times.get(part, 0.0) / total
        label = part if row == 0 else "_"  # matplotlib leaves "_" out of the legend
        axes.barh(row, percent, 0.5, left, color=PART_COLOURS.get(part, "#000000"), label=label, edgecolor="white")
        if percent >= MIN_LABELLED_PERCENT:
            colour = "white" if part in DARK_PARTS else "black"
            text = axes.text(left + percent / 2, row, f"{percent:.0f}%", color=colour, ha="center", va="center")
            text.set_fontsize(FONT_SIZE - 1)
        left += percent


def _add_legend(figure: Figure, axes: Axes, columns: int = 1) -> None:
    handles, labels = axes.get_legend_handles_labels()
    legend = figure.legend(
        handles, labels, loc="outside lower center", ncols=columns, fontsize=FONT_SIZE, frameon=False
    )
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may contain dollar signs
