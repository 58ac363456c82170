"""For the book's own scripts: plain PTAN sources, and the third edition's hyperparameters, command line and search."""

import argparse
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Protocol, SupportsFloat

import gymnasium as gym
import torch
from gymnasium.wrappers import TransformReward
from ignite.engine import Engine

from lib import cli
from lib.envs.atari import frame_skip
from lib.errors import UsageError
from lib.experience.interface import Episode, ExperienceSource, State
from lib.hyperparameters import HYPERPARAMS, Hyperparameters, as_hyperparameters
from lib.run.arguments import usable_device
from lib.run.episodes import EpisodeEvents
from lib.system.clock import since_process_start
from lib.system.log import install_command
from lib.system.seeds import seed_everything

SEED = 123
TrainFunction = Callable[..., int | None]  # see train_or_tune
UNSOLVED = 10**6  # episodes of a trial that has not solved the game


class RewardsSource(Protocol):
    """The part of PTAN's experience sources, and of the book's batch generators, that a run uses."""

    def pop_rewards_steps(self) -> list[tuple[float, int]]:
        """Return the (return, length) of each episode that ended since the last call."""


class PtanSource(ExperienceSource):
    """Adapter for a plain PTAN source, which provides only the returns and lengths of its episodes.

    Agent steps are counted in the environments of the source's pool. If it has no pool of gymnasium environments, an
    iteration of the engine counts as one agent step. A checkpoint does not hold the source.
    """

    PARTS = ()

    def __init__(self, source: RewardsSource, engine: Engine):
        super().__init__()
        self.source, self.engine, self._steps = source, engine, 0
        pool: Sequence[gym.Env] = getattr(source, "pool", ())  # a batch generator of the book has none
        self._counts = bool(pool) and all(isinstance(env, gym.Env) for env in pool)
        if self._counts:
            source.pool = [TransformReward(env, self._count) for env in pool]  # type: ignore[attr-defined]
            self.frame_skip = frame_skip(pool[0])

    def _count(self, reward: SupportsFloat) -> SupportsFloat:
        """Count a step. This is called with the reward of every step, and returns it unchanged."""
        self._steps += 1
        self.on_step(1)
        return reward

    @property
    def steps_done(self) -> int:  # type: ignore[override] # read only here, an attribute in other sources
        return self._steps if self._counts else self.engine.state.iteration

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, as if they had ended now."""
        ended = self.source.pop_rewards_steps()
        return [Episode(float(total), int(length), self.steps_done, since_process_start()) for total, length in ended]

    def state_dict(self) -> State:
        return {}  # a checkpoint has the networks for tools/play.py

    def load_state_dict(self, state: State) -> NoReturn:
        raise UsageError("a run with PTAN's own source cannot be resumed; use lib.experience.transitions instead")


@dataclasses.dataclass(kw_only=True)
class Hyperparams(Hyperparameters):
    """Hyperparameters of the third edition's scripts."""

    tuner_mode: bool = False  # whether this run is a trial of a search; see stop_hopeless_trial
    episodes_to_solve: int = 500  # with the best known hyperparameters. A trial may take 10 % more.


def argparser() -> argparse.ArgumentParser:
    """Return the parser with --dev, --params, --tune and --double. A script may add its own options."""
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    parser.add_argument("--dev", default="cpu", help="device of the networks (default: cpu)")
    parser.add_argument("--params", choices=("common", "best"), default="best", help="hyperparameters (default: best)")
    parser.add_argument("--tune", type=int, metavar="N", help="search for hyperparameters with N trials")
    parser.add_argument("--double", action="store_true", help="double Q-learning, for the book's 03_dqn_double.py")
    return parser


def train_or_tune(
    args: argparse.Namespace,
    train_func: TrainFunction,
    best_params: Hyperparameters | SimpleNamespace,
    extra_params: Mapping[str, object] | None = None,
    extra_space: Mapping[str, object] | None = None,
) -> None:
    """Seed all random generators with SEED, then train once, or search with --tune.

    Args:
        train_func: function (params, device, extra) that trains and returns the number of episodes in which the game
            was solved, or None. `extra` is extra_params, or a trial's sample of the whole search space.
        best_params: hyperparameters of --params best. --params common stands for HYPERPARAMS["pong"].
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


def _tune(params: object, train: TrainFunction, device: torch.device, trials: int, space: Mapping[str, object]) -> None:
    """Search for the hyperparameters that solve the game in the fewest episodes, by random trials of Ray Tune."""
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
        **space,
    }

    def trial(config: dict[str, Any]) -> dict[str, int]:
        os.chdir(folder)  # Ray has left it
        fields = {name: value for name, value in config.items() if hasattr(base, name)}
        episodes = train(dataclasses.replace(base, **fields), device, config)
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
