"""Learning curve of one run, and the title of its picture."""

import logging
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from lib.run.console import shown
from lib.run.episodes import WINDOW, Episodes
from lib.run.folder import Json, read_params

log = logging.getLogger(__name__)

MAX_LISTED = 4  # scripts or seeds named in a title; more of them are counted


def rolling_mean(returns: pd.Series) -> pd.Series:
    """Return the mean of the last 100 returns after each episode from the tenth on; the first means are over fewer."""
    return returns.rolling(WINDOW, min_periods=Episodes.MINIMUM).mean()


def picture_title(params: Sequence[Json], width: int) -> str:
    """Return game, scripts and seeds of runs, by their params.json, in lines of at most `width` characters."""
    games = dict.fromkeys(str(each["hyperparameters"]["env_name"]) for each in params)
    scripts = dict.fromkeys(str(each["script"]) for each in params)
    seeds = sorted({each["seed"] for each in params})
    listed = ", ".join(scripts) if len(scripts) <= MAX_LISTED else f"{len(scripts)} scripts"
    seeds_listed = ", ".join(map(str, seeds)) if len(seeds) <= MAX_LISTED else f"{len(seeds)} in all"
    return textwrap.fill(f"{', '.join(games)} · {listed} · seeds: {seeds_listed}", width)


def draw_curve(run: Path, stop_reward: float | None) -> None:
    """Draw curve.png: the returns in a run's episodes.csv against steps and minutes, and any stop_reward."""
    episodes = pd.read_csv(run / "episodes.csv")
    mean = rolling_mean(episodes["return"])
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    figure.suptitle(picture_title([read_params(run)], 100), fontsize="medium", parse_math=False)
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, x, label in (left, episodes["step"], "agent steps"), (right, episodes["seconds"] / 60, "minutes"):
        axes.plot(x, episodes["return"], ".", markersize=2, alpha=0.4, label="episode")
        axes.plot(x, mean, label=f"mean of the last {WINDOW}")
        if stop_reward is not None:
            axes.axhline(stop_reward, color="grey", linewidth=0.8, linestyle="--", label=f"goal, {stop_reward:g}")
        axes.set(xlabel=label)
        axes.grid(alpha=0.3)
    left.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10], integer=True))
    left.xaxis.set_major_formatter(EngFormatter(sep=""))  # 500k instead of 500000
    left.set(ylabel="return")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    figure.savefig(run / "curve.png", dpi=110)
    log.info("Learning curve: %s", shown(run / "curve.png"))
