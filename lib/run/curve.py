"""The learning curve of one run."""

from pathlib import Path
from typing import TYPE_CHECKING

from lib.run.episodes import WINDOW

if TYPE_CHECKING:
    import pandas as pd


def rolling_mean(returns: "pd.Series") -> "pd.Series":
    """Mean return of the last 100 episodes at the end of each, or of all while there are fewer."""
    return returns.rolling(WINDOW, min_periods=1).mean()


def draw_curve(run: Path, stop_reward: float | None) -> Path:
    """The returns of a run's episodes.csv against agent steps and minutes, as curve.png beside it."""
    import pandas as pd  # these two take a second, which a run that is not at its end has no use for
    from matplotlib.figure import Figure

    frame = pd.read_csv(run / "episodes.csv")
    mean = rolling_mean(frame["return"])
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, x, label in zip(
        figure.subplots(1, 2, sharey=True),
        (frame["step"], frame["seconds"] / 60),
        ("agent steps", "minutes of work on the run"),
        strict=True,
    ):
        axes.plot(x, frame["return"], ".", markersize=2, alpha=0.4, label="an episode")
        axes.plot(x, mean, label=f"mean of the last {WINDOW}")
        if stop_reward is not None:
            axes.axhline(stop_reward, color="grey", linewidth=0.8, linestyle="--")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    figure.axes[0].set(ylabel="return")
    figure.axes[0].legend(loc="best", fontsize="x-small")
    path = run / "curve.png"
    figure.savefig(path, dpi=110)
    return path
