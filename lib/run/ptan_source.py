"""Adapter that gives a plain PTAN experience source the interface that a run needs."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, SupportsFloat, runtime_checkable

import gymnasium as gym
from ignite.engine import Engine
from ptan.experience import VectorExperienceSourceFirstLast

from lib.envs.atari import frame_skip
from lib.experience.episodes import Episode
from lib.experience.interface import ExperienceSource
from lib.system.clock import Stopwatch, since_process_start


@runtime_checkable
class RewardsSource(Protocol):
    """The part of PTAN's experience sources, and of the book's batch generators, that a run uses."""

    def pop_rewards_steps(self) -> list[tuple[float, int]]:
        """Return the (return, length) of each episode that ended since the last call."""
        ...


@runtime_checkable
class PooledSource(Protocol):
    """A PTAN source, which steps the environments of its pool."""

    pool: Sequence[gym.Env]


class _CountSteps(gym.Wrapper):
    """Report every step of an environment."""

    def __init__(self, env: gym.Env, on_steps: Callable[[int, int], None]):
        super().__init__(env)
        self._on_steps = on_steps

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        result = self.env.step(action)
        self._on_steps(1, int(result[2] or result[3]))
        return result


class _CountVectorSteps(gym.vector.VectorWrapper):
    """Report every step of a vector environment."""

    def __init__(self, env: gym.vector.VectorEnv, on_steps: Callable[[int, int], None]):
        super().__init__(env)
        self._on_steps = on_steps

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = self.env.step(actions)
        self._on_steps(self.env.num_envs, int((result[2] | result[3]).sum()))
        return result


class PtanSource(ExperienceSource):
    """Adapter for a plain PTAN source, which knows the returns and lengths of its episodes and nothing else.

    Agent steps are counted in the environments of the source's pool. If it has no gymnasium environments, an iteration
    of the engine counts as one agent step. The source cannot be saved in a checkpoint.

    Args:
        source: PTAN's source, before its first step.
        engine: training engine.
    """

    PARTS = ()

    def __init__(self, source: RewardsSource, engine: Engine):
        self.source = source
        self.engine = engine
        self.clock = Stopwatch()
        self._steps = 0
        self._ends: list[tuple[int, float]] = []  # agent step and seconds at the ends of episodes, oldest first
        self._counts = True
        if isinstance(source, VectorExperienceSourceFirstLast):
            source.env = _CountVectorSteps(source.env, self._count)
        elif isinstance(source, PooledSource) and all(isinstance(env, gym.Env) for env in source.pool):
            source.pool = [_CountSteps(env, self._count) for env in source.pool]
            self.frame_skip = frame_skip(source.pool[0])
        else:
            self._counts = False

    def _count(self, steps: int, ended: int) -> None:
        """Count agent steps, and note when episodes ended. PTAN returns them later."""
        self._steps += steps
        self._ends += [(self._steps, since_process_start())] * ended
        self.on_step(steps)

    @property
    def steps_done(self) -> int:  # type: ignore[override] # read only here, an attribute in other sources
        """Agent steps so far."""
        return self._steps if self._counts else self.engine.state.iteration

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, oldest first."""
        episodes = self.source.pop_rewards_steps()
        ends, self._ends = self._ends[: len(episodes)], self._ends[len(episodes) :]
        ends += [(self.steps_done, since_process_start())] * (len(episodes) - len(ends))
        return [
            Episode(float(total), int(length), step, seconds)
            for (total, length), (step, seconds) in zip(episodes, ends, strict=True)
        ]

    def state_dict(self) -> dict[str, Any]:
        """Raise NotImplementedError."""
        raise NotImplementedError("a plain PTAN source cannot be saved")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raise NotImplementedError."""
        raise NotImplementedError("a plain PTAN source cannot be restored")


def adapt_source(source: ExperienceSource | RewardsSource, engine: Engine, saved: bool) -> ExperienceSource:
    """Return the source itself, or an adapter if it is a plain PTAN source.

    Args:
        source: experience source.
        engine: training engine.
        saved: whether the run saves checkpoints.

    Raises:
        TypeError: if it is no experience source, or the run saves checkpoints and it is a plain PTAN source.
    """
    if isinstance(source, ExperienceSource):
        return source
    if not isinstance(source, RewardsSource):
        raise TypeError(f"{source!r} is no experience source: it has no method pop_rewards_steps")
    if saved:
        raise TypeError(
            f"a plain PTAN source ({type(source).__name__}) cannot be saved in a checkpoint; "
            "use lib.experience.source.ExperienceSourceFirstLast, or call setup_ignite without save"
        )
    return PtanSource(source, engine)
