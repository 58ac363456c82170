"""The third edition's command line of a script, and its search for hyperparameters with Ray Tune."""

import argparse
import dataclasses
import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import torch

from lib.actors.ray_package import import_ray, initialise_ray
from lib.errors import UsageError
from lib.hyperparameters import HYPERPARAMS, Hyperparameters, as_hyperparameters
from lib.run.option_types import positive, usable_device
from lib.system.console_log import install_command, start_console
from lib.system.seeds import seed_everything

if TYPE_CHECKING:
    from ray.tune import ResultGrid

log = logging.getLogger(__name__)

SEED = 123

LARGEST_RATE = 1e-4  # largest learning rate of the search, as in the book

# Number of episodes assigned to an unsolved trial.
UNSOLVED = 10**6

TrainFunction = Callable[[Any, torch.device, dict[str, Any]], int | None]


def argparser() -> argparse.ArgumentParser:
    """Return the third edition's parser: --dev, --params, --tune and --double. A script may add its own options."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    parser.add_argument("--dev", default="cpu", help="device of the networks (default: cpu)")
    parser.add_argument(
        "--params", choices=("common", "best"), default="best", help="hyperparameters to use or to tune (default: best)"
    )
    parser.add_argument("--tune", type=positive, metavar="N", help="search for hyperparameters with N trials")
    # The book's 03_dqn_double.py reads it, and does not add it.
    parser.add_argument("--double", action="store_true", help="double Q-learning, in a script that has it")
    return parser


def train_or_tune(
    args: argparse.Namespace,
    train_func: TrainFunction,
    best_params: Hyperparameters | SimpleNamespace,
    extra_params: Mapping[str, Any] | None = None,
    extra_space: Mapping[str, Any] | None = None,
) -> None:
    """Seed all random generators with SEED, then train once, or search for hyperparameters with --tune.

    Exit with a message if the device is missing, or no search is possible.

    Args:
        args: values of `argparser`.
        train_func: function (params, device, extra) that trains and returns the number of episodes in which the game
            was solved, or None.
        best_params: hyperparameters of --params best. --params common stands for HYPERPARAMS["pong"].
        extra_params: the script's own settings, passed as `extra` when training once.
        extra_space: search space of the script's own settings; see `tune_params`.
    """
    seed_everything(SEED)
    params = HYPERPARAMS["pong"] if args.params == "common" else best_params
    try:
        device = usable_device(args.dev)
        if args.tune is None:
            train_func(params, device, dict(extra_params or {}))
        else:
            tune_params(params, train_func, device, args.tune, extra_space)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(UsageError.exit_code) from None


def tune_params(
    base_params: Hyperparameters | SimpleNamespace,
    train_func: TrainFunction,
    device: torch.device,
    samples: int = 10,
    extra_space: Mapping[str, Any] | None = None,
) -> "ResultGrid":
    """Search for the hyperparameters that solve the game in the fewest episodes, by random trials of Ray Tune.

    The search space is the book's: the learning rate is drawn log-uniformly between 1e-5 (or learning_rate_final, if
    larger) and 1e-4, gamma from 0.9, 0.92, 0.95, 0.98, 0.99 and 0.995. A trial runs with `tuner_mode`, so that a
    hopeless trial stops early.

    Args:
        base_params: hyperparameters that are not searched, or a namespace with the book's fields.
        train_func: see `train_or_tune`. Its `extra` is the trial's sample of the whole search space.
        device: device of the networks. On "cuda", one trial runs at a time per GPU.
        samples: number of trials.
        extra_space: further settings, as values or as Ray Tune's distributions. They may replace the book's.

    Returns:
        Ray Tune's results, which are also written to runs/tune/ in the current folder. The metric of a trial is
        "episodes".

    Raises:
        UsageError: if Ray Tune is not installed, samples is below 1, device is a GPU other than the first,
            learning_rate_final is 1e-4 or more, or no trial was completed.
        ValueError: if a field of base_params is missing or out of range.
    """
    if samples < 1:
        raise UsageError(f"samples is {samples}; it has to be at least 1")
    tune = ray_tune()
    resources = trial_resources(device)
    start_console()
    folder = Path.cwd()
    base = cast(Hyperparameters, as_hyperparameters(base_params))
    if base.learning_rate_final is not None and base.learning_rate_final >= LARGEST_RATE:
        raise UsageError(
            f"learning_rate_final is {base.learning_rate_final:g}; set it below {LARGEST_RATE:g}, the largest learning "
            "rate of the search"
        )
    book = dataclasses.replace(base, learning_rate=LARGEST_RATE)
    space = base_space(tune, book) | dict(extra_space or {})

    def run_trial(config: dict[str, Any]) -> dict[str, int]:
        os.chdir(folder)  # Ray has left it
        fields = {name: value for name, value in config.items() if name in vars(base)}
        params = dataclasses.replace(base, tuner_mode=True, **fields)
        episodes = train_func(params, device, config)
        return {"episodes": UNSOLVED if episodes is None else episodes}

    trainable = tune.with_resources(run_trial, resources)
    start_ray()
    tuner = tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(num_samples=samples),
        run_config=tune.RunConfig(storage_path=str(Path("runs", "tune").absolute())),
    )
    results: ResultGrid = tuner.fit()
    metrics = [results[index].metrics or {} for index in range(len(results))]
    if not any("episodes" in each for each in metrics):
        raise UsageError(f"no trial was completed; Ray's files about them are in {folder / 'runs' / 'tune'}")
    if results.num_errors:
        log.warning("%d trials failed; Ray's files about them are in %s.", results.num_errors, folder / "runs" / "tune")
    best: Any = results.get_best_result(metric="episodes", mode="min")
    episodes = best.metrics["episodes"]
    result = "no trial solved the game" if episodes == UNSOLVED else f"solved in {episodes} episodes"
    log.info("Best hyperparameters: %s (%s)", best.config, result)
    return results


def trial_resources(device: torch.device) -> dict[str, int]:
    """Return the Ray resources of a trial: one GPU, or one core without a GPU.

    Raises:
        UsageError: if `device` is a GPU other than the first. Ray assigns each trial's GPU; the trial sees no other.
    """
    if device.index:
        raise UsageError(
            f"a search on {device} is not possible, because each trial gets a GPU from Ray; use the device cuda, and "
            "choose GPUs with CUDA_VISIBLE_DEVICES"
        )
    return {"gpu": 1} if device.type == "cuda" else {"cpu": 1}


def base_space(tune: Any, params: Hyperparameters) -> dict[str, Any]:
    """Return the distributions of the learning rate and gamma for Ray Tune.

    It is the book's if the learning rate is the book's, 1e-4.

    Args:
        tune: the module ray.tune.
        params: hyperparameters with the largest learning rate. The smallest is a tenth of it, or learning_rate_final
            if that is larger.
    """
    smallest = max(params.learning_rate / 10, params.learning_rate_final or 0.0)
    return {
        "learning_rate": tune.loguniform(smallest, params.learning_rate),
        "gamma": tune.choice([0.9, 0.92, 0.95, 0.98, 0.99, 0.995]),
    }


def ray_tune() -> Any:
    """Import Ray Tune, with a Ray that listens on this machine only.

    Raises:
        UsageError: if it is not installed.
    """
    try:
        import_ray(local_only=True)  # first, because Ray reads on its import where it may listen
        from ray import tune
    except UsageError as error:
        raise UsageError(f"--tune needs Ray Tune, which is not installed; run {install_command('tune')}") from error
    except ImportError as error:
        raise UsageError(f"--tune needs Ray Tune: {error}; run {install_command('tune')}") from error
    return tune


def start_ray() -> None:
    """Start Ray on this machine, without output of its workers."""
    initialise_ray(
        import_ray(local_only=True),
        "leave --tune out",
        address="local",  # not the cluster of RAY_ADDRESS
        include_dashboard=False,
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # it prints tracebacks of errors that it also raises
