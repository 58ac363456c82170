"""TODO"""

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import ptan
from ptan.experience import ExperienceFirstLast

from lib.envs.atari import frame_skip
from lib.errors import UsageError
from lib.experience import packing
from lib.experience.episodes import Again, Episode, pack_episodes, pack_place, unpack_episodes
from lib.experience.interface import ExperienceSource
from lib.system.clock import Stopwatch, since_process_start
from lib.system.seeds import episode_seed

log = logging.getLogger(__name__)


@dataclass
class _Slot:
    """An environment and where it stands in its episode; `actions` are those taken since the reset."""

    env: gym.Env
    state: Any = None
    episode: int = 0
    actions: list[int] = field(default_factory=list)
    total: float = 0.0


class ExperienceSourceFirstLast(ptan.experience.ExperienceSourceFirstLast, ExperienceSource):
    """One-step transitions (state, action, reward, last_state) of one agent in one or several environments.

    Args:
        env: an environment, or a list of them, stepped in turn.
        agent: a ptan agent; called once a round with the states of all environments.
        gamma: discount factor, kept for those who read it from the source.
        seed: what every episode's own seed is derived from.
        first_env: number of the first environment; seeds are derived from an environment's number, too.

    Attributes:
        steps_done: agent steps so far, over all environments.
        clock: seconds spent in "act" and in "environment".
        frame_skip: frames of the emulator in an agent step; 1 for what is no Atari game.
        on_step: called after every agent step, those included that bring an environment back; None for nothing.
    """

    def __init__(self, env: gym.Env | Sequence[gym.Env], agent: Any, gamma: float, seed: int = 0, first_env: int = 0):
        super().__init__(env, agent, gamma, steps_count=1)
        self.agent_states: list[Any]
        self.seed = seed
        self.first_env = first_env
        self.steps_done = 0
        self.clock = Stopwatch()
        self.frame_skip = frame_skip(self.pool[0])
        self._slots = [_Slot(env) for env in self.pool]
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
            for index, (slot, action) in enumerate(zip(self._slots, actions, strict=True)):
                self._step(index, slot, int(action))

    def _reset(self, index: int, slot: _Slot) -> None:
        with self.clock("environment"):
            slot.state, _ = slot.env.reset(seed=episode_seed(self.seed, self.first_env + index, slot.episode))
        slot.actions, slot.total = [], 0.0
        self.agent_states[index] = self.agent.initial_state()

    def _step(self, index: int, slot: _Slot, action: int) -> None:
        with self.clock("environment"):
            next_state, reward, terminated, truncated, info = slot.env.step(action)
        state, last_state = slot.state, None if terminated else next_state
        self._ready.append(ExperienceFirstLast(state, action, float(reward), last_state))
        self.steps_done += 1
        if self.on_step is not None:
            self.on_step(1)
        slot.state = next_state
        slot.actions.append(action)
        slot.total += float(reward)
        if terminated or truncated:
            # Below the reward clipping, RecordEpisodeStatistics has kept the return as the game counts it.
            total = float(info["episode"]["r"]) if "episode" in info else slot.total
            own_seed = episode_seed(self.seed, self.first_env + index, slot.episode)
            again = partial(Again, own_seed, slot.actions, state)
            self._episodes.append(Episode(total, len(slot.actions), self.steps_done, since_process_start(), again))
            slot.episode += 1
            slot.state, slot.actions = None, []  # should the reset fail, this is where it stands
            self._reset(index, slot)

    def pop_episodes(self) -> list[Episode]:
        """The episodes that ended since the last call, oldest first."""
        episodes, self._episodes = self._episodes, []
        return episodes

    def pop_rewards_steps(self) -> list[tuple[float, int]]:
        """The same as (return, length), for handlers written for ptan."""
        return [(episode.total, episode.length) for episode in self.pop_episodes()]

    def pop_total_rewards(self) -> list[float]:
        """The same as returns alone, for handlers written for ptan."""
        return [episode.total for episode in self.pop_episodes()]

    def state_dict(self) -> dict[str, Any]:
        """Counters, and for each environment the actions of its unfinished episode.

        An environment cannot be copied; but its episode's seed and actions bring a fresh one to the same place.
        """
        return {
            "steps_done": self.steps_done,
            "slots": [pack_place(slot.episode, slot.actions, slot.state) for slot in self._slots],
            "ready": packing.pack(self._ready),
            "episodes": pack_episodes(self._episodes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["slots"]) != len(self._slots):
            raise UsageError(f"the run has {len(state['slots'])} environments, asked for {len(self._slots)}")
        self.steps_done = state["steps_done"]
        for index, (slot, saved) in enumerate(zip(self._slots, state["slots"], strict=True)):
            slot.episode = saved["episode"]
            if saved["state"] is not None:
                self._replay(index, slot, saved)
        self._ready = deque(packing.unpack(state["ready"]))
        self._episodes = unpack_episodes(state["episodes"])

    def _replay(self, index: int, slot: _Slot, saved: dict[str, Any]) -> None:
        if self._brought_back(index, slot, saved):
            return
        log.warning(
            "Environment %d does not repeat itself from its seed and actions: the resumed run is a good "
            "continuation, but not bit for bit the uninterrupted one.",
            self.first_env + index,
        )
        slot.episode += 1
        self._reset(index, slot)

    def _brought_back(self, index: int, slot: _Slot, saved: dict[str, Any]) -> bool:
        """Whether an environment is where it was, after its seed and actions."""
        try:
            self._play_again(index, slot, saved["actions"].tolist())
        except Exception:  # noqa: BLE001 - it is another's code, and may refuse what it allowed before
            return False
        return len(slot.actions) == len(saved["actions"]) and np.array_equal(slot.state, saved["state"].numpy())

    def _play_again(self, index: int, slot: _Slot, actions: list[int]) -> None:
        self._reset(index, slot)
        for action in actions:
            slot.state, reward, terminated, truncated, _ = slot.env.step(action)
            slot.actions.append(action)
            slot.total += float(reward)
            if self.on_step is not None:
                self.on_step(1)
            if terminated or truncated:
                break
