"""Runs as one HTML page that has everything in itself: curves, tables, videos, and by what they were made."""

import base64
import dataclasses
import io
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
from matplotlib.figure import Figure

from lib.analysis import comparison, curves, run_data
from lib.errors import UsageError
from lib.run import run_folder
from lib.run.episodes import WINDOW
from lib.system import files

TEMPLATE = "report.html"


DPI = 200


TOLD = {"speed": "its speed", "parts": "how its time was spent"}  # by picture, what a run has to have told for it


VIDEOS = 3  # of a run at most


ROOM = 25_000_000  # bytes of videos in a page


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawing: its file's name, what it shows, for those who cannot see it too, and the PNG."""

    file: str
    title: str
    caption: str
    png: bytes

    @property
    def uri(self) -> str:
        return _uri("image/png", self.png)


@dataclasses.dataclass(frozen=True)
class Video:
    """An episode: whose, what it shows, and the file, as a URI if there is room for it."""

    run: str
    caption: str
    path: Path
    uri: str | None


def write(paths: Sequence[Path], folder: Path) -> Path:
    """Write the page of some runs, report.html, and its pictures as report-*.png beside it.

    Args:
        paths: of run folders.
        folder: is made if need be.

    Returns:
        The page's path.

    Raises:
        UsageError: a run has no finished episode or cannot be understood, or the folder cannot be written.
    """
    for path in paths:
        if run_data.episodes(path).empty:
            raise UsageError(f"{path} has no finished episode yet, so there is nothing to show; leave it out, or wait")
    drawn = pictures(paths)
    html = page(paths, drawn)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("report-*.png"):
            old.unlink()
        for picture in drawn:
            (folder / picture.file).write_bytes(picture.png)
        files.write(folder / TEMPLATE, html)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}); give another --output") from error
    return folder / TEMPLATE


def page(paths: Sequence[Path], drawn: Sequence[Picture]) -> str:
    """The page's HTML, with these pictures."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of runs and command lines are other people's texts
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    groups = comparison.groups(paths)
    number = {path: index for index, group in enumerate(groups) for path in group.runs}
    described = [_made(path) for path in paths]
    return environment.get_template(TEMPLATE).render(
        title=_title(paths),
        written=datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        groups=[(group, curves.colour(index), comparison.summary(group)) for index, group in enumerate(groups)],
        names=[(path.name, curves.colour(number[path])) for path in paths],
        pictures=drawn,
        outcomes=_cells(comparison.outcomes(paths)),
        differences=_cells(comparison.differences(paths)),
        videos=videos(paths),
        described=described,
        mixed=[
            what for what in ("environment", "commit", "machine") if len({str(made[what]) for made in described}) > 1
        ],
        untold=[told for name, told in TOLD.items() if not any(name in picture.file for picture in drawn)],
        window=WINDOW,
    )


def pictures(paths: Sequence[Path]) -> list[Picture]:
    """What can be drawn of some runs."""
    groups = comparison.groups(paths)
    episodes = {group.label: [run_data.episodes(path) for path in group.runs] for group in groups}
    told = {path: run_data.scalars(path) for path in paths}
    speeds = _by_tag(groups, told, "train/avg_fps")
    evaluations = _by_tag(groups, told, "evaluation/mean")
    parts = [(name, found) for name, path in _named(groups) if (found := run_data.parts(path))]
    bounds = [bound for path in paths if isinstance(bound := _hyperparameters(path).get("stop_reward"), int | float)]
    several = any(len(group.runs) > 1 for group in groups)
    how = f"Mean return of the last {WINDOW} training episodes"
    how += ", of several seeds their mean and a band from lowest to highest as far as all have come" if several else ""
    how += "; dots are single episodes" if len(groups) <= curves.DOTTED else ""
    how += "; dashed, the bound that means solved" if bounds else ""
    diamonds = "; diamonds are evaluations without exploring" if evaluations else ""
    drawn = [
        _picture(
            "steps",
            "Return by agent steps",
            f"{how}{diamonds}.",
            curves.returns(episodes, "steps", bounds, evaluations),
        ),
        _picture(
            "minutes",
            "Return by minutes",
            f"{how}. Minutes are of work on the run, from its process's start on.",
            curves.returns(episodes, "minutes", bounds),
        ),
    ]
    if speeds:
        caption = "Agent steps a second over the last 1,000 of them, warm-up and evaluations left out."
        drawn.append(_picture("speed", "Speed", caption, curves.speeds(speeds)))
    if parts:
        caption = "Share of the training time by part of an iteration; rest is what no part claims."
        drawn.append(_picture("parts", "Where the seconds went", caption, curves.shares(parts)))
    return drawn


def videos(paths: Sequence[Path]) -> list[Video]:
    """The best and the newest of each run's videos, a few a run; those that there is no room for without their URI."""
    chosen = [(path, run_data.videos(path)[:VIDEOS]) for path in paths]
    # The best of every run before the second of any.
    turns = sorted((turn, row) for row, (_, found) in enumerate(chosen) for turn in range(len(found)))
    room, uris = ROOM, {}
    for turn, row in turns:
        file = chosen[row][1][turn]
        size = file.stat().st_size
        if size <= room:
            room -= size
            uris[file] = _uri("video/webm", file.read_bytes())
    return [
        Video(path.name, _episode(file), file.relative_to(path.parent), uris.get(file))
        for path, found in chosen
        for file in found
    ]


def _picture(name: str, title: str, caption: str, figure: Figure) -> Picture:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI)
    return Picture(f"report-{name}.png", title, caption, buffer.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _by_tag(
    groups: Sequence[comparison.Group], told: Mapping[Path, Mapping[str, Any]], tag: str
) -> dict[str, list[curves.Series]]:
    """A scalar of all runs by group; nothing where no run has it."""
    found = {
        group.label: [series for path in group.runs if len((series := curves.series(*told[path].get(tag, ((), ())))).x)]
        for group in groups
    }
    return found if any(found.values()) else {}


def _named(groups: Sequence[comparison.Group]) -> list[tuple[str, Path]]:
    """All runs by group, each with a short name that tells it from the others as far as settings do."""
    return [
        (f"{group.label}, seed {comparison.settings(path)['seed']}" if len(group.runs) > 1 else group.label, path)
        for group in groups
        for path in group.runs
    ]


def _cells(frame: pd.DataFrame) -> dict[str, Any]:
    return {"columns": list(frame.columns), "rows": frame.map(comparison.text).to_numpy().tolist()}


def _hyperparameters(path: Path) -> dict[str, Any]:
    return run_folder.read_params(path)["hyperparameters"]


def _title(paths: Sequence[Path]) -> str:
    environments = dict.fromkeys(str(_hyperparameters(path).get("env_name")) for path in paths)
    scripts = dict.fromkeys(str(run_folder.read_params(path)["script"]) for path in paths)
    return f"{', '.join(environments)} by {', '.join(scripts)}"


def _episode(file: Path) -> str:
    told = run_data.VIDEO.match(file.name)
    if not told:
        return file.stem
    step, number, total = told["step"], int(told["number"]), told["total"]
    played = f"episode {number} by the checkpoint of step {int(step):,}" if step else f"training episode {number:,}"
    return f"Return {total}, {played}"


def _made(path: Path) -> dict[str, Any]:
    """By what, when and where a run was made; its settings."""
    sessions = run_folder.read_params(path)["sessions"]
    newest = sessions[-1] if sessions else {}
    return {
        "run": path.name,
        "environment": _hyperparameters(path).get("env_name"),
        "commit": newest.get("commit"),
        "machine": newest.get("machine", {}),
        "versions": newest.get("versions", {}),
        "sessions": [
            {
                "started": session.get("started"),
                "command": shlex.join(map(str, session.get("argv", ()))),
                "commit": session.get("commit"),
            }
            for session in sessions
        ],
        "settings": comparison.settings(path),
    }
