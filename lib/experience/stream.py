"""Streams: steps and episodes of environments that are stepped together, with resumption from a checkpoint."""

import logging
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from lib.envs import vector_env
from lib.envs.atari import frame_skip
from lib.envs.checked_env import Info
from lib.envs.masks import stacks_frames
from lib.errors import Fault, UsageError
from lib.experience.interface import Episode, EpisodeTrace, ExperienceSource, State
from lib.system.clock import since_process_start
from lib.system.log import TaskProgress
from lib.system.seeds import hashed_seed

log = logging.getLogger(__name__)


class Step(NamedTuple):
    """One step of all environments.

    The states of ExperienceStream.steps hold only the newest frames, (num_envs, *frame_shape). The first frame of an
    episode fills the whole stack.
    """

    states: np.ndarray  # (num_envs, ...) states in which the actions were taken
    actions: np.ndarray  # (num_envs, ...)
    rewards: np.ndarray  # (num_envs,) real numbers
    terminated: np.ndarray  # (num_envs,) bool
    truncated: np.ndarray  # (num_envs,) bool; never true together with `terminated`
    final_states: np.ndarray  # next states before any reset, like `states`


class Snapshot:
    """Resets and actions of environments that are stepped together.

    Args:
        seed_of: function from the index of an environment and the number of a reset to the seed of that reset.
        action_space: that of one environment.

    Attributes:
        resets: (num_envs,) int64, number of each environment's last seeded reset; -1 before the first one. If an
            environment is reset for each episode, this is the episode index. In a stream, it is the number of agent
            steps before the reset.
        starts: (num_envs,) int64, number of kept steps before that reset.
        length: number of kept steps.
    """

    ROOM = 1024  # steps for which memory is added at least

    def __init__(self, seed_of: Callable[[int, int], int], num_envs: int, action_space: spaces.Space[object]):
        self.resets = np.full(num_envs, -1, np.int64)
        self.starts = np.zeros(num_envs, np.int64)
        self._seed_of = seed_of
        dtype = action_space.dtype if isinstance(action_space, spaces.Box) else np.int32
        self._memory = np.zeros((0, num_envs, *(action_space.shape or ())), dtype)  # the first rows hold actions
        self.length = 0

    @property
    def actions(self) -> np.ndarray:
        """Kept actions, (steps, num_envs, ...): int32, or of the type of a Box."""
        return self._memory[: self.length]

    def seeds(self) -> list[int]:
        """Return the seed of each environment's last reset."""
        return [self._seed_of(env, reset) for env, reset in enumerate(self.resets.tolist())]

    def restart(self, number: int | np.ndarray, which: np.ndarray | slice = slice(None)) -> None:
        """Record a seeded reset.

        Args:
            number: number of the reset, the argument of `seed_of`; or one for each environment that was reset.
            which: (num_envs,) bool, or indices, of the environments that were reset.
        """
        self.resets[which] = number
        self.starts[which] = self.length

    def append(self, actions: np.ndarray) -> None:
        """Record one step, (num_envs, ...). Steps before all resets may be dropped."""
        if self.length == len(self._memory):
            unneeded = int(self.starts.min())
            kept = self.actions[unneeded:]
            room = np.zeros((max(len(kept), self.ROOM), *kept.shape[1:]), kept.dtype)
            self._memory = np.concatenate([kept, room])  # a new array, because traces are views of the old one
            self.length -= unneeded
            self.starts -= unneeded
        self._memory[self.length] = actions
        self.length += 1

    def trace(self, env: int, length: int, last_state: np.ndarray, no_ops: int | None = None) -> EpisodeTrace:
        """Return the trace of an episode of `length` steps that has just ended; for the others see EpisodeTrace."""
        actions = self.actions[int(self.starts[env]) :, env]
        first = len(actions) - length
        if no_ops is not None:  # in nearly every Atari game, it alone determines the first state
            actions, first = actions[first:], 0
        return EpisodeTrace(self._seed_of(env, int(self.resets[env])), actions, last_state, first, no_ops)

    def state_dict(self) -> State:
        """Return the resets, and the actions since the earliest one."""
        first = int(self.starts.min())
        return {
            "resets": torch.from_numpy(self.resets.copy()),
            "starts": torch.from_numpy(self.starts - first),
            "actions": torch.from_numpy(self.actions[first:].copy()),
        }

    def load_state_dict(self, state: State) -> None:
        self.resets = state["resets"].numpy().copy()
        self.starts = state["starts"].numpy().copy()
        if "actions" in state:
            self._memory = state["actions"].numpy()  # without room, so that it is never changed
        self.length = len(self._memory)


class Stream(ExperienceSource):
    """Steps of environments that are stepped together. A resumed stream gives the same steps bit for bit.

    It is restored by repeating its actions from the reset seeds. To limit the time that this takes, an environment gets
    a new seed when the first episode ends after RESEED_EVERY / total_envs of its own steps.

    Args:
        envs: vector environment of make_vector_env. A UsageError refuses one that resets a step after an episode.
        seed: seed from which the environments' reset seeds are derived.
        first_env: index of the first of these environments in the run.
        total_envs: number of environments in the run; None if there are no others.

    Attributes:
        env_indices: indices of the environments in the run.
        states: (num_envs, ...) latest states.
        interrupted_states: (num_envs, ...) saved states of the environments if they could not be restored from a
            checkpoint and were reset; otherwise None.
    """

    RESEED_EVERY = 500_000  # agent steps, summed over environments; 0 for a new seed at every end of an episode

    def __init__(self, envs: VectorEnv, seed: int = 0, first_env: int = 0, total_envs: int | None = None):
        super().__init__()
        if envs.metadata.get("autoreset_mode") is AutoresetMode.NEXT_STEP:  # a transition would cross two episodes
            raise UsageError(f"{envs} resets one step late; use make_vector_env, or AutoresetMode.SAME_STEP")
        self.envs = envs
        self.seed = seed
        self.env_indices = range(first_env, first_env + envs.num_envs)
        self.total_envs = total_envs or envs.num_envs
        vector_env.set_each(envs, "number", list(self.env_indices))
        self.states: np.ndarray = np.zeros(0)
        self.frame_skip = frame_skip(envs)
        self.interrupted_states: np.ndarray | None = None
        self._snapshot = Snapshot(self._reset_seed, envs.num_envs, envs.single_action_space)

    def begin(self) -> None:
        """Reset the environments on the first call."""
        if not len(self.states):
            self._reseed(np.ones(self.envs.num_envs, bool))

    def step(self, actions: np.ndarray) -> Step:
        """Step each environment once.

        Args:
            actions: (num_envs, ...) actions of the environments' action space.
        """
        previous_states = self.states
        with self.clock("environment"):
            self.states, rewards, terminated, truncated, infos = self.envs.step(actions)
        self._snapshot.append(actions)
        self.steps_done += self.envs.num_envs
        self.on_step(self.envs.num_envs)
        ended = terminated | truncated
        final_states = self.states.copy() if "final_obs" in infos else self.states
        for env in np.flatnonzero(ended).tolist():
            if "final_obs" in infos:  # the environment was reset in the step that ended its episode
                final_states[env] = infos["final_obs"][env]
            self._episodes.append(self._episode(env, infos, previous_states[env]))
        due = ended & ((self._snapshot.length - self._snapshot.starts) * self.total_envs >= self.RESEED_EVERY)
        if due.any():
            self._reseed(due)
        return Step(previous_states, actions, rewards, terminated, truncated & ~terminated, final_states)

    def _reseed(self, which: np.ndarray) -> None:
        """Reset the environments that `which`, (num_envs,) bool, selects, with new seeds."""
        self._snapshot.restart(self.steps_done, which)
        self._reset(which)

    def _reset_seed(self, env: int, reset: int) -> int:
        """Return the seed of an environment in a reset. Resets are numbered by this stream's steps."""
        total_steps = reset // self.envs.num_envs * self.total_envs  # of the whole run
        return hashed_seed(self.seed, 0, total_steps, self.env_indices[env])

    def _reset(self, which: np.ndarray) -> None:
        """Reset environments with the seeds of the snapshot."""
        options = None if which.all() else {"reset_mask": which}
        with self.clock("environment"):
            self.states, _ = self.envs.reset(seed=self._snapshot.seeds(), options=options)  # type: ignore[arg-type]

    def _episode(self, env: int, infos: Info, last_state: np.ndarray) -> Episode:
        total, length = self._return_and_length(env, infos)
        no_ops = int(infos["no_ops"][env]) if "no_ops" in infos else None
        trace = self._snapshot.trace(env, length, last_state.copy(), no_ops) if self.traces else None
        return Episode(total, length, self.steps_done, since_process_start(), env, trace)

    def _return_and_length(self, env: int, infos: Info) -> tuple[float, int]:
        """Return the undiscounted, unclipped return and the agent steps of an episode that has just ended."""
        episode = infos.get("final_info", infos)["episode"]
        return float(episode["r"][env]), int(episode["l"][env])

    def close(self) -> None:
        self.envs.close()

    def state_dict(self) -> State:
        """Return agent steps, unreported episodes, the snapshot, and what the environments carry across episodes."""
        snapshot = self._snapshot.state_dict() | {"states": torch.from_numpy(self.states.copy())}
        return super().state_dict() | {"snapshot": snapshot, "carried": vector_env.carried(self.envs)}

    def load_state_dict(self, state: State) -> None:
        """Reset with the seeds of a snapshot, and replay its actions. Half a million Atari steps take a minute or two.

        If that leads to other states, reset all environments and log a warning. A state without actions starts new
        episodes; see without_actions.

        Raises:
            Fault: if an environment raises an error.
        """
        super().load_state_dict(state)
        self._snapshot.load_state_dict(state["snapshot"])
        if self._snapshot.resets[0] < 0:  # saved before the first step
            return
        saved_states: np.ndarray = state["snapshot"]["states"].numpy()
        vector_env.set_each(self.envs, "restored", state["carried"])  # the seeded resets below give it back
        try:
            is_restored = "actions" in state["snapshot"] and self._replay(saved_states)
        except Exception as error:
            raise Fault(
                "the environments could not be restored from their seeds and actions "
                f"({type(error).__name__}: {error}). Resume once with --new-episodes"
            ) from error
        if not is_restored:
            self.interrupted_states = saved_states
            self._reseed(np.ones(self.envs.num_envs, bool))
        vector_env.set_each(self.envs, "restored", None)

    def _replay(self, saved_states: np.ndarray) -> bool:
        """Reset each environment where its kept actions start, and repeat them. Return whether the states are right."""
        starts, actions = self._snapshot.starts, self._snapshot.actions
        self._reset(np.ones(self.envs.num_envs, bool))
        vector_env.set_each(self.envs, "paused", (starts > 0).tolist())  # ignore actions until their reset
        with TaskProgress("Restoring environments by repeating actions", len(actions) * self.envs.num_envs) as progress:
            for step in range(len(actions) + 1):
                if step and (starting := starts == step).any():
                    self._reset(starting)
                if step < len(actions):
                    chosen = actions[step].astype(self.envs.action_space.dtype)
                    chosen[starts > step] = 0
                    self.states, *_ = self.envs.step(chosen)
                    progress.update(len(chosen))
        is_right = np.array_equal(self.states, saved_states)
        if not is_right:
            log.warning(
                "The environments reached other states than those from which the run was saved, and were reset. The "
                "resumed run is valid, but not identical to an uninterrupted one. What an environment keeps from "
                "episode to episode, such as the level of a curriculum, is lost unless it has state_dict and "
                "load_state_dict, or get_state and set_state."
            )
        return is_right


class ExperienceStream(Stream):
    """Steps of an agent in environments that are stepped together, for a replay ring.

    Args:
        agent: ptan agent without a state of its own, called with the states of all environments, (num_envs, ...).
        envs, seed, first_env: see Stream.

    Attributes:
        stacked: whether a state is a stack of frames; otherwise a state is one frame.
    """

    def __init__(self, envs: VectorEnv, agent: Any, seed: int = 0, first_env: int = 0):
        super().__init__(envs, seed, first_env)
        self.agent = agent
        self.stacked = stacks_frames(envs.single_observation_space)

    def newest_frames(self, states: np.ndarray) -> np.ndarray:
        """Return the newest frames, (num_envs, *frame_shape), of states."""
        return states[:, -1] if self.stacked else states

    def __iter__(self) -> Iterator[object]:
        return self.steps()

    def steps(self) -> Iterator[Step]:
        """Yield steps forever, with the newest frames of their states."""
        self.begin()
        while True:
            with self.clock("act"):
                actions, _ = self.agent(self.states, None)
            step = self.step(np.asarray(actions))
            frames, final_frames = self.newest_frames(step.states), self.newest_frames(step.final_states)
            yield step._replace(states=frames, final_states=final_frames)


def without_actions(state: object) -> object:
    """Return a source's state without the actions of its snapshots, so that new episodes start."""
    if isinstance(state, list):
        return [without_actions(each) for each in state]
    if not isinstance(state, dict):
        return state
    is_snapshot = state.keys() >= {"resets", "actions"}
    return {name: without_actions(each) for name, each in state.items() if not (is_snapshot and name == "actions")}
