"""Report: runs as one self-contained HTML page with curves, tables, videos and provenance."""

import base64
import dataclasses
import io
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from lib.analysis import comparison, curves, intervals, run_data
from lib.analysis.run_data import Run
from lib.errors import UsageError
from lib.run.curve import picture_title
from lib.run.episodes import WINDOW
from lib.system import files
from lib.system.log import without_folder

TEMPLATE = "report.html"
PICTURES = ("steps", "minutes", "speed", "parts")
DPI = 200
MAX_TITLE = 1_000  # characters; the browser breaks the lines
VIDEOS_PER_RUN = 3
MAX_VIDEO_BYTES = 25_000_000  # total size of the videos in a page


@dataclasses.dataclass(frozen=True)
class Picture:
    """Figure on the page.

    Attributes:
        file: name of the PNG file beside the page.
        title: heading.
        caption: description, also shown to readers who cannot see the figure.
        png: content of the file.
        dark: the same picture for a page in dark mode.
    """

    file: str
    title: str
    caption: str
    png: bytes
    dark: bytes

    @property
    def uri(self) -> str:
        return _data_uri("image/png", self.png)

    @property
    def dark_uri(self) -> str:
        return _data_uri("image/png", self.dark)


@dataclasses.dataclass(frozen=True)
class Video:
    """Video of an episode.

    Attributes:
        run: name of the run.
        caption: return and number of the episode.
        path: file, relative to the folder of the runs.
        uri: content of the file, or None if it is too large for the page.
    """

    run: str
    caption: str
    path: Path
    uri: str | None


def write_report(runs: Sequence[Run], folder: Path, notes: Sequence[str] = ()) -> Path:
    """Write report.html for some runs, and its figures as report-*.png beside it.

    Args:
        runs: runs, each with a finished episode.
        folder: output folder. It is created if necessary.
        notes: lines to show at the top of the page.

    Returns:
        Path of the page.

    Raises:
        UsageError: if a run has damaged files, or if the folder cannot be written to or has a report.html of another
            program.
    """
    _require_replaceable(folder / TEMPLATE)
    pictures = draw_pictures(runs)
    html = render_page(runs, pictures, notes)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        new = {folder / each.file: each.png for each in pictures}
        for path, picture in new.items():
            files.write(path, picture)
        files.write(folder / TEMPLATE, html)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written ({error.strerror}); make room, or give another --output"
        ) from error
    for old in {folder / f"report-{name}.png" for name in PICTURES} - set(new):
        with suppress(OSError):
            old.unlink()
    return folder / TEMPLATE


def _require_replaceable(page: Path) -> None:
    """Refuse to replace a page that report.py did not write."""
    if page.is_file() and '<section id="outcomes">' not in page.read_text(encoding="utf-8", errors="replace"):
        raise UsageError(f"{page} was not written by report.py; move it, or give another --output")


def render_page(runs: Sequence[Run], pictures: Sequence[Picture], notes: Sequence[str] = ()) -> str:
    """Return the HTML of the page."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # run names and command lines may contain HTML
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    groups = comparison.group_runs(runs)
    swatches = {run: curves.swatch(number) for number, group in enumerate(groups) for run in group.runs}
    provenance = [_provenance(run) for run in runs]
    return environment.get_template(TEMPLATE).render(
        title=_title(runs),
        notes=notes,
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        groups=[(group, swatches[group.runs[0]], comparison.summarise(group)) for group in groups],
        runs=[(name, swatches[run]) for name, run in zip(comparison.short_names(runs), runs, strict=True)],
        pictures=pictures,
        missing=_missing_data(pictures),
        outcomes=_cells(comparison.outcome_table(runs)),
        differences=_cells(comparison.settings_table(runs)),
        videos=choose_videos(runs),
        provenance=provenance,
        mixed=[
            name for name in ("environment", "commit", "machine") if len({str(run[name]) for run in provenance}) > 1
        ],
        window=WINDOW,
    )


def draw_pictures(runs: Sequence[Run]) -> list[Picture]:
    """Draw all figures for which the runs have data."""
    title = _title(runs)
    groups = comparison.group_runs(runs)
    pictures = _return_pictures(groups, _series_by_group(groups, "evaluation/mean"), title)
    # PPO writes a speed of 0 before its first steps are counted.
    speeds = _series_by_group(groups, "train/avg_fps", curves.Series.above_zero)
    if speeds:
        caption = "Agent steps per second over the last 1,000 steps, without warm-up, evaluations and videos."
        pictures.append(_picture("speed", "Speed", caption, lambda: curves.draw_speeds(speeds, title)))
    times = [(name, run.time_by_part()) for name, run in _short_names(groups)]
    times = [(name, parts) for name, parts in times if sum(parts.values()) > 0]
    if times:
        caption = (
            "Share of the training time by part of an iteration; rest is the time outside these parts, which is "
            "unknown until a run ends."
        )
        pictures.append(_picture("parts", "Time by part", caption, lambda: curves.draw_time_shares(times, title)))
    return pictures


def _title(runs: Sequence[Run]) -> str:
    return picture_title([run.params for run in runs], MAX_TITLE)


def choose_videos(runs: Sequence[Run]) -> list[Video]:
    """Choose the best and the newest videos of each run. Videos beyond a total of MAX_VIDEO_BYTES have no URI."""
    chosen = {run: run_data.list_videos(run.path)[:VIDEOS_PER_RUN] for run in runs}
    room = MAX_VIDEO_BYTES
    uris: dict[Path, str] = {}
    for rank in range(VIDEOS_PER_RUN):  # the best video of every run comes before any run's second-best
        for videos in chosen.values():
            for file in videos[rank : rank + 1]:
                size = file.stat().st_size
                if size <= room:
                    room -= size
                    uris[file] = _data_uri("video/webm", file.read_bytes())
    return [
        Video(run.name, _video_caption(file), file.relative_to(run.path.parent), uris.get(file))
        for run, videos in chosen.items()
        for file in videos
    ]


def _return_pictures(
    groups: Sequence[comparison.Group], evaluations: Mapping[str, Sequence[curves.Series]], title: str
) -> list[Picture]:
    episodes = {group.label: [(run.episodes, run.has_ended) for run in group.runs] for group in groups}
    stop_rewards = [run.hyperparameters.get("stop_reward") for group in groups for run in group.runs]
    bounds = [float(bound) for bound in stop_rewards if isinstance(bound, int | float)]
    caption = f"Mean return of the last {WINDOW} training episodes, from the tenth on"
    sizes = {len(group.runs) for group in groups}
    if 2 in sizes:
        caption += "; for two seeds, their mean and a band from the lower to the higher"
    if max(sizes) >= intervals.MINIMUM:
        caption += (
            f"; for several seeds, their interquartile mean and its {intervals.CONFIDENCE:.0%} bootstrap interval"
        )
    if max(sizes) > 1:
        caption += "; a run that has ended keeps its last value"
    if len(groups) <= curves.MAX_GROUPS_WITH_DOTS:
        caption += "; dots are single episodes"
    if bounds:
        caption += "; the dashed line is the return that counts as solved"
    diamonds = "; diamonds are evaluations without exploration" if evaluations else ""
    time = "Minutes include the start of each process, and are summed over all processes of a run."
    return [
        _picture(
            "steps",
            "Return by agent steps",
            f"{caption}{diamonds}.",
            lambda: curves.draw_returns(episodes, "steps", title, bounds, evaluations),
        ),
        _picture(
            "minutes",
            "Return by minutes",
            f"{caption}. {time}",
            lambda: curves.draw_returns(episodes, "minutes", title, bounds),
        ),
    ]


def _picture(name: str, title: str, caption: str, draw: Callable[[], Figure]) -> Picture:
    assert name in PICTURES
    light, dark = (_draw_png(draw, dark) for dark in (False, True))
    return Picture(f"report-{name}.png", title, caption, light, dark)


def _draw_png(draw: Callable[[], Figure], dark: bool) -> bytes:
    buffer = io.BytesIO()
    with curves.theme(dark):
        draw().savefig(buffer, format="png", dpi=DPI)
    return buffer.getvalue()


def _missing_data(pictures: Sequence[Picture]) -> list[str]:
    """Describe the data of the figures that could not be drawn."""
    data = {"report-speed.png": "speed", "report-parts.png": "time by part"}
    drawn = {picture.file for picture in pictures}
    return [description for file, description in data.items() if file not in drawn]


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _series_by_group(
    groups: Sequence[comparison.Group],
    tag: str,
    choose: Callable[[curves.Series], curves.Series] = lambda series: series,
) -> dict[str, list[curves.Series]]:
    """Return chosen values of a scalar of all runs by group label, or an empty dictionary if there are none."""
    by_group = {}
    for group in groups:
        series = [choose(curves.Series.of(*run.scalars.get(tag, ((), ())))) for run in group.runs]
        by_group[group.label] = [run for run in series if len(run.x)]
    return by_group if any(by_group.values()) else {}


def _short_names(groups: Sequence[comparison.Group]) -> list[tuple[str, Run]]:
    """Return all runs with the label of their group, and with their seed if the group has several runs."""
    names = []
    for group in groups:
        for run in group.runs:
            seed = f", seed {run.params['seed']}" if len(group.runs) > 1 else ""
            names.append((f"{group.label}{seed}", run))
    return names


def _cells(table: pd.DataFrame) -> dict[str, Any]:
    return {"columns": list(table.columns), "rows": table.map(comparison.format_value).to_numpy().tolist()}


def _video_caption(file: Path) -> str:
    match = run_data.VIDEO_NAME.match(file.name)
    if not match:
        return file.stem
    number = int(match["number"])
    if match["step"]:
        return f"Return {match['total']}, episode {number} by the checkpoint of step {int(match['step']):,}"
    return f"Return {match['total']}, training episode {number:,}"


def _provenance(run: Run) -> dict[str, Any]:
    """Return a run's environment, commit, machine, versions, processes and settings."""
    sessions = run.params["sessions"]
    newest = sessions[-1] if sessions else {}
    return {
        "run": run.name,
        "environment": run.hyperparameters.get("env_name"),
        "commit": newest.get("commit"),
        "machine": newest.get("machine", {}),
        "versions": newest.get("versions", {}),
        "sessions": [
            {
                "started": session.get("started"),
                "command": shlex.join(without_folder(str(word)) for word in session.get("argv", ())),
                "commit": session.get("commit"),
            }
            for session in sessions
        ],
        "settings": comparison.settings_of(run),
    }
