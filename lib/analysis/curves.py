"""Figures of the report: learning curves, speeds and time shares. A group of runs is drawn as a line with a band."""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.analysis import intervals
from lib.analysis.comparison import shorten
from lib.run.curve import rolling_mean, shorten_thousands
from lib.run.episodes import WINDOW

GRID_POINTS = 300
WIDTH, HEIGHT = 4.8, 3.3  # inches; two figures fit side by side on a screen, and one fits on a phone
FONT_SIZE = 9
LINE_LENGTH = 54  # characters of that size in a figure's width
LINE_HEIGHT = 0.18  # inches
MAX_GROUPS_WITH_DOTS = 4  # with more groups, single episodes would hide the curves
# The first six are from the palette of Okabe and Ito.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#9467bd")
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))  # the next one is used each time COLOURS repeats
GOAL_COLOUR = "#808080"
# matplotlib's settings for a page in dark mode. The colours are those of the page, see report.html.
DARK: dict[Any, Any] = {
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "#1d2329"),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), "#e3e8ec"),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), "#9aa6b0"),
}

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
        ended: whether the run has ended, so that its last value also holds beyond the last x.
    """

    x: np.ndarray
    y: np.ndarray
    ended: bool = False

    @classmethod
    def of(cls, x: pd.Series | Sequence[float], y: pd.Series | Sequence[float], ended: bool = False) -> "Series":
        """Build a series from two columns. Values that are not finite are dropped.

        Episodes that end together may be reported out of order. An x below its predecessor is raised to that value.
        """
        positions, values = np.asarray(x, float), np.asarray(y, float)
        finite = np.isfinite(values)
        return cls(np.maximum.accumulate(positions[finite]), values[finite], ended)

    def above_zero(self) -> "Series":
        """Return the series without the values that are not positive."""
        return dataclasses.replace(self, x=self.x[self.y > 0], y=self.y[self.y > 0])

    def at(self, grid: np.ndarray) -> np.ndarray:
        """Interpolate at the points of a grid from the first x on. Beyond the last x, the last value is carried on."""
        values: np.ndarray = np.interp(grid, self.x, self.y)
        return values


@dataclasses.dataclass(frozen=True)
class Band:
    """Centre and range of several runs on a grid, each (points,) float64."""

    grid: np.ndarray
    centre: np.ndarray
    low: np.ndarray
    high: np.ndarray


def common_band(runs: Sequence[Series], points: int = GRID_POINTS) -> Band | None:
    """Compute the band of several runs.

    It begins where the last run begins, and ends at the end of the longest run. If a run has not ended, the band ends
    with that run's data. Two runs have their mean and range. More have their interquartile mean and its confidence
    interval.

    Args:
        runs: series of one group.
        points: number of grid points.

    Returns:
        The band, or None for fewer than two runs or if no range is common to all.
    """
    runs = [run for run in runs if len(run.x)]
    if len(runs) < 2:
        return None
    start = max(run.x[0] for run in runs)
    end = min((run.x[-1] for run in runs if not run.ended), default=max(run.x[-1] for run in runs))
    if start >= end:
        return None
    grid = np.linspace(start, end, points)
    values = np.stack([run.at(grid) for run in runs])
    if len(runs) < intervals.MINIMUM:
        return Band(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0))
    return Band(grid, *intervals.interval(values))


@contextmanager
def theme(dark: bool) -> Iterator[None]:
    """Draw and save figures in the colours of a light or dark page."""
    with matplotlib.rc_context(DARK if dark else {}):
        yield


def draw_returns(
    groups: Mapping[str, Sequence[tuple[pd.DataFrame, bool]]],
    against: str,
    title: str,
    stop_rewards: Sequence[float] = (),
    evaluations: Mapping[str, Sequence[Series]] | None = None,
) -> Figure:
    """Draw mean returns of the last 100 episodes.

    Args:
        groups: episodes of each run, and whether the run has ended, by group label.
        against: x axis, "steps" or "minutes".
        title: title of the figure.
        stop_rewards: mean returns that count as solved.
        evaluations: mean returns of evaluations against agent steps, by group label.
    """
    figure, axes = _figure(title, groups)
    for number, (label, runs) in enumerate(groups.items()):
        colour = group_colour(number)
        curves = []
        for episodes, ended in runs:
            x = episodes["step"] if against == "steps" else episodes["seconds"] / 60
            curve = Series.of(x, rolling_mean(episodes["return"]), ended)
            curves.append(curve)
            if len(groups) <= MAX_GROUPS_WITH_DOTS or not len(curve.x):
                axes.plot(x, episodes["return"], ".", color=colour, markersize=2.5, alpha=0.3, markeredgewidth=0)
        _draw_group(axes, label, curves, number)
        for points in (evaluations or {}).get(label, ()):
            edge = matplotlib.rcParams["axes.facecolor"]
            axes.plot(points.x, points.y, "D", color=colour, markersize=4, markeredgecolor=edge, markeredgewidth=0.6)
    for stop_reward in sorted(set(stop_rewards)):
        axes.axhline(stop_reward, color=GOAL_COLOUR, linewidth=1, linestyle="--")
    _label_axes(axes, "agent steps" if against == "steps" else "minutes", f"return, mean of the last {WINDOW}")
    _add_legend(figure, axes)
    return figure


def draw_speeds(groups: Mapping[str, Sequence[Series]], title: str) -> Figure:
    """Draw agent steps per second against agent steps.

    Args:
        groups: speeds of each run, above zero, by group label.
        title: title of the figure.
    """
    figure, axes = _figure(title, groups)
    for number, (label, runs) in enumerate(groups.items()):
        if runs:
            _draw_group(axes, label, runs, number)
    means = [run.y.mean() for runs in groups.values() for run in runs if len(run.y)]
    if means and max(means) > 20 * min(means):
        axes.set_yscale("log")  # a linear scale would draw slow runs along the x axis
    else:
        axes.set_ylim(bottom=0)
    _label_axes(axes, "agent steps", "agent steps per second")
    _add_legend(figure, axes)
    return figure


def draw_time_shares(runs: Sequence[tuple[str, Mapping[str, float]]], title: str) -> Figure:
    """Draw how the training time is divided, one bar per run.

    Args:
        runs: name of each run and its time by part, in any unit.
        title: title of the figure.
    """
    height = 1.5 + 0.55 * len(runs) + LINE_HEIGHT * _wrap(title).count("\n")
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    _add_title(figure, title)
    axes = figure.add_subplot()
    used = {part for _, times in runs for part in times}
    parts = [part for part in PART_COLOURS if part in used] + sorted(used - set(PART_COLOURS))
    for row, (name, times) in enumerate(runs):
        _draw_bar(axes, row, times, parts)
        axes.text(
            0,
            row - 0.29,
            shorten(name, LINE_LENGTH),
            fontsize=FONT_SIZE - 1,
            va="bottom",
            parse_math=False,
        )
    axes.set(xlim=(0, 100), ylim=(len(runs) - 0.6, -0.75), yticks=[])
    _label_axes(axes, "% of the time", "")
    axes.spines[["left", "right", "top"]].set_visible(False)
    _add_legend(figure, axes, columns=4)
    return figure


def group_colour(number: int) -> str:
    """Return the colour of a group, the same in all figures. Colours repeat, with another line style."""
    return COLOURS[number % len(COLOURS)]


def _style_number(number: int) -> int:
    """Return the index in STYLES of a group's line style."""
    return number // len(COLOURS) % len(STYLES)


def swatch(number: int) -> str:
    """Return the CSS background that stands for a group on a page: its colour, striped if the colour repeats."""
    colour, style = group_colour(number), _style_number(number)
    if style == 0:
        return colour
    return f"repeating-linear-gradient(90deg, {colour} 0 {len(STYLES) - style}px, transparent 0 {len(STYLES) + 1}px)"


def _figure(title: str, labels: Iterable[str]) -> tuple[Figure, Axes]:
    lines = sum(_wrap(text).count("\n") + 1 for text in (title, *labels))
    figure = Figure(figsize=(WIDTH, HEIGHT + LINE_HEIGHT * lines), layout="constrained")
    _add_title(figure, title)
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    return figure, axes


def _wrap(text: str) -> str:
    return textwrap.fill(text, LINE_LENGTH)


def _add_title(figure: Figure, title: str) -> None:
    figure.suptitle(_wrap(title), fontsize=FONT_SIZE, parse_math=False)


def _label_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=FONT_SIZE)
    axes.set_ylabel(y, fontsize=FONT_SIZE)
    axes.tick_params(labelsize=FONT_SIZE)
    for axis, label in ((axes.xaxis, x), (axes.yaxis, y)):
        if label.startswith("agent steps"):
            shorten_thousands(axis)


def _draw_group(axes: Axes, label: str, runs: Sequence[Series], number: int) -> None:
    """Draw the centre, a band and thin lines for several runs, or one normal line per run if there is no band."""
    shown = sum(len(run.x) > 0 for run in runs)  # others have too few episodes for a mean
    band = common_band(runs)
    line: Any = {"color": group_colour(number), "linestyle": STYLES[_style_number(number)]}
    for run in runs:
        axes.plot(run.x, run.y, **line, linewidth=0.7 if band else 1.6, alpha=0.45 if band else 1.0)
    if band:
        axes.fill_between(band.grid, band.low, band.high, color=group_colour(number), alpha=0.2, linewidth=0)
        axes.plot(band.grid, band.centre, **line, linewidth=2.2)
    count = f"{shown} of {len(runs)}" if shown < len(runs) else f"{shown}"
    legend = label if len(runs) == 1 else f"{label} · {count} runs"
    axes.plot([], [], **line, linewidth=2, label=legend)


def _draw_bar(axes: Axes, row: int, times: Mapping[str, float], parts: Sequence[str]) -> None:
    left, total = 0.0, sum(times.values())
    edge = matplotlib.rcParams["axes.facecolor"]
    for part in parts:
        percent = 100 * times.get(part, 0.0) / total
        label = part if row == 0 else "_"  # matplotlib leaves "_" out of the legend
        axes.barh(row, percent, 0.5, left, color=PART_COLOURS.get(part, "#000000"), label=label, edgecolor=edge)
        if percent >= MIN_LABELLED_PERCENT:
            colour = "white" if part in DARK_PARTS else "black"
            text = axes.text(left + percent / 2, row, f"{percent:.0f}%", color=colour, ha="center", va="center")
            text.set_fontsize(FONT_SIZE - 1)
        left += percent


def _add_legend(figure: Figure, axes: Axes, columns: int = 1) -> None:
    handles, labels = axes.get_legend_handles_labels()
    lines = [_wrap(label) for label in labels]
    legend = figure.legend(handles, lines, loc="outside lower center", ncols=columns, fontsize=FONT_SIZE, frameon=False)
    for text in legend.get_texts():
        text.set_parse_math(False)  # a name may contain dollar signs
