"""Adapter that gives a plain PTAN experience source the interface that a run needs."""

from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol, SupportsFloat

import gymnasium as gym
from ignite.engine import Engine

from lib.envs.atari import frame_skip
from lib.experience.interface import Episode, ExperienceSource
from lib.system.clock import since_process_start


class RewardsSource(Protocol):
    """The part of PTAN's experience sources, and of the book's batch generators, that a run uses."""

    def pop_rewards_steps(self) -> list[tuple[float, int]]:
        """Return the (return, length) of each episode that ended since the last call."""
        ...


class _CountSteps(gym.Wrapper):
    """Report every step of an environment."""

    def __init__(self, env: gym.Env, on_step: Callable[[], None]):
        super().__init__(env)
        self._on_step = on_step

    def step(self, action: object) -> tuple[object, SupportsFloat, bool, bool, dict[str, object]]:
        result = self.env.step(action)
        self._on_step()
        return result


class PtanSource(ExperienceSource):
    """Adapter for a plain PTAN source, which provides only the returns and lengths of its episodes.

    Agent steps are counted in the environments of the source's pool. If it has no pool of gymnasium environments, an
    iteration of the engine counts as one agent step. The source cannot be saved in a checkpoint.
    """

    PARTS = ()

    def __init__(self, source: RewardsSource, engine: Engine):
        super().__init__()
        self.source = source
        self.engine = engine
        self._steps = 0
        pool: Sequence[gym.Env] = getattr(source, "pool", ())  # a batch generator of the book has none
        self._counts = bool(pool) and all(isinstance(env, gym.Env) for env in pool)
        if self._counts:
            source.pool = [_CountSteps(env, self._count) for env in pool]  # type: ignore[attr-defined]
            self.frame_skip = frame_skip(pool[0])

    def _count(self) -> None:
        self._steps += 1
        self.on_step(1)

    @property
    def steps_done(self) -> int:  # type: ignore[override] # read only here, an attribute in other sources
        return self._steps if self._counts else self.engine.state.iteration

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, as if they had ended now."""
        ended = self.source.pop_rewards_steps()
        return [Episode(float(total), int(length), self.steps_done, since_process_start()) for total, length in ended]

    def state_dict(self) -> NoReturn:
        raise NotImplementedError(
            "a plain PTAN source cannot be saved in a checkpoint; use lib.experience.source.ExperienceSourceFirstLast, "
            "or call setup_ignite without save"
        )
