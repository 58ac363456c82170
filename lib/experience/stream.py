"""Steps of environments that step together, with what a run needs besides: episodes, and a way to stop and go on."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from lib.envs import vector_env
from lib.envs.observations import ObservationKind, observation_kind
from lib.experience.episodes import Again, Episode, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource
from lib.system.clock import Stopwatch, since_process_start
from lib.system.seeds import derived_seeds, hashed_seed

log = logging.getLogger(__name__)


class Step(NamedTuple):
    """What a step of all environments gave: arrays (num_envs, ...).

    Attributes:
        rewards: float32; terminated, truncated: bool, not both.
        final_states: where an episode ended, what it showed last; all else means nothing.
    """

    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final_states: np.ndarray


class Part(NamedTuple):
    """Which of a run's environments are stepped here, where others are stepped elsewhere.

    Attributes:
        first: the number of the first one.
        num_envs: how many.
        of: how many there are in all.
    """

    first: int
    num_envs: int
    of: int

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + self.num_envs)

    def of_all(self, steps: int) -> int:
        """Agent steps of all the run's environments when those of the part have made so many."""
        return steps // self.num_envs * self.of


@dataclass
class Trace:
    """What a finished episode is played again from; a call puts it together as an Again.

    Attributes:
        seed: of the run.
        began: agent steps of all the run's environments when these began anew.
        number: of the environment in the run.
        taken: actions since then, each array of one step (num_envs,) or of several (steps, num_envs).
        column: of the environment in them.
        end: how many steps had been made when the episode ended.
        length: of the episode.
        last_state, no_ops: see Again.
    """

    seed: int
    began: int
    number: int
    taken: Sequence[np.ndarray]
    column: int
    end: int
    length: int
    last_state: np.ndarray
    no_ops: int | None

    def __call__(self) -> Again:
        seed = int(_seeds(self.seed, self.began, self.number + 1)[-1])
        actions: list[int] = np.vstack(self.taken)[: self.end, self.column].tolist()
        begins = self.end - self.length
        if self.no_ops is not None:  # nearly every game is the same after a reset, whatever was played before
            actions, begins = actions[begins:], 0
        return Again(seed, actions, self.last_state, begins, self.no_ops)


class Stream(ExperienceSource):
    """Steps of environments, which can be stopped and gone on with bit for bit.

    An environment cannot be copied; but its seed and all actions since bring others to the same place. So that this
    never takes long, all environments begin anew after RESTART agent steps, and what they were at is truncated.

    Args:
        envs: of make_vector_env.
        seed: what the environments' seeds are derived from.
        part: which of the run's environments they are; None for all.

    Attributes:
        states: (num_envs, ...) as they are now.
        steps_done: agent steps so far, over all environments that are stepped here.
        began: how many they were when all environments began anew; None before the first.
        clock: seconds spent in "environment".
        frame_skip: frames of the emulator in an agent step; 1 for what is no Atari game.
        native: whether they are Atari games that ale_py steps.
        broken_off: what they showed when they were saved, where they could not be brought back to it and have begun
            anew in its place; None else.
        on_step: called with the agent steps of a step of all environments; None for nothing.
    """

    RESTART = 500_000

    def __init__(self, envs: VectorEnv, seed: int = 0, part: Part | None = None):
        self.envs = envs
        self.seed = seed
        self.part = part or Part(0, envs.num_envs, envs.num_envs)
        self.states: np.ndarray = np.zeros(0)
        self.steps_done = 0
        self.clock = Stopwatch()
        self.frame_skip = vector_env.vector_frame_skip(envs)
        self.native = vector_env.is_native(envs)
        self.began: int | None = None
        self.broken_off: np.ndarray | None = None
        self._taken: list[np.ndarray] = []  # the actions since then
        self._no_ops: np.ndarray | None = None  # that each native game's episode began with
        self._episodes: list[Episode] = []

    def begin(self) -> None:
        """Reset the environments, if that was never done."""
        if self.began is None:
            self._begin(self.steps_done)

    def step(self, actions: np.ndarray) -> Step:
        """One step of each environment.

        Args:
            actions: (num_envs,) whole numbers.

        Raises:
            RuntimeError: they have not begun.
        """
        if self.began is None:
            raise RuntimeError("the environments have not begun; call begin() first")
        acted_in = self.states
        with self.clock("environment"):
            self.states, rewards, terminated, truncated, infos = self.envs.step(actions)
        self._taken.append(actions.astype(np.int32))
        self.steps_done += self.envs.num_envs
        if self.on_step is not None:
            self.on_step(self.envs.num_envs)
        final_states = infos.get("final_obs", self.states)
        for index in np.flatnonzero(terminated | truncated):
            total, length = float(infos["episode"]["r"][index]), int(infos["episode"]["l"][index])
            again = self._trace(int(index), length, acted_in[index].copy())
            self._episodes.append(Episode(total, length, self.steps_done, since_process_start(), again))
        self._count_no_ops(infos, terminated | truncated)
        truncated = truncated & ~terminated
        if self.part.of_all(self.steps_done - self.began) >= self.RESTART:
            goes_on = ~(terminated | truncated)
            final_states = final_states.copy()
            final_states[goes_on] = self.states[goes_on]
            truncated = truncated | goes_on
            self._begin(self.steps_done)
        return Step(rewards, terminated, truncated, final_states)

    def _begin(self, step: int) -> None:
        with self.clock("environment"):
            seeds = _seeds(self.seed, self.part.of_all(step), self.part.of)
            own = [int(seeds[number]) for number in self.part.numbers]
            self.states, infos = self.envs.reset(seed=own)  # type: ignore[arg-type] # gymnasium's own take a list too
        self.began, self._taken, self._no_ops = step, [], None
        self._count_no_ops(infos, np.ones(self.envs.num_envs, bool))

    def _count_no_ops(self, infos: Mapping[str, Any], begun: np.ndarray) -> None:
        """Note the emulators' frames in the episodes that have begun: all that were played before they were shown."""
        if self.native:
            frames = infos["episode_frame_number"]
            self._no_ops = frames.copy() if self._no_ops is None else np.where(begun, frames, self._no_ops)

    def _trace(self, index: int, length: int, last_state: np.ndarray) -> Trace:
        assert self.began is not None
        return Trace(
            seed=self.seed,
            began=self.part.of_all(self.began),
            number=self.part.first + index,
            taken=self._taken,
            column=index,
            end=len(self._taken),
            length=length,
            last_state=last_state,
            no_ops=None if self._no_ops is None else int(self._no_ops[index]),
        )

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def state_dict(self) -> dict[str, Any]:
        """When all environments began anew, and the actions since then."""
        return {
            "steps_done": self.steps_done,
            "began": self.began,
            "actions": torch.from_numpy(np.array(self._taken, np.int32)),
            "states": torch.from_numpy(self.states.copy()),
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin as the saved one did and take the same actions; half a million take a minute or two. Where that leads
        elsewhere, all environments begin anew."""
        self.steps_done = state["steps_done"]
        self._episodes = unpack_episodes(state["episodes"])
        if state["began"] is None:
            return
        raised = ""
        try:
            self._play_again(state["began"], state["actions"].numpy())
        except Exception as error:  # noqa: BLE001 - it is another's code, and may refuse what it allowed before
            raised = f" ({type(error).__name__}: {error})"
        if raised or not np.array_equal(self.states, state["states"].numpy()):
            log.warning(
                "The environments do not repeat themselves from their seeds and actions, and begin anew: the resumed "
                "run is a good continuation, but not bit for bit the uninterrupted one.%s",
                raised,
            )
            self.broken_off = state["states"].numpy()
            self._begin(self.steps_done)

    def _play_again(self, began: int, taken: np.ndarray) -> None:
        self._begin(began)
        for actions in taken:
            self.states, _, terminated, truncated, infos = self.envs.step(actions.astype(np.int64))
            self._count_no_ops(infos, terminated | truncated)
            self._taken.append(actions.astype(np.int32))


def _seeds(seed: int, step: int, num_envs: int) -> np.ndarray:
    """The seeds of a run's first environments when all begin anew, after so many agent steps of all."""
    return derived_seeds(hashed_seed(seed, 0, step), num_envs)


class ExperienceStream(Stream):
    """What an agent does in environments that step together, for a replay.

    Args:
        envs: of make_vector_env.
        agent: a ptan agent; called with the states of all environments.
        seed: what the environments' seeds are derived from.

    Attributes:
        clock: seconds spent in "act" and "environment".
        stacked: whether a state is a stack of frames, of which a step brings one; else it is all new.
    """

    def __init__(self, envs: VectorEnv, agent: Any, seed: int = 0):
        super().__init__(envs, seed)
        self.agent = agent
        self.stacked = observation_kind(envs.single_observation_space) is ObservationKind.IMAGE

    @property
    def last_frames(self) -> np.ndarray | None:
        """Of the episodes that were broken off, (num_envs, *frame_shape); see Stream.broken_off."""
        return None if self.broken_off is None else self._newest(self.broken_off)

    def _newest(self, states: np.ndarray) -> np.ndarray:
        return states[:, -1] if self.stacked else states

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        """Steps without end, as replay.Ring wants them."""
        self.begin()
        agent_states = [self.agent.initial_state() for _ in range(self.envs.num_envs)]
        while True:
            frames = self._newest(self.states)
            with self.clock("act"):
                actions, agent_states = self.agent(self.states, agent_states)
            step = self.step(np.asarray(actions))
            for index in np.flatnonzero(step.terminated | step.truncated):
                agent_states[index] = self.agent.initial_state()
            yield (
                frames,
                np.asarray(actions),
                step.rewards,
                step.terminated,
                step.truncated,
                self._newest(step.final_states),
            )
