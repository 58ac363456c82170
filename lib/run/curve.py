"""Learning curve of one run."""

from pathlib import Path
from typing import TYPE_CHECKING

from lib.run.episodes import WINDOW

if TYPE_CHECKING:
    import pandas as pd


def rolling_mean(returns: "pd.Series") -> "pd.Series":
    """Return the mean of the last 100 returns after each episode. The first means are over fewer episodes."""
    return returns.rolling(WINDOW, min_periods=1).mean()


def draw_curve(run: Path, stop_reward: float | None) -> Path:
    """Draw the returns in a run's episodes.csv against agent steps and against minutes.

    Args:
        run: run folder.
        stop_reward: mean return that counts as solved, drawn as a dashed line; None for no line.

    Returns:
        Path of the picture, curve.png in the run folder.
    """
    # Imported late: these packages take a second, and a run needs them only at its end.
    import pandas as pd
    from matplotlib.figure import Figure

    episodes = pd.read_csv(run / "episodes.csv")
    mean = rolling_mean(episodes["return"])
    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, x, label in (
        (left, episodes["step"], "agent steps"),
        (right, episodes["seconds"] / 60, "minutes"),
    ):
        axes.plot(x, episodes["return"], ".", markersize=2, alpha=0.4, label="episode")
        axes.plot(x, mean, label=f"mean of the last {WINDOW}")
        if stop_reward is not None:
            axes.axhline(stop_reward, color="grey", linewidth=0.8, linestyle="--")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    left.set(ylabel="return")
    left.legend(loc="best", fontsize="x-small")
    path = run / "curve.png"
    figure.savefig(path, dpi=110)
    return path
