"""Hyperparameters: their meanings, their ranges and their values in each game.

A value is checked when it is assigned, as in `params.batch_size *= 3`, and setup_ignite calls `check` again.
"""

import contextlib
import dataclasses
import math
import operator
import shutil
import textwrap
import typing
from collections.abc import Mapping
from types import UnionType
from typing import Any, NamedTuple, Self

import numpy as np

from lib.errors import divisors

# Types of fields that are checked, as messages name them.
CHECKED: dict[object, str] = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
LIMITS = {"low": ("at least", operator.ge), "above": ("above", operator.gt), "high": ("at most", operator.le)}


class Setting(NamedTuple):
    """Types, meaning and limits of a field or an option. The keys of the limits are those of LIMITS."""

    types: tuple[object, ...]
    meaning: str
    limits: Mapping[str, float]


def setting(meaning: str, default: Any = dataclasses.MISSING, **limits: float) -> Any:
    """Return a field of hyperparameters. Without a default, it is required. See LIMITS for the limits."""
    return dataclasses.field(default=default, metadata={"meaning": meaning, "limits": limits})


_settings: dict[type, dict[str, Setting]] = {}  # by class


def settings_of(kind: type) -> dict[str, Setting]:
    """Return the settings of a class's fields. A subclass may change a default without repeating the rest."""
    if kind in _settings:
        return _settings[kind]
    hints, settings = typing.get_type_hints(kind), _settings.setdefault(kind, {})
    for base in reversed(kind.__mro__):
        for name, field in getattr(base, "__dataclass_fields__", {}).items():
            types = typing.get_args(hints[name]) if isinstance(hints[name], UnionType) else (hints[name],)
            if field.metadata or name not in settings:
                settings[name] = Setting(types, field.metadata.get("meaning", ""), field.metadata.get("limits", {}))
    return settings


def fitted(value: Any, setting: Setting) -> object:
    """Return a value as a field or option stores it: a number becomes an int or a float, as is needed.

    If the type or the range is wrong, a ValueError says what is allowed. A value whose type is not in CHECKED
    is returned as it is.
    """
    (needed, *others), _, limits = setting
    if needed not in CHECKED or (value is None and others):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if needed is float and type(value) is int:
        value = float(value)
    elif needed is int and type(value) is float and value.is_integer():  # such as 1e5
        value = int(value)
    is_right = type(value) is needed and (needed is not float or math.isfinite(value))
    if is_right and all(LIMITS[name][1](value, number) for name, number in limits.items()):
        return value
    limit = " and ".join(f"{LIMITS[name][0]} {number}" for name, number in limits.items())
    raise ValueError(", ".join(filter(None, (CHECKED[needed], limit, "or none" if others else ""))))


def require(condition: bool, params: object, name: str, allowed: str) -> None:
    """Raise ValueError unless a condition on a field holds; `allowed` says which values fulfil it."""
    if not condition:
        raise ValueError(f"{name} is {getattr(params, name)!r}; it has to be {allowed}")


@dataclasses.dataclass(kw_only=True)
class RunParameters:
    """Hyperparameters that every algorithm needs."""

    env_name: str = setting("gymnasium id of the environment")
    stop_reward: float | None = setting("mean return of 100 training episodes that solves the game; none for no goal")
    run_name: str = setting("part of the run folder's name")
    learning_rate: float = setting("Adam's learning rate", above=0)
    gamma: float = setting("discount factor", low=0, high=1)
    max_steps: int = setting("agent steps after which an unsolved run stops", 50_000_000, low=1)
    milestone: float | None = setting("another mean return; the time at which a run first reaches it is recorded", None)
    checkpoint_every: int = setting("agent steps between checkpoints", 20_000, low=1)

    log_every = 100  # learner iterations between TensorBoard scalars; no field

    @property
    def warm_up(self) -> int:
        """Agent steps before learning begins."""
        return 0

    def __setattr__(self, name: str, value: object) -> None:
        settings = settings_of(type(self))
        if name not in settings:
            raise AttributeError(f"there is no field {name!r}; choose one of {', '.join(settings)}")
        try:
            super().__setattr__(name, fitted(value, settings[name]))
        except ValueError as allowed:
            raise ValueError(f"{name} is {value!r}; it has to be {allowed}") from None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise ValueError if fields do not fit together."""


@dataclasses.dataclass(kw_only=True)
class Hyperparameters(RunParameters):
    """Hyperparameters of DQN, with the book's names."""

    replay_size: int = setting("agent steps in the replay buffer, rounded up to a multiple of the environments", low=1)
    replay_initial: int = setting("agent steps before learning begins; they are random if epsilon_start is 1", low=1)
    target_net_sync: int = setting("agent steps between updates of the target network, after the warm-up", low=1)
    epsilon_frames: int = setting("agent steps after the warm-up in which epsilon falls by 1", low=1)
    learning_rate: float = 0.0001
    gamma: float = 0.99
    epsilon_start: float = setting("first epsilon, unless epsilon_final is higher", 1.0, low=0, high=1)
    epsilon_final: float = setting("smallest epsilon", 0.1, low=0, high=1)
    batch_size: int = setting("transitions sampled per step; a minibatch has learn_every times as many", 32, low=1)
    learn_every: int = setting("agent steps between two updates", 1, low=1)
    learning_rate_final: float | None = setting("learning rate after a linear decay; none: constant", None, above=0)
    learning_rate_steps: int = setting("agent steps in which the learning rate falls, warm-up included", 400_000, low=1)
    checkpoint_replay: bool = setting("save the replay buffer; without it, a resumed run first fills it again", True)
    huber: bool = setting("use the Huber loss instead of the squared error; distributional losses ignore it", False)
    normalise: bool = setting("use a smaller network that normalises its input instead of the paper's", False)

    @property
    def warm_up(self) -> int:
        return self.replay_initial

    def steps_per_update(self, envs: int = 1) -> int:
        """Return the agent steps between two updates: `learn_every`, rounded up to a multiple of the environments."""
        return envs * math.ceil(self.learn_every / envs)

    def without_epsilon(self, start: float = 0.0) -> Self:
        """Return a copy whose epsilon falls from `start` to 0, for a script that explores by noise."""
        return dataclasses.replace(self, epsilon_start=start, epsilon_final=0.0)

    def check(self) -> None:
        final, rate, initial = self.learning_rate_final, self.learning_rate, self.replay_initial
        require(final is None or final <= rate, self, "learning_rate_final", f"at most learning_rate, {rate:g}")
        require(initial <= self.replay_size, self, "replay_initial", f"at most replay_size, {self.replay_size}")
        require(self.batch_size <= initial, self, "batch_size", f"at most replay_initial, {initial}")
        require(self.max_steps > initial, self, "max_steps", f"above replay_initial, {initial}")


@dataclasses.dataclass(kw_only=True)
class PPOHyperparameters(RunParameters):
    """Hyperparameters of textbook PPO, by default those that CleanRL and Stable-Baselines3 share for Atari games."""

    learning_rate: float = setting("Adam's first learning rate", 2.5e-4, above=0)
    gamma: float = 0.99
    max_steps: int = 10_000_000
    checkpoint_every: int = 100_000
    envs: int = setting("number of environments that step together", 8, low=1)
    rollout: int = setting("steps of each environment between two updates", 128, low=1)
    minibatch: int = setting("transitions per optimizer step; it divides envs * rollout", 256, low=2)
    epochs: int = setting("passes over a rollout", 4, low=1)
    lam: float = setting("lambda of the advantage estimates", 0.95, low=0, high=1)
    clip: float = setting("clipping range of the probability ratio", 0.1, above=0, high=1)
    entropy: float = setting("weight of the entropy bonus", 0.01, low=0)
    gradient_norm: float = setting("norm to which larger gradients are scaled down", 0.5, above=0)

    log_every = 1

    def learning_rate_at(self, steps: int) -> float:
        """Return the learning rate after some agent steps. It falls linearly to 0 at `max_steps`."""
        return self.learning_rate * max(0.0, 1.0 - steps / self.max_steps)

    def check(self) -> None:
        batch = self.envs * self.rollout
        if batch % self.minibatch:  # every update checks, and a long list of divisors takes time
            allowed = f"a divisor of envs * rollout, {batch}: one of {divisors(batch, least=2)}"
            require(False, self, "minibatch", allowed)


@dataclasses.dataclass(kw_only=True)
class FastPPOHyperparameters(PPOHyperparameters):
    """Hyperparameters of fast PPO. `annealed` explains the final values."""

    learning_rate: float = setting("Adam's learning rate; the first one, if it is adaptive", 5e-4, above=0)
    envs: int = 16
    rollout: int = 64
    epochs: int = 3
    clip: float = 0.2
    gradient_norm: float = 1.0
    entropy_final: float = setting("final value of entropy", 0.001, low=0)
    kl_target: float | None = setting("KL divergence per epoch at which the rate aims; none: fixed rate", 0.01, above=0)
    kl_target_final: float = setting("final value of kl_target", 0.001, above=0)
    learning_rate_max: float = setting("largest value of an adaptive learning rate", 1e-3, above=0, high=1)
    learning_rate_max_final: float = setting("final value of learning_rate_max", 1e-4, above=0, high=1)
    anneal_steps: int | None = setting("agent steps until the final values; none for max_steps", None, low=1)

    def annealed(self, steps: int) -> Self:
        """Return the hyperparameters of an update after some agent steps.

        At first, large updates and random actions learn fast. Later they keep a good policy from becoming better: every
        update moves it away at random, and it keeps making random mistakes. So within `anneal_steps`, `kl_target` and
        `learning_rate_max` fall geometrically and `entropy` falls linearly to their final values, and then stay there.
        A final value above the first one has no effect.
        """
        share = min(1.0, steps / (self.anneal_steps or self.max_steps))

        def geometric(first: float, final: float) -> float:
            return first * math.pow(min(first, final) / first, share)

        return dataclasses.replace(
            self,
            entropy=self.entropy - share * (self.entropy - min(self.entropy, self.entropy_final)),
            kl_target=self.kl_target and geometric(self.kl_target, self.kl_target_final),
            learning_rate_max=geometric(self.learning_rate_max, self.learning_rate_max_final),
        )


def as_hyperparameters(params: object) -> RunParameters:
    """Return hyperparameters, or those of a namespace, whose other attributes are ignored, after a check."""
    if isinstance(params, RunParameters):
        params.check()
        return params
    fields = settings_of(Hyperparameters)
    return Hyperparameters(**{name: value for name, value in vars(params).items() if name in fields})


def plain(text: str) -> object:
    """Return None, a bool or a number if the text is one, otherwise the text."""
    words = {"none": None, "true": True, "false": False}
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return words.get(text.lower(), text)


def explain(params: RunParameters) -> str:
    """Return the value and the meaning of each hyperparameter, as lines for the terminal."""
    width, lines = min(120, shutil.get_terminal_size().columns), []
    for name, value in dataclasses.asdict(params).items():
        text = f"{name}={'none' if value is None else value} ".ljust(28) + settings_of(type(params))[name].meaning
        lines.append(textwrap.fill(text, width, subsequent_indent=" " * 28, break_on_hyphens=False))
    return "\n".join(lines)


_BREAKOUT = Hyperparameters(
    env_name="BreakoutNoFrameskip-v4",
    stop_reward=500.0,
    run_name="breakout",
    replay_size=1_000_000,
    replay_initial=50_000,
    target_net_sync=10_000,
    epsilon_frames=10**6,
    learning_rate=0.00025,
)

HYPERPARAMS = {
    "pong": Hyperparameters(
        env_name="PongNoFrameskip-v4",
        stop_reward=18.0,
        run_name="pong",
        replay_size=100_000,
        replay_initial=10_000,
        target_net_sync=1_000,
        epsilon_frames=10**5,
        epsilon_final=0.02,
        max_steps=2_000_000,
        milestone=17.0,
    ),
    "breakout-small": dataclasses.replace(
        _BREAKOUT,
        run_name="breakout-small",
        replay_size=300_000,
        replay_initial=20_000,
        target_net_sync=1_000,
        learning_rate=0.0001,
        batch_size=64,
    ),
    "breakout": _BREAKOUT,
    "invaders": dataclasses.replace(_BREAKOUT, env_name="SpaceInvadersNoFrameskip-v4", run_name="invaders"),
}

FAST_HYPERPARAMS = {
    "pong": dataclasses.replace(
        HYPERPARAMS["pong"],
        replay_initial=5_000,
        epsilon_frames=25_000,
        epsilon_final=0.01,
        learning_rate=0.0005,
        batch_size=4,
        huber=True,
    )
}

# Entries of PPO's tables with general settings, from which --env-id starts if no --game is given: for a user's own
# environment, and, if they differ, for an Atari game, and for an environment whose states are vectors.
OWN, ATARI, VECTORS = "own", "atari", "vectors"

_PPO_GAMES: dict[str, dict[str, Any]] = {
    "pong": {"env_name": "PongNoFrameskip-v4", "stop_reward": 18.0, "milestone": 17.0},
    "breakout": {"env_name": "BreakoutNoFrameskip-v4", "stop_reward": 400.0},
    "freeway": {"env_name": "FreewayNoFrameskip-v4", "stop_reward": 30.0},
    OWN: {"env_name": "", "stop_reward": None},
}

# 01_ppo.py. An own environment gets the paper's settings for MuJoCo: Schulman et al. (2017), table 3, with the clip
# range of table 1. They are Stable-Baselines3's defaults, except that the learning rate falls, and that the 2,048 steps
# are played by several environments.
PPO_HYPERPARAMS = {name: PPOHyperparameters(run_name=name, **game) for name, game in _PPO_GAMES.items()}
_own = PPO_HYPERPARAMS[OWN]
PPO_HYPERPARAMS[ATARI] = dataclasses.replace(_own, run_name=ATARI)
PPO_HYPERPARAMS[OWN] = dataclasses.replace(
    _own, learning_rate=3e-4, rollout=256, minibatch=64, epochs=10, clip=0.2, entropy=0.0, max_steps=1_000_000
)

# 02_ppo_fast.py, 03_ppo_actors.py and 04_ppo_memory.py. The networks for vectors are small enough for more updates.
PPO_FAST_HYPERPARAMS = {name: FastPPOHyperparameters(run_name=name, **game) for name, game in _PPO_GAMES.items()}
_fast = PPO_FAST_HYPERPARAMS[OWN]
PPO_FAST_HYPERPARAMS[VECTORS] = dataclasses.replace(_fast, run_name=VECTORS, epochs=10, minibatch=128, max_steps=10**6)
PPO_FAST_HYPERPARAMS["pong"] = dataclasses.replace(
    PPO_FAST_HYPERPARAMS["pong"],
    env_name="PongNoFrameskip-v4(screen_size=42)",  # on fewer pixels, learning takes two thirds of the time
    gamma=0.98,
    entropy_final=0.0005,
    kl_target=0.02,
    learning_rate_max=0.01,
    learning_rate_max_final=0.0005,
    anneal_steps=800_000,
)
