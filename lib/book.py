"""The third edition's hyperparameters, command line and search, for the book's own scripts.

This project's scripts are tuned by tools/tune.py.
"""

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from ignite.engine import Engine

from lib import cli
from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS, Hyperparameters, as_hyperparameters
from lib.run.arguments import usable_device
from lib.run.events import EpisodeEvents
from lib.system.log import install_command
from lib.system.seeds import seed_everything

SEED = 123
UNSOLVED = 10**6  # episodes of a trial that has not solved the game


@dataclasses.dataclass(kw_only=True)
class Hyperparams(Hyperparameters):
    """Hyperparameters of the third edition's scripts.

    Attributes:
        tuner_mode: this run is a trial of a search, and stops early if it learns too little or too slowly.
        episodes_to_solve: episodes in which the best known hyperparameters solve the game. A trial may take 10 % more.
    """

    tuner_mode: bool = False
    episodes_to_solve: int = 500


def argparser() -> argparse.ArgumentParser:
    """Return the parser with --dev, --params, --tune and --double. A script may add its own options."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    parser.add_argument("--dev", default="cpu", help="device of the networks (default: cpu)")
    parser.add_argument("--params", choices=("common", "best"), default="best", help="hyperparameters (default: best)")
    parser.add_argument("--tune", type=int, metavar="N", help="search for hyperparameters with N trials")
    # The book's 03_dqn_double.py reads it, and does not add it.
    parser.add_argument("--double", action="store_true", help="double Q-learning, in a script that has it")
    return parser


def train_or_tune(
    args: argparse.Namespace,
    train_func: Callable[..., int | None],
    best_params: Hyperparameters | SimpleNamespace,
    extra_params: Mapping[str, object] | None = None,
    extra_space: Mapping[str, object] | None = None,
) -> None:
    """Seed all random generators with SEED, then train once, or search with --tune.

    Args:
        args: values of `argparser`.
        train_func: function (params, device, extra) that trains and returns the number of episodes in which the game
            was solved, or None. `extra` is extra_params, or a trial's sample of the whole search space.
        best_params: hyperparameters of --params best. --params common stands for HYPERPARAMS["pong"].
        extra_params: the script's own settings.
        extra_space: settings to search, as values or Ray Tune's distributions. They may replace the book's.
    """
    seed_everything(SEED)
    params = HYPERPARAMS["pong"] if args.params == "common" else best_params
    with cli.exit_codes():
        device = usable_device(args.dev)
        if args.tune is None:
            train_func(params, device, dict(extra_params or {}))
        else:
            _tune(params, train_func, device, args.tune, extra_space or {})


def _tune(
    params: Hyperparameters | SimpleNamespace,
    train_func: Callable[..., int | None],
    device: torch.device,
    trials: int,
    extra_space: Mapping[str, object],
) -> None:
    """Search for the hyperparameters that solve the game in the fewest episodes, by random trials of Ray Tune.

    On "cuda", one trial runs at a time per GPU.
    """
    try:
        from lib.actors.ray_engine import import_ray

        ray = import_ray(is_local=True)
        from ray import tune
    except (ImportError, UsageError) as error:
        raise UsageError(f"--tune needs Ray Tune, which is not installed; run {install_command('book')}") from error
    ray.init(address="local", include_dashboard=False, ignore_reinit_error=True)
    folder = Path.cwd()
    base = Hyperparams(**dataclasses.asdict(as_hyperparameters(params)) | {"tuner_mode": True})
    space = {
        "learning_rate": tune.loguniform(1e-5, 1e-4),
        "gamma": tune.choice([0.9, 0.92, 0.95, 0.98, 0.99, 0.995]),
        **extra_space,
    }

    def trial(config: dict[str, Any]) -> dict[str, int]:
        os.chdir(folder)  # Ray has left it
        fields = {name: value for name, value in config.items() if hasattr(base, name)}
        episodes = train_func(dataclasses.replace(base, **fields), device, config)
        return {"episodes": UNSOLVED if episodes is None else episodes}

    tuner = tune.Tuner(
        tune.with_resources(trial, {"gpu": 1} if device.type == "cuda" else {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=trials),
        run_config=tune.RunConfig(storage_path=str(folder / "runs" / "tune")),
    )
    best = tuner.fit().get_best_result(metric="episodes", mode="min")
    print(f"Best hyperparameters: {best.config}; result: {best.metrics}")


def stop_hopeless_trial(engine: Engine, params: Any, reward_episode: int, reward_min: float) -> None:
    """End a trial that is not solved in time, or whose smoothed return is low after `reward_episode` episodes."""

    @engine.on(EpisodeEvents.EPISODE_COMPLETED)
    def stop_if_hopeless(engine: Engine) -> None:
        state: Any = engine.state
        too_low = state.episode > reward_episode and state.metrics["avg_reward"] < reward_min
        if too_low or state.episode > 1.1 * params.episodes_to_solve:
            engine.terminate()
