"""What each game is learnt with. Changed only by `dataclasses.replace`, which checks every field again."""

import dataclasses
import logging
import math
import re
from typing import Self

from lib.errors import divisors

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunParameters:
    """What every way to learn a game needs.

    Attributes:
        env_name: gymnasium id.
        stop_reward: mean return of the last 100 training episodes that counts as solved; None for nothing does.
        run_name: part of the run folder's name.
        learning_rate: Adam's.
        gamma: discount factor of a step.
        max_steps: agent steps after which a run gives up.
        milestone: a second mean return whose first reaching is recorded, or None.
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
        """Learner iterations between TensorBoard's scalars."""
        return 100

    def __post_init__(self) -> None:
        _within(self, 0.0, 1.0, "gamma")
        _at_least(self, 1, "max_steps", "checkpoint_every")
        _require(0.0 < self.learning_rate <= 1e30, self, "learning_rate", "above 0, and 1e30 at most")
        for name in ("stop_reward", "milestone"):
            bound = getattr(self, name)
            _require(bound is None or math.isfinite(bound), self, name, "a finite number, or none")
        fits = re.fullmatch(r"[A-Za-z0-9._-]{1,100}", self.run_name)
        _require(fits is not None, self, "run_name", "1 to 100 letters, digits, '.', '_' and '-': it names a folder")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hyperparameters(RunParameters):
    """DQN's, as in the book.

    Attributes:
        replay_size: agent steps that the replay holds, at most 1e12; of environments that step together, rounded up to
            a multiple of them.
        replay_initial: agent steps before learning, of random play where epsilon begins at 1.
        target_net_sync: agent steps of learning between copies of the network to the target network.
        epsilon_frames, epsilon_start, epsilon_final: exploration, see EpsilonTracker.
        batch_size: transitions learnt from for each agent step, and in an iteration of one step; in 03_parallel.py a
            fourth of an update's, where --replay-ratio says how many a step.
        checkpoint_replay: whether a checkpoint holds the replay; without it a resumed run refills it first.
        huber: whether errors of values cost as Huber has it, and not as the book has it their square; see
            losses.penalties. Distributions of values know neither.
    """

    replay_size: int
    replay_initial: int
    target_net_sync: int
    epsilon_frames: int
    epsilon_start: float
    epsilon_final: float
    batch_size: int
    checkpoint_replay: bool = True
    huber: bool = False

    @property
    def warm_up(self) -> int:
        return self.replay_initial

    def without_epsilon(self) -> Self:
        """These with epsilon at 0, for a script that explores by noise; a log line says so."""
        log.info("Noise explores: epsilon is 0, whatever --set gave for it.")
        return dataclasses.replace(self, epsilon_start=0.0, epsilon_final=0.0)

    def with_epsilon_to_zero(self) -> Self:
        """These with epsilon going down to 0, for a script that explores by noise as well; a log line says so."""
        log.info("Noise explores after the first steps: epsilon_final is 0, whatever --set gave for it.")
        return dataclasses.replace(self, epsilon_final=0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        _within(self, 0.0, 1.0, "epsilon_start", "epsilon_final")
        _at_least(self, 1, "replay_size", "replay_initial", "target_net_sync", "epsilon_frames", "batch_size")
        _require(self.replay_size <= 10**12, self, "replay_size", "at most 1e12")
        _require(
            self.replay_initial <= self.replay_size, self, "replay_initial", f"at most replay_size, {self.replay_size}"
        )
        _require(
            self.batch_size <= self.replay_initial, self, "batch_size", f"at most replay_initial, {self.replay_initial}"
        )
        _require(
            self.max_steps > self.replay_initial, self, "max_steps", f"above replay_initial, {self.replay_initial}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PPOHyperparameters(RunParameters):
    """Proximal policy optimisation's; see lib.ppo.

    Attributes:
        envs: environments that step together.
        rollout: steps of each between two updates.
        minibatch: transitions of one step of the optimizer; it divides envs * rollout.
        epochs: how often a rollout is learnt from; once where most of the way to stop_reward is done.
        lam: lambda of the advantage estimates.
        clip: how far the policy's ratio counts.
        entropy: weight of the entropy at first; 0 where the last `envs` episodes are at stop_reward in the mean.
        gradient_norm: of the clipped gradient.
        kl_target: of the learning rate that follows the policy's moves, or None for a fixed one.
        kl_final: what kl_target has come down to there, or None for no change; without a kl_target it means nothing.
        final_temperature: what the policy's logits are divided by once most of the way to stop_reward has been done,
            for good; see lib.ppo.Trainer.
    """

    envs: int = 16
    rollout: int = 64
    minibatch: int = 256
    epochs: int = 3
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    gradient_norm: float = 1.0
    kl_target: float | None = 0.01
    kl_final: float | None = None
    final_temperature: float = 1.0

    @property
    def log_every(self) -> int:
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()
        _within(self, 0.0, 1.0, "lam")
        _require(0.0 < self.clip <= 1.0, self, "clip", "above 0, and 1 at most")
        _at_least(self, 1, "envs", "rollout", "minibatch", "epochs")
        size = self.envs * self.rollout
        _require(1 < size <= 10**9, self, "rollout", f"such that envs, {self.envs}, times it is 2 to 1e9")
        _require(
            self.minibatch > 1 and size % self.minibatch == 0,
            *(self, "minibatch", f"a divisor of envs * rollout, {size}: one of {divisors(size, least=2)}"),
        )
        _require(0.0 <= self.entropy < math.inf, self, "entropy", "a finite number, at least 0")
        _require(0.0 < self.gradient_norm < math.inf, self, "gradient_norm", "a finite number above 0")
        _require(0.01 <= self.final_temperature <= 1.0, self, "final_temperature", "at least 0.01, and 1 at most")
        for name in ("kl_target", "kl_final"):
            target = getattr(self, name)
            _require(target is None or 0.0 < target < math.inf, self, name, "a finite number above 0, or none")
        if self.kl_target is not None and self.kl_final is not None:
            _require(
                self.kl_final <= self.kl_target, self, "kl_final", f"none, or kl_target, {self.kl_target}, at most"
            )


def _within(params: RunParameters, low: float, high: float, *names: str) -> None:
    for name in names:
        _require(low <= getattr(params, name) <= high, params, name, f"between {low:g} and {high:g}")


def _at_least(params: RunParameters, low: int, *names: str) -> None:
    for name in names:
        _require(getattr(params, name) >= low, params, name, f"at least {low}")


def _require(condition: bool, params: RunParameters, name: str, allowed: str) -> None:
    if not condition:
        raise ValueError(f"{name} is {getattr(params, name)!r}; it has to be {allowed}")


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


_PPO_BREAKOUT = PPOHyperparameters(
    env_name="BreakoutNoFrameskip-v4",
    stop_reward=400.0,
    run_name="breakout",
    learning_rate=5e-4,
    gamma=0.99,
    checkpoint_every=100_000,
)


PPO_HYPERPARAMS = {
    "pong": PPOHyperparameters(
        env_name="PongNoFrameskip-v4",
        stop_reward=18.0,
        run_name="pong",
        learning_rate=5e-4,
        gamma=0.98,
        max_steps=10_000_000,
        milestone=17.0,
        checkpoint_every=100_000,
        kl_target=0.02,
        kl_final=0.003,
        final_temperature=0.5,
    ),
    "breakout": _PPO_BREAKOUT,
    "freeway": dataclasses.replace(
        _PPO_BREAKOUT, env_name="FreewayNoFrameskip-v4", run_name="freeway", stop_reward=30.0
    ),
}
