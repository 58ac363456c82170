"""Figures of the report: learning curves, speeds and time shares. A group of runs is drawn as a line with a band."""

import dataclasses
import io
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ParamSpec, TypeAlias

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lib.analysis import intervals
from lib.analysis.comparison import Group, shorten
from lib.run.curve import rolling_mean, shorten_thousands
from lib.run.episodes import WINDOW

DPI = 200
WIDTH, HEIGHT = 4.8, 3.3  # inches; two figures fit side by side on a screen, and one fits on a phone
LINE_LENGTH = 54  # characters in a figure's width
LINE_HEIGHT = 0.18  # inches
MAX_GROUPS_WITH_DOTS = 4  # with more groups, single episodes would hide the curves
# The first six are from the palette of Okabe and Ito.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#9467bd")
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))  # the next one is used each time COLOURS repeats
INK = "#78818a"  # of texts, axes and goals; its contrast to a white page and to a dark one is 4:1
SETTINGS: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("font.size", "figure.titlesize"), 9),
    "text.parse_math": False,  # a name may contain dollar signs
    "savefig.transparent": True,
}
PARTS = ("act", "environment", "store", "wait", "sample", "learn", "rest")  # of an iteration, in their order
MIN_LABELLED_PERCENT = 8

Column: TypeAlias = pd.Series | Sequence[float]
P = ParamSpec("P")


def draw_png(draw: Callable[P, Figure], *args: P.args, **kwargs: P.kwargs) -> bytes:
    """Return the figure of a function of this module as a PNG file, readable on a light and on a dark page."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(SETTINGS):
        draw(*args, **kwargs).savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


@dataclasses.dataclass(frozen=True)
class Series:
    """Values of one run."""

    x: np.ndarray  # (n,) float64, non-decreasing
    y: np.ndarray  # (n,) float64
    ended: bool = False  # whether the run has ended, so that its last value also holds beyond the last x

    @classmethod
    def of(cls, x: Column, y: Column, ended: bool = False, above: float = -math.inf) -> "Series":
        """Build a series from two columns. Values that are not finite, or not above `above`, are dropped.

        Episodes that end together may be reported out of order. An x below its predecessor is raised to that value.
        """
        positions, values = np.asarray(x, float), np.asarray(y, float)
        kept = np.isfinite(values) & (values > above)
        return cls(np.maximum.accumulate(positions[kept]), values[kept], ended)


def common_band(runs: Sequence[Series], points: int = 300) -> tuple[np.ndarray, intervals.Interval] | None:
    """Return a grid, (points,), and the interval of several runs there; None if they have no range in common.

    It begins where the last run begins, and ends with the longest run, or with the data of the shortest unfinished one.
    """
    runs = [run for run in runs if len(run.x)]
    if len(runs) < 2:
        return None
    start = max(run.x[0] for run in runs)
    end = min((run.x[-1] for run in runs if not run.ended), default=max(run.x[-1] for run in runs))
    if start >= end:
        return None
    grid = np.linspace(start, end, points)
    return grid, intervals.interval(np.stack([np.interp(grid, run.x, run.y) for run in runs]))


def draw_returns(
    groups: Sequence[Group], against: str, title: str, evaluations: Mapping[str, Sequence[Series]] | None = None
) -> Figure:
    """Draw mean returns of the last 100 episodes against "steps" or "minutes", and those that count as solved.

    `evaluations` are mean returns of evaluations against agent steps, by group label.
    """
    figure, axes = _figure(title, [group.label for group in groups])
    for number, group in enumerate(groups):
        colour, _ = _style(number)
        curves = []
        for run in group.runs:
            episodes = run.episodes
            x = episodes["step"] if against == "steps" else episodes["seconds"] / 60
            curve = Series.of(x, rolling_mean(episodes["return"]), run.has_ended)
            curves.append(curve)
            if len(groups) <= MAX_GROUPS_WITH_DOTS or not len(curve.x):
                axes.plot(x, episodes["return"], ".", color=colour, markersize=2.5, alpha=0.3, markeredgewidth=0)
        _draw_group(axes, group.label, curves, number)
        for points in (evaluations or {}).get(group.label, ()):
            axes.plot(points.x, points.y, "D", color=colour, markersize=4, markeredgewidth=0)
    goals: set[Any] = {run.hyperparameters.get("stop_reward") for group in groups for run in group.runs}
    for goal in goals - {None}:
        axes.axhline(goal, color=INK, linewidth=1, linestyle="--")
    axes.set(xlabel="agent steps" if against == "steps" else "minutes", ylabel=f"return, mean of the last {WINDOW}")
    if against == "steps":
        shorten_thousands(axes.xaxis)
    _add_legend(figure, axes)
    return figure


def draw_speeds(groups: Mapping[str, Sequence[Series]], title: str) -> Figure:
    """Draw agent steps per second against agent steps, given the speeds of each run, above zero, by group label."""
    figure, axes = _figure(title, groups)
    for number, (label, runs) in enumerate(groups.items()):
        if runs:
            _draw_group(axes, label, runs, number)
    means = [run.y.mean() for runs in groups.values() for run in runs if len(run.y)]
    if means and max(means) > 20 * min(means):
        axes.set_yscale("log")  # a linear scale would draw slow runs along the x axis
    else:
        axes.set_ylim(bottom=0)
    axes.set(xlabel="agent steps", ylabel="agent steps per second")
    shorten_thousands(axes.xaxis)
    shorten_thousands(axes.yaxis)
    _add_legend(figure, axes)
    return figure


def draw_time_shares(runs: Sequence[tuple[str, Mapping[str, float]]], title: str) -> Figure:
    """Draw how the training time is divided, one bar per run, given names and times by part, in any unit."""
    figure, axes = _figure(title, ())
    figure.set_figheight(1.5 + 0.55 * len(runs) + LINE_HEIGHT * _wrap(title).count("\n"))
    left = np.zeros(len(runs))
    for colour, part in zip(COLOURS, PARTS, strict=False):
        percents = np.array([100 * times.get(part, 0.0) / sum(times.values()) for _, times in runs])
        if not percents.any():
            continue
        bars = axes.barh(range(len(runs)), percents, 0.5, left, color=colour, label=part)
        labels = [f"{percent:.0f}%" if percent >= MIN_LABELLED_PERCENT else "" for percent in percents]
        axes.bar_label(bars, labels, label_type="center", color="black", fontsize="small")
        left += percents
    for row, (name, _) in enumerate(runs):
        axes.text(0, row - 0.29, shorten(name, LINE_LENGTH), fontsize="small", va="bottom")
    axes.set(xlim=(0, 100), ylim=(len(runs) - 0.6, -0.75), yticks=[], xlabel="% of the time")
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    _add_legend(figure, axes, columns=4)
    return figure


def swatch(number: int) -> str:
    """Return the CSS background that stands for a group on a page: its colour, striped if the colour repeats."""
    colour, style = _style(number)
    if style == 0:
        return colour
    return f"repeating-linear-gradient(90deg, {colour} 0 {len(STYLES) - style}px, transparent 0 {len(STYLES) + 1}px)"


def _style(number: int) -> tuple[str, int]:
    """Return a group's colour and the index of its line style, which are the same in all figures."""
    repeated, colour = divmod(number, len(COLOURS))
    return COLOURS[colour], repeated % len(STYLES)


def _figure(title: str, labels: Iterable[str]) -> tuple[Figure, Axes]:
    lines = sum(_wrap(text).count("\n") + 1 for text in (title, *labels))
    figure = Figure(figsize=(WIDTH, HEIGHT + LINE_HEIGHT * lines), layout="constrained")
    figure.suptitle(_wrap(title))
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    axes.spines[["right", "top"]].set_visible(False)
    return figure, axes


def _wrap(text: str) -> str:
    return textwrap.fill(text, LINE_LENGTH)


def _draw_group(axes: Axes, label: str, runs: Sequence[Series], number: int) -> None:
    """Draw the centre, a band and thin lines for several runs, or one normal line per run if there is no band."""
    shown = sum(len(run.x) > 0 for run in runs)  # others have too few episodes for a mean
    common = common_band(runs)
    colour, style = _style(number)
    draw = partial(axes.plot, color=colour, linestyle=STYLES[style])
    for run in runs:
        draw(run.x, run.y, linewidth=0.7 if common else 1.6, alpha=0.45 if common else 1.0)
    if common:
        grid, band = common
        axes.fill_between(grid, band.low, band.high, color=colour, alpha=0.2, linewidth=0)
        draw(grid, band.centre, linewidth=2.2)
    count = f"{shown} of {len(runs)}" if shown < len(runs) else f"{shown}"
    draw([], [], linewidth=2, label=label if len(runs) == 1 else f"{label} · {count} runs")


def _add_legend(figure: Figure, axes: Axes, columns: int = 1) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, list(map(_wrap, labels)), loc="outside lower center", ncols=columns, frameon=False)
