"""ptan's experience source, corrected and resumable.

Differences from ptan 0.8.1:

1. A truncated episode keeps its last state, so the learner bootstraps from it. ptan treats every end as terminal.
2. A transition is yielded in the round of agent steps that it comes from. ptan yields it one round later, and two
   transitions in the last round of an episode.
3. Every episode has its own seed, derived from (seed, environment, episode). ptan passes the same seed to every
   environment at every reset.
4. The source has a state_dict, and a resumed run equals an uninterrupted one bit for bit.
"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import ptan
from ptan.experience import ExperienceFirstLast

from lib.envs.atari import EpisodicLife, frame_skip, statistics_wrapper
from lib.envs.checked_env import wrappers
from lib.experience import packing
from lib.experience.episodes import Episode, pack_episodes, unpack_episodes
from lib.experience.interface import ExperienceSource
from lib.experience.snapshot import REPLAYING, Snapshot
from lib.system.clock import Stopwatch, since_process_start
from lib.system.progress import TaskProgress
from lib.system.seeds import episode_seed

log = logging.getLogger(__name__)


class _Slot:
    """One environment, its latest state, and the snapshot of its unfinished episode."""

    def __init__(self, env: gym.Env, snapshot: Snapshot):
        self.env = env
        self.snapshot = snapshot
        self.state: Any = None
        self.total = 0.0
        self.statistics = statistics_wrapper(env)
        self.total_before = 0.0  # unclipped return that the statistics had at the start of the episode

    def begin(self) -> None:
        """Note the start of an episode. A wrapper may have ended the last one without a reset of the game."""
        self.total = 0.0
        self.total_before = 0.0 if self.statistics is None else float(self.statistics.episode_returns)

    def unclipped_return(self, info: dict[str, Any]) -> float:
        """Return the return of the episode that ended, before rewards were clipped.

        Args:
            info: infos of the last step, in which an environment may report its return.
        """
        if self.statistics is not None:
            return float(self.statistics.episode_returns) - self.total_before
        return float(info["episode"]["r"]) if "episode" in info else self.total


class ExperienceSourceFirstLast(ptan.experience.ExperienceSourceFirstLast, ExperienceSource):
    """One-step transitions (state, action, reward, last_state) of one agent in one or several environments.

    Args:
        env: one environment, or a list of them that are stepped in turn.
        agent: ptan agent, called once per round with the states of all environments. In a round, each environment makes
            one step.
        gamma: discount factor. It is only stored, because transitions have one step.
        seed: seed from which the seed of every episode is derived.
        first_env: index of the first environment in the run; episode seeds depend on it.

    Attributes:
        clock: seconds spent in "act" and in "environment".
        on_step: called with 1 after every agent step.
    """

    def __init__(self, env: gym.Env | Sequence[gym.Env], agent: Any, gamma: float, seed: int = 0, first_env: int = 0):
        super().__init__(env, agent, gamma, steps_count=1)
        self.agent_states: list[Any]
        self.seed = seed
        self.first_env = first_env
        self.steps_done = 0
        self.clock = Stopwatch()
        self.frame_skip = frame_skip(self.pool[0])
        for each in (wrapper for env in self.pool for wrapper in wrappers(env)):
            if isinstance(each, EpisodicLife):
                each.seed_starts_game = True  # an unfinished episode is restored from its seed and actions
        self._slots = [_Slot(env, snapshot_of(seed, first_env + index)) for index, env in enumerate(self.pool)]
        self._ready: deque[ExperienceFirstLast] = deque()
        self._episodes: list[Episode] = []

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        while True:
            while self._ready:
                yield self._ready.popleft()
            for index, slot in enumerate(self._slots):
                if slot.state is None:
                    self._reset(index, slot)
            with self.clock("act"):
                states = [slot.state for slot in self._slots]
                actions, self.agent_states = self.agent(states, self.agent_states)
            for index, action in enumerate(actions):
                self._step(index, int(action))

    def _reset(self, index: int, slot: _Slot) -> None:
        episode = slot.snapshot.episode
        with self.clock("environment"):
            slot.state, _ = slot.env.reset(seed=episode_seed(self.seed, self.first_env + index, episode))
        slot.snapshot.restart(episode)
        slot.begin()
        self.agent_states[index] = self.agent.initial_state()

    def _step(self, index: int, action: int) -> None:
        slot = self._slots[index]
        with self.clock("environment"):
            next_state, reward, terminated, truncated, info = slot.env.step(action)
        state, last_state = slot.state, None if terminated else next_state
        self._ready.append(ExperienceFirstLast(state, action, float(reward), last_state))
        self.steps_done += 1
        self.on_step(1)
        slot.state = next_state
        slot.snapshot.append([action])
        slot.total += float(reward)
        if terminated or truncated:
            total = slot.unclipped_return(info)
            length = int(slot.snapshot.steps_since_reset[0])
            trace = slot.snapshot.trace(0, length, state)
            self._episodes.append(Episode(total, length, self.steps_done, since_process_start(), trace))
            self._start_next_episode(index)

    def _start_next_episode(self, index: int) -> None:
        slot = self._slots[index]
        slot.snapshot.restart(slot.snapshot.episode + 1)
        self._reset(index, slot)

    def pop_episodes(self) -> list[Episode]:
        """Return the episodes that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def pop_rewards_steps(self) -> list[tuple[float, int]]:
        """Return (return, length) of the episodes that ended since the last call, for ptan's handlers."""
        return [(episode.total, episode.length) for episode in self.pop_episodes()]

    def pop_total_rewards(self) -> list[float]:
        """Return the returns of the episodes that ended since the last call, for ptan's handlers."""
        return [episode.total for episode in self.pop_episodes()]

    def snapshots(self) -> list[dict[str, Any]]:
        """Return the snapshot of each environment as plain values and tensors."""
        for slot in self._slots:
            slot.snapshot.states = None if slot.state is None else np.asarray(slot.state)
        return [slot.snapshot.state_dict() for slot in self._slots]

    def restore(self, snapshots: Sequence[dict[str, Any]]) -> None:
        """Restore each environment from its snapshot.

        If replaying the actions does not lead to the saved state, the environment starts its next episode.

        Raises:
            ValueError: if the number of environments or the shape of their states differs.
        """
        for index, (slot, saved) in enumerate(zip(self._slots, snapshots, strict=True)):
            slot.snapshot.restart(0 if saved["resets"] is None else int(saved["resets"][0]))
            if saved["states"] is None:
                continue
            restored, error_text = self._restored(index, slot, saved)
            if not restored:
                log.warning(
                    "Environment %d could not be restored from its seed and actions, and was reset. The resumed run "
                    "is valid, but not identical to an uninterrupted one.%s",
                    self.first_env + index,
                    error_text,
                )
                self._start_next_episode(index)

    def state_dict(self) -> dict[str, Any]:
        """Return the counters, the snapshots, and the transitions and episodes that have not been returned yet."""
        return {
            "steps_done": self.steps_done,
            "snapshots": self.snapshots(),
            "ready": packing.pack(self._ready),
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state that `state_dict` returned; see `restore`."""
        self.restore(state["snapshots"])
        self.steps_done = state["steps_done"]
        self._ready = deque(packing.unpack(state["ready"]))
        self._episodes = unpack_episodes(state["episodes"])

    def _restored(self, index: int, slot: _Slot, saved: dict[str, Any]) -> tuple[bool, str]:
        """Replay the saved actions from the reset seed.

        Returns:
            Whether that leads to the saved state, and the error of the environment as text, with a space before it.
        """
        try:
            self._reset(index, slot)
            steps = self._replay(slot, saved["actions"].flatten().tolist())
        except Exception as error:  # noqa: BLE001 - the environment is not our code
            return False, f" ({type(error).__name__}: {error})"
        state, saved_state = np.asarray(slot.state), saved["states"].numpy()
        if state.shape != saved_state.shape:
            raise ValueError(f"saved states have the shape {saved_state.shape}, not {state.shape}")
        return steps == len(saved["actions"]) and np.array_equal(state, saved_state), ""

    def _replay(self, slot: _Slot, actions: Sequence[int]) -> int:
        """Take these actions until the episode ends, and return the number of steps."""
        with TaskProgress(REPLAYING, len(actions)) as progress:
            for step, action in enumerate(actions, 1):
                slot.state, reward, terminated, truncated, _ = slot.env.step(action)
                slot.snapshot.append([action])
                slot.total += float(reward)
                progress.advance()
                if terminated or truncated:
                    return step
        return len(actions)


def snapshot_of(seed: int, env: int) -> Snapshot:
    """Return an empty snapshot of the environment with this index. Resets are numbered by the episode index."""
    return Snapshot(partial(_reset_seeds, seed, env))


def _reset_seeds(seed: int, env: int, episode: int) -> list[int]:
    return [episode_seed(seed, env, episode)]
