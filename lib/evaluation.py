"""How good a policy is without exploring, in the plain environment, and the picture of how it came about."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.wrappers import RecordEpisodeStatistics
from ignite.engine import Engine
from ignite.handlers import ProgressBar

from lib.experience import hashed_seed
from lib.telemetry import WINDOW

Policy = Callable[[np.ndarray], np.ndarray]
EPISODES = 20
LONGEST = 27_000  # agent steps of an episode, half an hour of an Atari game; a policy without chance may go in circles
APART = 2**32  # hashed into the seeds, so that no evaluated episode begins as one of training does


def evaluate(
    policy: Policy, env: gym.Env, episodes: int = EPISODES, seed: int = 0, progress: bool = False
) -> dict[str, Any]:
    """Play whole episodes, each from a seed of its own, as an ignite engine with an episode an iteration.

    Args:
        policy: from states (1, ...) to actions (1,).
        env: such as atari_wrappers.make_env makes; its returns are those of the game, before rewards are clipped.
        episodes: how many.
        seed: what their seeds are derived from.
        progress: whether a bar is shown.

    Returns:
        episodes; mean and std of their returns; returns and lengths, a list each; distinct, how many of the episodes
        differ from all before in return or length.
    """
    counting = _counting(env) or RecordEpisodeStatistics(env)
    env = env if _counting(env) else counting
    returns: list[float] = []
    lengths: list[int] = []

    def play(engine: Engine, number: int) -> None:
        state, _ = env.reset(seed=hashed_seed(APART, seed, number))
        for _ in range(LONGEST):
            action = int(policy(np.asarray(state)[None])[0])
            state, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                break
        returns.append(float(counting.episode_returns))
        lengths.append(int(counting.episode_lengths))

    engine = Engine(play)
    if progress:
        ProgressBar(desc="Evaluation", persist=False).attach(engine)
    engine.run(range(episodes))
    distinct = len(set(zip(returns, lengths, strict=True)))
    spread = {"mean": float(np.mean(returns)), "std": float(np.std(returns))}
    return {"episodes": episodes, **spread, "returns": returns, "lengths": lengths, "distinct": distinct}


def _counting(env: gym.Env) -> RecordEpisodeStatistics | None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, RecordEpisodeStatistics):
            return env
        env = env.env
    return None


def draw(run: Path, stop_reward: float | None) -> Path:
    """The returns of a run's episodes.csv against agent steps and minutes, as curve.png beside it."""
    import pandas as pd  # these two take a second, which a run that is not at its end has no use for
    from matplotlib.figure import Figure

    frame = pd.read_csv(run / "episodes.csv")
    mean = frame["return"].rolling(WINDOW, min_periods=1).mean()
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, x, label in zip(
        figure.subplots(1, 2, sharey=True),
        (frame["step"], frame["seconds"] / 60),
        ("agent steps", "minutes since the process started"),
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
