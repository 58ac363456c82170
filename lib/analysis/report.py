"""Report: runs as one self-contained HTML page with curves, tables, videos and provenance."""

import base64
import math
import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd
from bokeh.embed import components
from bokeh.plotting import figure
from bokeh.resources import Resources

from lib.analysis import comparison, curves, intervals, run_data
from lib.analysis.run_data import Run
from lib.run.curve import picture_title
from lib.run.episodes import WINDOW
from lib.system import files

TEMPLATE = "report.html"

CURVES = (
    f"Mean return of the last {WINDOW} training episodes, from the tenth on. A band is the range of two seeds around "
    f"their mean, or the {intervals.CONFIDENCE:.0%} bootstrap interval of more seeds around their interquartile mean; "
    "a run that has ended keeps its last value. Dots are single episodes, and the dashed line counts as solved. "
    "Diamonds are evaluations without exploration. A click on a name hides or shows its runs; the pointer shows values."
)
MINUTES = "Minutes include the start of each process, and are summed over all processes of a run."
SPEED = "Agent steps per second over the last 1,000 steps, without warm-up, evaluations and videos."
PARTS = (
    "Share of the training time by part of an iteration; rest is the time outside these parts, which is unknown until "
    "a run ends."
)


class Picture(NamedTuple):
    """Figure on the page. Its caption is also its text for screen readers."""

    title: str
    caption: str
    plot: figure


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """Write report.html for runs that each have a finished episode, to a folder that is created if necessary."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # run names and command lines may contain HTML
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    groups = comparison.group_runs(runs)
    swatches = {run: curves.colour_of(number) for number, group in enumerate(groups) for run in group.runs}
    newest = [run.params["sessions"][-1] for run in runs]
    facts = {
        "environment": [run.hyperparameters["env_name"] for run in runs],
        "commit": [session["commit"] for session in newest],
        "machine": [str(session["machine"]) for session in newest],
    }
    pictures = draw_pictures(runs)
    script, places = components([picture.plot for picture in pictures], wrap_script=False, theme=curves.THEME)
    html = environment.get_template(TEMPLATE).render(
        title=picture_title([run.params for run in runs], width=1_000),  # the browser breaks the lines
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        groups=[(group, swatches[group.runs[0]], comparison.summarise(group)) for group in groups],
        names=[(name, swatches[run]) for name, run in zip(comparison.short_names(runs), runs, strict=True)],
        pictures=list(zip(pictures, places, strict=True)),
        scripts=["\n".join(Resources(mode="inline", components=["bokeh"]).js_raw), script],
        nonce=secrets.token_urlsafe(16),  # without it, a browser runs no script
        outcomes=_cells(comparison.outcome_table(runs)),
        differences=_cells(comparison.settings_table(runs)),
        videos=[
            (run.name, video.stem, base64.b64encode(video.read_bytes()).decode())
            for run in runs
            if (video := run_data.best_video(run.path))
        ],
        runs=runs,
        mixed=[name for name, values in facts.items() if len(set(values)) > 1],
        window=WINDOW,
        command=_command,
        settings_of=comparison.settings_of,
    )
    folder.mkdir(parents=True, exist_ok=True)
    files.write(folder / TEMPLATE, html)
    return folder / TEMPLATE


def draw_pictures(runs: Sequence[Run]) -> list[Picture]:
    """Draw all figures for which the runs have data."""
    groups = comparison.group_runs(runs)
    evaluations = _scalars(groups, "evaluation/mean")
    speeds = _scalars(groups, "train/avg_fps", above=0.0)  # PPO writes 0 before its first steps are counted
    times = [
        (f"{group.label}, seed {run.params['seed']}" if len(group.runs) > 1 else group.label, parts)
        for group in groups
        for run in group.runs
        if sum((parts := run.time_by_part()).values()) > 0
    ]
    pictures = [Picture("Return by agent steps", CURVES, curves.draw_returns(groups, "steps", evaluations))]
    if len(groups) > 1:  # the curves of one group would be the same once more
        pictures.append(Picture("Return by minutes", MINUTES, curves.draw_returns(groups, "minutes", {})))
    if speeds:
        pictures.append(Picture("Speed", SPEED, curves.draw_speeds(groups, speeds)))
    if times:
        pictures.append(Picture("Time by part", PARTS, curves.draw_time_shares(times)))
    return pictures


def _scalars(groups: Sequence[comparison.Group], tag: str, above: float = -math.inf) -> dict[str, list[curves.Series]]:
    """Return a scalar of all runs by group label, where it is above a number; {} if no run has it."""
    by_group = {
        group.label: [curves.Series(*run.scalars.get(tag, ([], [])), above=above) for run in group.runs]
        for group in groups
    }
    return by_group if any(len(series.x) for found in by_group.values() for series in found) else {}


def _cells(table: pd.DataFrame) -> dict[str, list[object]]:
    return {"columns": list(table.columns), "rows": table.map(comparison.format_value).to_numpy().tolist()}


def _command(session: Mapping[str, Sequence[object]]) -> str:
    """Return the command line of a process of a run, without names of folders, because a page may be sent to others."""
    return shlex.join(re.sub("(^|=)/.*/", r"\1", str(word)) for word in session["argv"])
