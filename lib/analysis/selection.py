"""Select the runs given on a command line, often as runs/*, and skip what cannot be shown."""

from collections.abc import Sequence
from pathlib import Path

from lib.analysis.run_data import Run
from lib.errors import UsageError
from lib.run.folder import find, places


def select_runs(names: Sequence[str], runs_dir: Path, with_episodes: bool = False) -> tuple[list[Run], list[str]]:
    """Read runs, each given by its path or by its name in runs_dir. A run that is given twice counts once.

    Files, other folders and damaged runs are skipped, because a pattern such as runs/* matches them, too.

    Args:
        names: paths or names.
        runs_dir: folder of runs that are given by name.
        with_episodes: also skip runs without a finished episode.

    Returns:
        The runs, and the reason for each name that was skipped.

    Raises:
        UsageError: if a name does not exist, or no run is left.
    """
    runs: dict[Path, Run] = {}
    reasons = []
    for name in names:
        try:
            path = find(name, runs_dir)
            run = runs.get(path) or Run.read(path)
            if with_episodes and run.episodes.empty:
                raise UsageError(f"{path} has no finished episode, like a new run or a model; there is nothing to show")
            runs[path] = run
        except (UsageError, OSError) as error:  # a run of another user may not be readable
            paths = places(name, runs_dir)
            if not any(path.exists() or path.is_symlink() for path in paths):
                raise
            reason = str(error)
            for parent in sorted((str(path.resolve().parent) for path in paths), key=len, reverse=True):
                reason = reason.replace(f"{parent}/", "")  # a page may be sent to others
            reasons.append(reason)
    if not runs:
        raise UsageError(reasons[0])
    return list(runs.values()), reasons
