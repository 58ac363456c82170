"""Figures of the report: learning curves, speeds and time by part. A group of runs is drawn as a line with a band."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from bokeh.models import DataRange1d, HoverTool, NumeralTickFormatter
from bokeh.models.annotations import Legend
from bokeh.plotting import figure
from bokeh.themes import Theme
from numpy.typing import ArrayLike

from lib.analysis import intervals
from lib.analysis.comparison import Group, shorten
from lib.run.curve import rolling_mean
from lib.run.episodes import WINDOW

MAX_POINTS = 2_000  # of a run in a figure
MAX_GROUPS_WITH_DOTS = 4  # with more groups, single episodes would hide the curves
# Of the groups, which share them if there are more. The first six are from the palette of Okabe and Ito.
COLOURS = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#9467bd"),
    *("#8c564b", "#bcbd22", "#17becf", "#e377c2", "#4b7a1e", "#b2182b", "#5254a3", "#a6761d"),
)
INK = "#78818a"  # of texts, axes and goals; its contrast to a white page and to a dark one is 4:1
PARTS = ("act", "environment", "store", "wait", "sample", "learn", "rest")  # of an iteration, in their order
MIN_LABELLED_PERCENT = 8
MAX_NAME = 54  # characters in a figure's width
FONT = "system-ui"
THEME = Theme(
    json={
        "attrs": {
            "Plot": {"background_fill_color": None, "border_fill_color": None, "outline_line_color": None},
            "Axis": {
                **dict.fromkeys(("axis_line_color", "major_tick_line_color", "major_label_text_color"), INK),
                **dict.fromkeys(("axis_label_text_font", "major_label_text_font"), FONT),
                "axis_label_text_color": INK,
                "axis_label_text_font_style": "normal",
                "minor_tick_line_color": None,
            },
            "Grid": {"grid_line_color": INK, "grid_line_alpha": 0.2},
            "Legend": {
                **dict.fromkeys(("background_fill_color", "border_line_color")),
                "label_text_color": INK,
                "label_text_font": FONT,
                "label_text_font_size": "12px",
            },
            "Text": {"text_font": {"value": FONT}, "text_font_size": "12px"},
        }
    }
)


class Series:
    """Values of one run: x, (n,) float64, non-decreasing, and y, (n,) float64.

    Values that are not finite, or not above `above`, are dropped. Episodes that end together may be reported out of
    order. An x below its predecessor is raised to that value. If a run has `ended`, its last value also holds later.
    """

    def __init__(self, x: ArrayLike, y: ArrayLike, ended: bool = False, above: float = -math.inf):
        positions, values = np.asarray(x, float), np.asarray(y, float)
        kept = np.isfinite(values) & (values > above)
        self.x, self.y, self.ended = np.maximum.accumulate(positions[kept]), values[kept], ended


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


def draw_returns(groups: Sequence[Group], against: str, evaluations: Mapping[str, Sequence[Series]]) -> figure:
    """Draw mean returns of the last 100 episodes against "steps" or "minutes", and those that count as solved.

    `evaluations` are mean returns of evaluations against agent steps, by group label.
    """
    plot = _figure("agent steps" if against == "steps" else "minutes", f"return, mean of the last {WINDOW}")
    for number, group in enumerate(groups):
        curves = []
        for run in group.runs:
            episodes = run.episodes
            x = episodes["step"] if against == "steps" else episodes["seconds"] / 60
            curves.append(Series(x, rolling_mean(episodes["return"]), run.has_ended))
            if len(groups) <= MAX_GROUPS_WITH_DOTS or not len(curves[-1].x):
                _draw_dots(plot, group, number, Series(x, episodes["return"]), size=2.5, alpha=0.4)
        _draw_group(plot, group, number, curves)
        for points in evaluations.get(group.label, ()):
            _draw_dots(plot, group, number, points, size=8, marker="diamond")
    goals: set[Any] = {run.hyperparameters.get("stop_reward") for group in groups for run in group.runs}
    for goal in goals - {None}:
        plot.hspan(goal, line_color=INK, line_dash="dashed")
    return plot


def draw_speeds(groups: Sequence[Group], speeds: Mapping[str, Sequence[Series]]) -> figure:
    """Draw agent steps per second against agent steps, given the speeds of each run, above zero, by group label."""
    means = [run.y.mean() for runs in speeds.values() for run in runs if len(run.y)]
    # A linear scale would draw slow runs along the x axis.
    scale = {"y_axis_type": "log"} if max(means) > 20 * min(means) else {"y_range": DataRange1d(start=0)}
    plot = _figure("agent steps", "agent steps per second", **scale)
    for number, group in enumerate(groups):
        _draw_group(plot, group, number, speeds[group.label])
    plot.yaxis.formatter = NumeralTickFormatter(format="0.[0]a")
    return plot


def draw_time_shares(runs: Sequence[tuple[str, Mapping[str, float]]]) -> figure:
    """Draw how the training time is divided, one bar per run, given names and times by part, in any unit."""
    rows = np.arange(len(runs))
    plot = _figure("% of the time", "", x_range=(0, 100), y_range=(len(runs) - 0.5, -0.75))
    plot.height = 130 + 60 * len(runs)
    plot.yaxis.visible = plot.ygrid.visible = False
    plot.legend.orientation = "horizontal"
    left = np.zeros(len(runs))
    for colour, part in zip(COLOURS, PARTS, strict=False):
        percents = np.array([100 * times.get(part, 0.0) / sum(times.values()) for _, times in runs])
        if not percents.any():
            continue
        data = {"y": rows, "left": left, "right": left + percents, "centre": left + percents / 2, "percent": percents}
        data["label"] = [f"{percent:.0f}%" if percent >= MIN_LABELLED_PERCENT else "" for percent in percents]
        bars = plot.hbar(
            "y", height=0.5, left="left", right="right", color=colour, name=part, legend_label=part, source=data
        )
        plot.text("centre", "y", "label", text_align="center", text_baseline="middle", source=data)
        plot.add_tools(HoverTool(renderers=[bars], tooltips=[(part, "@percent{0.0} %")], visible=False))
        left = left + percents
    names = [shorten(name, MAX_NAME) for name, _ in runs]
    plot.text(np.zeros(len(runs)), rows - 0.29, names, text_baseline="bottom", text_color=INK)
    return plot


def colour_of(number: int) -> str:
    """Return a group's colour, which is the same in all figures and on the page."""
    return COLOURS[number % len(COLOURS)]


def _figure(x: str, y: str, **options: Any) -> figure:
    """Return an empty figure with a legend, as wide as its place on the page."""
    options |= {"tools": "pan,box_zoom,reset,save", "toolbar_location": "above"}
    plot = figure(height=380, sizing_mode="stretch_width", x_axis_label=x, y_axis_label=y, **options)
    plot.toolbar.logo = None
    plot.xaxis.formatter = NumeralTickFormatter(format="0.[0]a")
    plot.add_layout(Legend(click_policy="hide"), "below")
    return plot


def _thinned(series: Series) -> dict[str, np.ndarray]:
    """Return at most MAX_POINTS of a run's points, at equal distances, with the last."""
    kept = np.unique(np.linspace(0, len(series.x) - 1, min(len(series.x), MAX_POINTS)).round().astype(int))
    return {"x": series.x[kept], "y": series.y[kept]}


def _draw_dots(
    plot: figure, group: Group, number: int, points: Series, size: float, marker: str = "circle", alpha: float = 1.0
) -> None:
    style: Any = {"fill_color": colour_of(number), "line_color": None, "legend_label": _label(group)}
    plot.scatter("x", "y", source=_thinned(points), size=size, marker=marker, fill_alpha=alpha, **style)


def _draw_group(plot: figure, group: Group, number: int, runs: Sequence[Series]) -> None:
    """Draw the centre, a band and thin lines for several runs, or one normal line per run if there is no band."""
    common = common_band(runs)
    colour = colour_of(number)
    style: Any = {"line_color": colour, "legend_label": _label(group)}
    lines: list[Any] = []
    for run, series in zip(group.runs, runs, strict=True):
        name = f"{group.label}, seed {run.params['seed']}"
        width, alpha = (0.7, 0.45) if common else (1.6, 1.0)
        data = _thinned(series)
        lines.append(plot.line("x", "y", source=data, name=name, line_width=width, line_alpha=alpha, **style))
    if common:
        grid, band = common
        plot.varea(grid, band.low, band.high, color=colour, alpha=0.2, legend_label=_label(group))
        lines.append(plot.line(grid, band.centre, name=f"{group.label}, centre", line_width=2.2, **style))
    values = [
        ("run", "$name"),
        (f"{plot.xaxis.axis_label}", "@x{0,0.[0]}"),
        (f"{plot.yaxis.axis_label}", "@y{0,0.[00]}"),
    ]
    plot.add_tools(HoverTool(renderers=lines, tooltips=values, visible=False))


def _label(group: Group) -> str:
    return group.label if len(group.runs) == 1 else f"{group.label} · {len(group.runs)} runs"
