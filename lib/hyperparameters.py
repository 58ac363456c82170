"""Hyperparameters of each game. Assigning a field and `dataclasses.replace` both validate the new value."""

import dataclasses
import logging
import math
import re
from collections.abc import Mapping
from typing import Any, Self

from lib.errors import divisors
from lib.system.checked import Checked, at_least, require, within

log = logging.getLogger(__name__)


LARGEST = 1e30  # largest magnitude of a hyperparameter; float32 holds numbers up to 3e38


@dataclasses.dataclass(kw_only=True)
class RunParameters(Checked):
    """Hyperparameters that every algorithm needs.

    A field can be assigned, as in `params.batch_size *= 3`; see Checked.

    Attributes:
        env_name: gymnasium id of the environment.
        stop_reward: mean return of the last 100 training episodes that solves the game; None for no goal.
        run_name: part of the run folder's name.
        learning_rate: Adam's learning rate.
        gamma: discount factor, 0 to 1.
        max_steps: agent steps after which an unsolved run stops.
        milestone: another mean return; the time at which a run first reaches it is recorded. None for no milestone.
        checkpoint_every: agent steps between checkpoints.
    """

    env_name: str
    stop_reward: float | None
    run_name: str
    learning_rate: float
    gamma: float
    max_steps: int = 50_000_000
    milestone: float | None = None
    checkpoint_every: int = 20_000

    @property
    def warm_up(self) -> int:
        """Agent steps before learning begins."""
        return 0

    @property
    def log_every(self) -> int:
        """Learner iterations between TensorBoard scalars."""
        return 100

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0.0, 1.0, "gamma")
        at_least(self, 1, "max_steps", "checkpoint_every")
        require(0.0 < self.learning_rate <= LARGEST, self, "learning_rate", "above 0 and at most 1e30")
        for name in ("stop_reward", "milestone"):
            value = getattr(self, name)
            require(value is None or abs(value) <= LARGEST, self, name, "none or between -1e30 and 1e30")
        valid_name = re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.run_name)
        require(
            valid_name is not None,
            self,
            "run_name",
            "1 to 100 letters, digits, '.', '_' and '-', because it names a folder",
        )


@dataclasses.dataclass(kw_only=True)
class Hyperparameters(RunParameters):
    """Hyperparameters of DQN, with the book's names.

    Attributes:
        replay_size: capacity of the replay buffer in agent steps, at most 1e12. It is rounded up to a multiple of the
            number of environments that step together.
        replay_initial: agent steps before learning begins; they are random if `epsilon_start` is 1.
        target_net_sync: agent steps between two updates of the target network, counted after the warm-up.
        epsilon_frames: agent steps after the warm-up in which epsilon falls by 1; see common.EpsilonTracker.
        epsilon_start: first epsilon, unless `epsilon_final` is higher.
        epsilon_final: smallest epsilon.
        learning_rate_final: learning rate after `learning_rate_steps`; None if it is constant. The decay is linear.
        learning_rate_steps: agent steps in which the learning rate decays, warm-up included.
        batch_size: transitions sampled per agent step. The minibatch of an update has this number for each of its agent
            steps.
        learn_every: agent steps between two updates; see steps_per_update. 03_parallel.py uses at least four at
            its default --replay-ratio.
        checkpoint_replay: save the replay buffer in checkpoints. Without it, a resumed run fills its buffer first.
        huber: use the Huber loss instead of the squared error. Distributional losses ignore it.
        normalise: use dqn_model.NormalisingTrunk, a smaller network that normalises its input, instead of the paper's.
            07_pong_in_minutes.py always uses it.
    """

    replay_size: int
    replay_initial: int
    target_net_sync: int
    epsilon_frames: int
    learning_rate: float = 0.0001
    gamma: float = 0.99
    epsilon_start: float = 1.0
    epsilon_final: float = 0.1
    batch_size: int = 32
    learn_every: int = 1
    learning_rate_final: float | None = None
    learning_rate_steps: int = 400_000
    checkpoint_replay: bool = True
    huber: bool = False
    normalise: bool = False

    @property
    def warm_up(self) -> int:
        return self.replay_initial

    def steps_per_update(self, envs: int = 1) -> int:
        """Return the agent steps between two updates: `learn_every`, rounded up to a multiple of the environments.

        Args:
            envs: number of environments that step together.
        """
        return envs * math.ceil(self.learn_every / envs)

    def without_epsilon(self) -> Self:
        """Return a copy with epsilon 0, for a script that explores by noise. The change is logged."""
        log.info("Exploration by noise: epsilon is 0, and --set epsilon_start and epsilon_final have no effect.")
        return dataclasses.replace(self, epsilon_start=0.0, epsilon_final=0.0)

    def with_epsilon_to_zero(self) -> Self:
        """Return a copy whose epsilon falls to 0, for a script that also explores by noise. The change is logged."""
        log.info(
            "Exploration by noise after the first steps: epsilon falls to 0, and --set epsilon_final has no effect."
        )
        return dataclasses.replace(self, epsilon_final=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        within(self, 0.0, 1.0, "epsilon_start", "epsilon_final")
        at_least(self, 1, "replay_size", "replay_initial", "target_net_sync", "epsilon_frames", "batch_size")
        at_least(self, 1, "learn_every", "learning_rate_steps")
        final = self.learning_rate_final
        allowed = f"above 0 and at most learning_rate, {self.learning_rate:g}, or none"
        require(final is None or 0.0 < final <= self.learning_rate, self, "learning_rate_final", allowed)
        require(self.replay_size <= 10**12, self, "replay_size", "at most 1e12")
        require(
            self.replay_initial <= self.replay_size,
            self,
            "replay_initial",
            f"at most replay_size, {self.replay_size}",
        )
        require(
            self.batch_size <= self.replay_initial,
            self,
            "batch_size",
            f"at most replay_initial, {self.replay_initial}",
        )
        require(
            self.max_steps > self.replay_initial,
            self,
            "max_steps",
            f"above replay_initial, {self.replay_initial}",
        )


@dataclasses.dataclass(kw_only=True)
class PPOHyperparameters(RunParameters):
    """Hyperparameters of textbook PPO. ppo.update.UpdateSettings explains the fields from `minibatch` on.

    The defaults are those that CleanRL and Stable-Baselines3 share for Atari games.

    Attributes:
        learning_rate: Adam's first learning rate; see `learning_rate_at`.
        envs: number of environments that step together.
        rollout: steps of each environment between two updates.
        minibatch: transitions per optimizer step, at least 2; it divides envs * rollout.
        epochs: passes over a rollout.
        lam: lambda of the advantage estimates, 0 to 1.
        clip: clipping range of the probability ratio, at most 1.
        entropy: weight of the entropy bonus.
        gradient_norm: norm to which larger gradients are scaled down.
    """

    learning_rate: float = 2.5e-4
    gamma: float = 0.99
    max_steps: int = 10_000_000
    checkpoint_every: int = 100_000
    envs: int = 8
    rollout: int = 128
    minibatch: int = 256
    epochs: int = 4
    lam: float = 0.95
    clip: float = 0.1
    entropy: float = 0.01
    gradient_norm: float = 0.5

    @property
    def log_every(self) -> int:
        return 1

    def learning_rate_at(self, steps: int) -> float:
        """Return the learning rate after some agent steps. It falls linearly to 0 at `max_steps`."""
        return self.learning_rate * max(0.0, 1.0 - steps / self.max_steps)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(self, 1, "envs", "rollout", "minibatch", "epochs")
        self._validate_sizes()
        within(self, 0.0, 1.0, "lam")
        require(0.0 < self.clip <= 1.0, self, "clip", "above 0 and at most 1")
        require(0.0 <= self.entropy <= LARGEST, self, "entropy", "between 0 and 1e30")
        require(0.0 < self.gradient_norm <= LARGEST, self, "gradient_norm", "above 0 and at most 1e30")

    def _validate_sizes(self) -> None:
        transitions = self.envs * self.rollout
        require(
            1 < transitions <= 10**9,
            self,
            "rollout",
            f"such that envs * rollout is between 2 and 1e9 (envs is {self.envs})",
        )
        require(
            self.minibatch > 1 and transitions % self.minibatch == 0,
            self,
            "minibatch",
            f"a divisor of envs * rollout, {transitions}: one of {divisors(transitions, least=2)}",
        )


@dataclasses.dataclass(kw_only=True)
class FastPPOHyperparameters(PPOHyperparameters):
    """Hyperparameters of fast PPO. `annealed` explains the final values.

    Attributes:
        learning_rate: Adam's learning rate; the first one, if it is adaptive.
        entropy_final: final value of `entropy`.
        kl_target: Kullback-Leibler divergence that the learning rate adapts to; None for a fixed rate.
        kl_target_final: final value of `kl_target`.
        learning_rate_max: largest value of an adaptive learning rate.
        learning_rate_max_final: final value of `learning_rate_max`.
        anneal_steps: agent steps until the final values; None for `max_steps`.
    """

    learning_rate: float = 5e-4
    envs: int = 16
    rollout: int = 64
    epochs: int = 3
    clip: float = 0.2
    gradient_norm: float = 1.0
    entropy_final: float = 0.001
    kl_target: float | None = 0.01
    kl_target_final: float = 0.001
    learning_rate_max: float = 1e-3
    learning_rate_max_final: float = 1e-4
    anneal_steps: int | None = None

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

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("kl_target", "kl_target_final"):
            value = getattr(self, name)
            require(value is None or 0.0 < value <= LARGEST, self, name, "above 0 and at most 1e30")
        for name in ("learning_rate_max", "learning_rate_max_final"):
            require(0.0 < getattr(self, name) <= 1.0, self, name, "above 0 and at most 1")
        require(0.0 <= self.entropy_final <= LARGEST, self, "entropy_final", "between 0 and 1e30")
        require(self.anneal_steps is None or self.anneal_steps >= 1, self, "anneal_steps", "none or at least 1")


def kind_of(fields: Mapping[str, Any]) -> type[RunParameters]:
    """Return the type of recorded hyperparameters."""
    if "replay_size" in fields:
        return Hyperparameters
    return FastPPOHyperparameters if "kl_target" in fields else PPOHyperparameters


def recorded_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded hyperparameters of a run, with those that earlier versions did not record."""
    earlier = {"learning_rate_max": 0.01} if issubclass(kind_of(fields), FastPPOHyperparameters) else {}
    return {**earlier, **fields}


# Fields of the second edition's namespaces.
BOOK_FIELDS = (
    "env_name",
    "stop_reward",
    "run_name",
    "replay_size",
    "replay_initial",
    "target_net_sync",
    "epsilon_frames",
    "epsilon_start",
    "epsilon_final",
    "learning_rate",
    "gamma",
    "batch_size",
)


def as_hyperparameters(params: object) -> RunParameters:
    """Return params themselves, or the Hyperparameters with the values of a namespace.

    Args:
        params: hyperparameters, or any object with BOOK_FIELDS as attributes, such as the second edition's
            SimpleNamespace. Attributes that Hyperparameters does not have are ignored.

    Raises:
        ValueError: if a field is missing or out of range.
    """
    if isinstance(params, RunParameters):
        return params
    fields = dataclasses.fields(Hyperparameters)
    if isinstance(params, Mapping):
        raise ValueError("the hyperparameters are a dict; give SimpleNamespace(**params), or Hyperparameters(**params)")
    missing = [name for name in BOOK_FIELDS if not hasattr(params, name)]
    if missing:
        raise ValueError(
            f"the hyperparameters lack {', '.join(missing)}; a {type(params).__name__} needs {', '.join(BOOK_FIELDS)}"
        )
    return Hyperparameters(**{each.name: getattr(params, each.name) for each in fields if hasattr(params, each.name)})


_BREAKOUT = Hyperparameters(
    env_name="BreakoutNoFrameskip-v4",
    stop_reward=500.0,
    run_name="breakout",
    replay_size=1_000_000,
    replay_initial=50_000,
    target_net_sync=10_000,
    epsilon_frames=10**6,
    epsilon_start=1.0,
    epsilon_final=0.1,
    learning_rate=0.00025,
    gamma=0.99,
    batch_size=32,
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
        epsilon_start=1.0,
        epsilon_final=0.02,
        learning_rate=0.0001,
        gamma=0.99,
        batch_size=32,
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


# --params best, for a CPU: a smaller network, a higher learning rate, and a batch of 32 every 4 steps, not every step.
BEST_HYPERPARAMS = {
    "pong": dataclasses.replace(
        HYPERPARAMS["pong"],
        replay_initial=5_000,
        target_net_sync=500,
        epsilon_frames=30_000,
        epsilon_final=0.01,
        learning_rate=0.0005,
        learning_rate_final=0.00005,
        learning_rate_steps=1_000_000,
        gamma=0.98,
        batch_size=8,
        learn_every=4,
        huber=True,
        normalise=True,
    )
}


# Entry of PPO's tables with plain settings for a user's own environment. --env-id starts from it if no --game is given.
OWN = "own"

_PPO_GAMES: dict[str, dict[str, Any]] = {
    "pong": {"env_name": "PongNoFrameskip-v4", "stop_reward": 18.0, "milestone": 17.0},
    "breakout": {"env_name": "BreakoutNoFrameskip-v4", "stop_reward": 400.0},
    "freeway": {"env_name": "FreewayNoFrameskip-v4", "stop_reward": 30.0},
    OWN: {"env_name": "", "stop_reward": None},
}
_FASTER_ON_PONG: dict[str, Any] = {
    "gamma": 0.98,
    "entropy_final": 0.0005,
    "kl_target": 0.02,
    "kl_target_final": 0.002,
    "learning_rate_max": 0.01,
    "learning_rate_max_final": 0.0005,
    "anneal_steps": 500_000,
}

# 01_ppo.py
PPO_HYPERPARAMS = {name: PPOHyperparameters(run_name=name, **game) for name, game in _PPO_GAMES.items()}

# 02_ppo_fast.py and 03_ppo_actors.py
PPO_FAST_HYPERPARAMS = {name: FastPPOHyperparameters(run_name=name, **game) for name, game in _PPO_GAMES.items()}
PPO_FAST_HYPERPARAMS["pong"] = dataclasses.replace(PPO_FAST_HYPERPARAMS["pong"], **_FASTER_ON_PONG)
