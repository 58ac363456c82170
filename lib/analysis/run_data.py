"""What a run has written, read again: its episodes, TensorBoard's scalars, results, videos."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from lib.errors import UsageError
from lib.run import run_folder
from lib.run.episodes import CSV_COLUMNS

NUMBERS = ("step", "length", "return", "seconds")  # columns of episodes.csv that are calculated with


KEPT = 5_000  # values of a scalar at most, drawn from all of them; no picture shows more


VIDEO = re.compile(r"(?:play-(?P<step>\d+)-)?episode-(?P<number>\d+)-return-(?P<total>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def episodes(run: Path) -> pd.DataFrame:
    """A run's episodes.csv, a row a finished episode; none where the run has only begun.

    Raises:
        UsageError: it cannot be understood.
    """
    path = run / "episodes.csv"
    try:
        frame = pd.read_csv(path)
    except (FileNotFoundError, pd.errors.EmptyDataError):
        frame = pd.DataFrame(columns=list(CSV_COLUMNS))
    except (ValueError, UnicodeDecodeError) as error:  # what pandas raises at a file that is no table
        raise UsageError(f"{path} cannot be read: {str(error).strip()}") from error
    missing = set(NUMBERS) - set(frame)
    if missing:
        raise UsageError(
            f"{run} was made by another version of this project{_commit(run)}: its episodes.csv has no "
            f"{', '.join(sorted(missing))}"
        )
    try:
        numbers = frame.astype(dict.fromkeys(NUMBERS, float))
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return numbers.dropna(subset=list(NUMBERS))  # a row that is just being written may lack its end


def content(path: Path) -> dict[str, Any]:
    """What a JSON file of a run folder holds; nothing where there is none.

    Raises:
        UsageError: it cannot be understood.
    """
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} is not what a run of this version writes")
    return found


def result(run: Path) -> dict[str, Any]:
    """A run's result.json; nothing of a run that is at work, where it would be that of an earlier process."""
    return {} if run_folder.at_work(run) else content(run / "result.json")


def scalars(run: Path) -> dict[str, tuple[list[int], list[float]]]:
    """TensorBoard's scalars of a run by tag: steps and values; none where it has no event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    if not any(run.glob("events.out.tfevents.*")):
        return {}
    sizes = {"scalars": KEPT, "images": 1, "histograms": 1, "compressedHistograms": 1, "tensors": 1}
    accumulator = EventAccumulator(str(run), size_guidance=sizes)
    accumulator.Reload()
    events = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
    return {tag: ([event.step for event in told], [event.value for event in told]) for tag, told in events.items()}


def parts(run: Path) -> dict[str, float]:
    """Where the time of training went, by part: in seconds of the last process of a run that has ended, the rest
    included; of one that has not, in milliseconds an iteration by TensorBoard's time/*. Nothing where neither is."""
    process = result(run).get("this_process", {})
    known = {part: float(seconds) for part, seconds in process.get("parts", {}).items()}
    if known:
        return known | {"rest": max(0.0, process.get("training_seconds", 0.0) - sum(known.values()))}
    timed = {tag.removeprefix("time/"): told for tag, told in scalars(run).items() if tag.startswith("time/")}
    return {part: sum(values) / len(values) for part, (_, values) in timed.items()}


def videos(run: Path) -> list[Path]:
    """A run's finished videos: the one of the best return, then all others, the newest first."""
    found = [path for path in (run / "videos").glob("*.webm") if not path.name.endswith(".part.webm")]
    newest = sorted(found, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)
    told = [path for path in newest if VIDEO.match(path.name)]
    best = max(told, key=lambda path: float(VIDEO.match(path.name)["total"]), default=None)  # type: ignore[index]
    return sorted(newest, key=lambda path: path != best)


def _commit(run: Path) -> str:
    sessions = run_folder.read_params(run)["sessions"]
    return f", commit {sessions[-1]['commit']}" if sessions and sessions[-1].get("commit") else ""
