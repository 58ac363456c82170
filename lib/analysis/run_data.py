"""What a run folder holds: settings, episodes, results, TensorBoard scalars and videos."""

import dataclasses
import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Self

import pandas as pd

from lib.errors import UsageError
from lib.run.episodes import CSV_COLUMNS, WINDOW
from lib.run.folder import Json, find, in_use, places, read_json, read_params
from lib.run.stopping import ENDED, NOT_FINITE, SOLVED, STEPS

NUMERIC_COLUMNS = ("step", "length", "return", "seconds")  # of episodes.csv
MAX_SCALARS = 5_000  # values read per tag; TensorBoard's reader keeps a random sample of longer series
VIDEO_NAME = re.compile(r"(?:play-\d+-)?episode-\d+-return-(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\.webm")


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A run folder as it was at one moment, so that tables and pictures of a running run agree."""

    path: Path
    params: Json  # content of params.json
    episodes: pd.DataFrame  # one row per finished episode; see `read_episodes`
    is_running: bool  # whether a process works on the run
    result: Json  # content of result.json; empty if there is none, or if the run is running
    evaluation: Json  # content of evaluation.json, which tools/evaluate.py writes; empty if there is none

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a run. One with a damaged file or of another format is a UsageError."""
        is_running = in_use(path)  # asked first, because the run may end meanwhile
        result = {} if is_running else read_json(path / "result.json")
        evaluation = read_json(path / "evaluation.json")
        run = cls(path, read_params(path), read_episodes(path), is_running, result, evaluation)
        if is_running:
            run.scalars  # noqa: B018 - read them now, because they grow
        return run

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def hyperparameters(self) -> Json:
        values: Json = self.params["hyperparameters"]
        return values

    @property
    def has_ended(self) -> bool:
        """Whether the run will not go on. One that was stopped by --stop-after or --time-limit may be resumed."""
        stopped = self.result.get("stopped")
        if stopped == STEPS:
            return bool(self.result["steps"] >= self.hyperparameters.get("max_steps", math.inf))
        return stopped in (SOLVED, NOT_FINITE, ENDED)

    @functools.cached_property
    def scalars(self) -> dict[str, tuple[list[int], list[float]]]:
        """TensorBoard scalars, steps and values by tag."""
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        sizes = {"scalars": MAX_SCALARS, "images": 1, "histograms": 1, "compressedHistograms": 1, "tensors": 1}
        accumulator = EventAccumulator(str(self.path), size_guidance=sizes)
        accumulator.Reload()
        events = {tag: accumulator.Scalars(tag) for tag in accumulator.Tags()["scalars"]}
        return {tag: ([each.step for each in own], [each.value for each in own]) for tag, own in events.items()}

    def time_by_part(self) -> dict[str, float]:
        """Return the training time of each part of an iteration; {} if it is unknown.

        For a finished run these are seconds of its last process, and "rest" is the remaining time. For other runs these
        are milliseconds per iteration, from TensorBoard.
        """
        process = self.result.get("this_process", {})
        if seconds := process.get("parts"):
            return {**seconds, "rest": max(0.0, process["training_seconds"] - sum(seconds.values()))}
        times = {tag: fmean(values) for tag, (_, values) in self.scalars.items() if tag.startswith("time/")}
        return {tag.removeprefix("time/"): mean for tag, mean in times.items()}


def read_episodes(run: Path) -> pd.DataFrame:
    """Read a run's episodes.csv, one row per finished episode. A damaged file is a UsageError."""
    path = run / "episodes.csv"
    is_new = not path.exists() or path.stat().st_size == 0
    try:
        frame = pd.DataFrame(columns=list(CSV_COLUMNS)) if is_new else pd.read_csv(path)
        numbers = frame.astype(dict.fromkeys(NUMERIC_COLUMNS, float))
    except (ValueError, KeyError) as error:  # no table, not a number, or no such column
        raise UsageError(f"{path} cannot be read: {str(error).strip()}") from error
    return numbers.dropna(subset=list(NUMERIC_COLUMNS))  # the last row may be incomplete while the run is in progress


def returns_before(run: Path, step: int) -> list[float]:
    """Return the returns of the last WINDOW training episodes up to an agent step; none for a published model."""
    episodes = read_episodes(run)
    return list(episodes["return"][episodes["step"] <= step].tail(WINDOW))


def best_video(run: Path) -> Path | None:
    """Return a run's finished video with the best return; of several, the newest one. None if there is no video."""

    def rank(path: Path) -> tuple[float, float]:
        match = VIDEO_NAME.fullmatch(path.name)
        return float(match[1]) if match else -math.inf, path.stat().st_mtime

    finished = [path for path in (run / "videos").glob("*.webm") if not path.name.endswith(".part.webm")]
    return max(finished, key=rank, default=None)


def select_runs(names: Sequence[str], runs_dir: Path, with_episodes: bool = False) -> tuple[list[Run], list[str]]:
    """Read runs, each given by its path or its name in runs_dir, and return reasons for names that were skipped.

    A run that is given twice counts once. Files, other folders, damaged runs and, for `with_episodes`, runs without a
    finished episode or update are skipped, because a pattern such as runs/* matches them, too. A name that does not
    exist is a UsageError, and so is a list of which no run is left.
    """
    names = [name for name in names if Path(name).name != "README.md"] or names  # runs/* matches the folder's own page
    runs: dict[Path, Run] = {}
    reasons = []
    for name in names:
        try:
            path = find(name, runs_dir)
            run = runs.get(path) or Run.read(path)
            if with_episodes and run.episodes.empty and not any(run.time_by_part().values()):
                raise UsageError(f"{path} has no finished episode, like a new run or a model; there is nothing to show")
            runs[path] = run
        except (UsageError, OSError) as error:  # a run of another user may not be readable
            if not any(path.exists() for path in places(name, runs_dir)):
                raise
            reasons.append(str(error))
    if not runs:
        raise UsageError(reasons[0])
    return list(runs.values()), reasons
