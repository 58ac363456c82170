"""Report: runs as one self-contained HTML page with curves, tables, videos and provenance."""

import base64
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import jinja2
import pandas as pd

from lib.analysis import comparison, curves, intervals, run_data
from lib.analysis.run_data import Run
from lib.run.curve import picture_title
from lib.run.episodes import WINDOW
from lib.system import files
from lib.system.log import without_folder

TEMPLATE = "report.html"
MAX_TITLE = 1_000  # characters; the browser breaks the lines
VIDEOS_PER_RUN = 3
MAX_VIDEO_BYTES = 25_000_000  # total size of the videos in a page

CURVES = (
    f"Mean return of the last {WINDOW} training episodes, from the tenth on. A band is the range of two seeds around "
    f"their mean, or the {intervals.CONFIDENCE:.0%} bootstrap interval of more seeds around their interquartile mean; "
    "a run that has ended keeps its last value. Dots are single episodes, and the dashed line counts as solved."
)
EVALUATIONS = "Diamonds are evaluations without exploration."
MINUTES = "Minutes include the start of each process, and are summed over all processes of a run."
SPEED = "Agent steps per second over the last 1,000 steps, without warm-up, evaluations and videos."
PARTS = (
    "Share of the training time by part of an iteration; rest is the time outside these parts, which is unknown until "
    "a run ends."
)


class Picture(NamedTuple):
    """Figure on the page. Its caption is also its text for screen readers."""

    name: str  # of its file, report-NAME.png
    title: str
    caption: str
    png: bytes


class Video(NamedTuple):
    """Video of an episode. It has no address (data URI) if it is too large for the page."""

    run: str
    path: Path  # relative to the folder of the runs
    uri: str | None


def write_report(runs: Sequence[Run], folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write report.html for runs that each have a finished episode, and its figures as report-*.png beside it.

    The folder is created if necessary. `notes` are lines at the top of the page. Return the path of the page.
    """
    pictures = draw_pictures(runs)
    html = render_page(runs, pictures, notes)
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("report-*.png"):
        earlier.unlink()
    for picture in pictures:
        files.write(folder / f"report-{picture.name}.png", picture.png)
    files.write(folder / TEMPLATE, html)
    return folder / TEMPLATE


def render_page(runs: Sequence[Run], pictures: Sequence[Picture], notes: Sequence[str] = ()) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # run names and command lines may contain HTML
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    groups = comparison.group_runs(runs)
    swatches = {run: curves.swatch(number) for number, group in enumerate(groups) for run in group.runs}
    newest = [run.params["sessions"][-1] for run in runs]
    facts = {
        "environment": [run.hyperparameters["env_name"] for run in runs],
        "commit": [session["commit"] for session in newest],
        "machine": [str(session["machine"]) for session in newest],
    }
    return environment.get_template(TEMPLATE).render(
        title=_title(runs),
        notes=notes,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        groups=[(group, swatches[group.runs[0]], comparison.summarise(group)) for group in groups],
        names=[(name, swatches[run]) for name, run in zip(comparison.short_names(runs), runs, strict=True)],
        pictures=pictures,
        outcomes=_cells(comparison.outcome_table(runs)),
        differences=_cells(comparison.settings_table(runs)),
        videos=choose_videos(runs),
        runs=runs,
        mixed=[name for name, values in facts.items() if len(set(values)) > 1],
        window=WINDOW,
        data_uri=_data_uri,
        command=_command,
        settings_of=comparison.settings_of,
    )


def draw_pictures(runs: Sequence[Run]) -> list[Picture]:
    """Draw all figures for which the runs have data."""
    title = _title(runs)
    groups = comparison.group_runs(runs)
    evaluations = _scalars(groups, "evaluation/mean")
    speeds = _scalars(groups, "train/avg_fps", above=0.0)  # PPO writes 0 before its first steps are counted
    times = [
        (f"{group.label}, seed {run.params['seed']}" if len(group.runs) > 1 else group.label, parts)
        for group in groups
        for run in group.runs
        if sum((parts := run.time_by_part()).values()) > 0
    ]
    returns = curves.draw_png(curves.draw_returns, groups, "steps", title, evaluations)
    caption = f"{CURVES} {EVALUATIONS if evaluations else ''}"
    pictures = [Picture("steps", "Return by agent steps", caption, returns)]
    if len(groups) > 1:  # the curves of one group would be the same once more
        returns = curves.draw_png(curves.draw_returns, groups, "minutes", title)
        pictures.append(Picture("minutes", "Return by minutes", f"{CURVES} {MINUTES}", returns))
    if speeds:
        pictures.append(Picture("speed", "Speed", SPEED, curves.draw_png(curves.draw_speeds, speeds, title)))
    if times:
        shares = curves.draw_png(curves.draw_time_shares, times, title)
        pictures.append(Picture("parts", "Time by part", PARTS, shares))
    return pictures


def choose_videos(runs: Sequence[Run]) -> list[Video]:
    """Choose the best and the newest videos of each run. Videos beyond a total of MAX_VIDEO_BYTES have no URI."""
    chosen = [
        (run, rank, file) for run in runs for rank, file in enumerate(run_data.list_videos(run.path)[:VIDEOS_PER_RUN])
    ]
    room = MAX_VIDEO_BYTES
    uris: dict[Path, str] = {}
    for _, _, file in sorted(chosen, key=lambda video: video[1]):  # the best video of every run comes first
        size = file.stat().st_size
        if size <= room:
            room -= size
            uris[file] = _data_uri("video/webm", file.read_bytes())
    return [Video(run.name, file.relative_to(run.path.parent), uris.get(file)) for run, _, file in chosen]


def _title(runs: Sequence[Run]) -> str:
    return picture_title([run.params for run in runs], MAX_TITLE)


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _scalars(
    groups: Sequence[comparison.Group], tag: str, above: float = float("-inf")
) -> dict[str, list[curves.Series]]:
    """Return a scalar of all runs by group label, where it is above a number; {} if no run has it."""
    by_group = {}
    for group in groups:
        found = [curves.Series.of(*run.scalars[tag], above=above) for run in group.runs if tag in run.scalars]
        by_group[group.label] = [series for series in found if len(series.x)]
    return by_group if any(by_group.values()) else {}


def _cells(table: pd.DataFrame) -> dict[str, list[object]]:
    return {"columns": list(table.columns), "rows": table.map(comparison.format_value).to_numpy().tolist()}


def _command(session: Mapping[str, Sequence[object]]) -> str:
    """Return the command line of a process of a run, without names of folders, because a page may be sent to others."""
    return shlex.join(without_folder(str(word)) for word in session["argv"])
