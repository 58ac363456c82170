"""ptan's experience source and replay buffer, repaired where they were wrong and able to stop and go on.

What differs from ptan 0.8.1, and why:

1. A truncated episode keeps its last state, so that the learner bootstraps from it; ptan takes every end
   for a terminal state.
2. A transition comes out with the step that made it, so that one `next()` is one agent step; ptan is one step
   late, and gives two at once at the end of an episode.
3. Every episode has a seed of its own, derived from (seed, environment, episode); ptan hands the same seed
   to every environment at every reset.
4. Both have a state_dict: a run that stops and goes on is bit for bit the run that did not stop.
"""

import hashlib
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
import ptan
import torch
from ptan.experience import ExperienceFirstLast

from lib.atari_wrappers import FrameStack, LazyFrames
from lib.errors import UsageError
from lib.timing import Stopwatch, since_process_start

log = logging.getLogger(__name__)


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        total: the undiscounted return, as the game counts it.
        length: agent steps in the episode.
        step: the source's agent steps, over all environments, when it ended.
        clock: seconds since this process started, when it ended.
    """

    total: float
    length: int
    step: int
    clock: float


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """The reset seed of an environment's n-th episode: 32 bits that differ for every combination."""
    return int(np.random.SeedSequence((seed, environment, episode)).generate_state(1)[0])


@dataclass
class _Slot:
    """An environment and where it stands in its episode; `actions` are those taken since the reset."""

    env: gym.Env
    state: Any = None
    episode: int = 0
    actions: list[int] = field(default_factory=list)
    total: float = 0.0


class ExperienceSourceFirstLast(ptan.experience.ExperienceSourceFirstLast):
    """One-step transitions (state, action, reward, last_state) of one agent in one or several environments.

    Args:
        env: an environment, or a list of them, stepped in turn.
        agent: a ptan agent; called once a round with the states of all environments.
        gamma: discount factor, kept for those who read it from the source.
        seed: what every episode's own seed is derived from.

    Attributes:
        steps_done: agent steps so far, over all environments.
        clock: seconds spent in "act" and in "environment".
        on_step: called after every agent step; None for nothing.
    """

    def __init__(self, env: gym.Env | Sequence[gym.Env], agent: Any, gamma: float, seed: int = 0):
        super().__init__(env, agent, gamma, steps_count=1)
        self.agent_states: list[Any]
        self.seed = seed
        self.steps_done = 0
        self.clock = Stopwatch()
        self.on_step: Callable[[], Any] | None = None
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
            slot.state, _ = slot.env.reset(seed=episode_seed(self.seed, index, slot.episode))
        slot.actions, slot.total = [], 0.0
        self.agent_states[index] = self.agent.initial_state()

    def _step(self, index: int, slot: _Slot, action: int) -> None:
        with self.clock("environment"):
            next_state, reward, terminated, truncated, info = slot.env.step(action)
        last_state = None if terminated else next_state
        self._ready.append(ExperienceFirstLast(slot.state, action, float(reward), last_state))
        self.steps_done += 1
        if self.on_step is not None:
            self.on_step()
        slot.state = next_state
        slot.actions.append(action)
        slot.total += float(reward)
        if terminated or truncated:
            # Below the reward clipping, RecordEpisodeStatistics has kept the return as the game counts it.
            total = float(info["episode"]["r"]) if "episode" in info else slot.total
            self._episodes.append(Episode(total, len(slot.actions), self.steps_done, since_process_start()))
            slot.episode += 1
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
        slots = [
            {
                "episode": slot.episode,
                "actions": torch.tensor(slot.actions, dtype=torch.int16),
                "state": None if slot.state is None else torch.from_numpy(np.array(slot.state)),
            }
            for slot in self._slots
        ]
        return {"steps_done": self.steps_done, "slots": slots, "ready": _pack(self._ready)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if len(state["slots"]) != len(self._slots):
            raise UsageError(f"the run has {len(state['slots'])} environments, asked for {len(self._slots)}")
        self.steps_done = state["steps_done"]
        for index, (slot, saved) in enumerate(zip(self._slots, state["slots"], strict=True)):
            slot.episode = saved["episode"]
            if saved["state"] is not None:
                self._replay(index, slot, saved)
        self._ready = deque(_unpack(state["ready"]))

    def _replay(self, index: int, slot: _Slot, saved: dict[str, Any]) -> None:
        self._reset(index, slot)
        for action in saved["actions"].tolist():
            slot.state, reward, *_ = slot.env.step(action)
            slot.actions.append(action)
            slot.total += float(reward)
        if not np.array_equal(np.asarray(slot.state), saved["state"].numpy()):
            log.warning(
                "Environment %d does not repeat itself from its seed and actions: the resumed run is a good "
                "continuation, but not bit for bit the uninterrupted one.",
                index,
            )


class ReplayBuffer(ptan.experience.ExperienceReplayBuffer):
    """ptan's uniform ring of the last `buffer_size` transitions, with a memory forecast and a state_dict.

    Raises:
        UsageError: the full ring would not fit into this machine's free memory.
    """

    # Measured: a transition's numbers and the headers of its objects, beside its frame.
    OVERHEAD = 700

    def __init__(self, experience_source: ExperienceSourceFirstLast, buffer_size: int):
        super().__init__(experience_source, buffer_size)
        needed, free = self.forecast(experience_source.pool[0], buffer_size), free_memory()
        if needed > free:
            fitting = int(0.8 * buffer_size * free / needed)
            raise UsageError(
                f"a replay of {buffer_size:,} transitions needs {needed / 1e9:.1f} GB of memory, and "
                f"{free / 1e9:.1f} GB are free; try --set replay_size={fitting}"
            )
        log.info(
            "Memory: a replay of %s transitions needs up to %.1f GB; %.1f GB are free.",
            *(f"{buffer_size:,}", needed / 1e9, free / 1e9),
        )

    @classmethod
    def forecast(cls, env: gym.Env, buffer_size: int) -> int:
        """Bytes that the full ring takes: a new frame a transition, and the copy of it made while saving."""
        space = env.observation_space
        assert space.shape is not None
        assert space.dtype is not None
        shape = space.shape[1:] if isinstance(env, FrameStack) else space.shape
        return buffer_size * (2 * int(np.prod(shape)) * space.dtype.itemsize + cls.OVERHEAD)

    def state_dict(self) -> dict[str, Any]:
        return {"pos": self.pos, "transitions": _pack(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer = _unpack(state["transitions"])
        self.pos = state["pos"]


def free_memory() -> int:
    """Bytes that this process can still take: the machine's, or what is left of its control group's limit."""
    free = psutil.virtual_memory().available
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except OSError:
        return free
    return free if limit == "max" else min(free, int(limit) - used)


def _pack(transitions: Sequence[ExperienceFirstLast] | deque[ExperienceFirstLast]) -> dict[str, Any]:
    """Transitions as tensors that torch.load(weights_only=True) gives back, every frame once.

    Neighbouring states share their frames, so most are known by identity; the rest are told apart by content,
    as a resumed run has copies where the uninterrupted one has the same object.
    """
    row_of_object: dict[int, int] = {}
    row_of_content: dict[bytes, int] = {}
    frames: list[np.ndarray] = []

    def row(frame: np.ndarray) -> int:
        known = row_of_object.get(id(frame))
        if known is None:
            known = row_of_content.setdefault(hashlib.sha256(np.ascontiguousarray(frame).data).digest(), len(frames))
            row_of_object[id(frame)] = known
            if known == len(frames):
                frames.append(frame)
        return known

    def rows(state: Any) -> list[int]:
        return [row(frame) for frame in (state.frames if isinstance(state, LazyFrames) else (state,))]

    firsts = [rows(t.state) for t in transitions]
    lasts = [None if t.last_state is None else rows(t.last_state) for t in transitions]
    return {
        "frames": torch.from_numpy(np.stack(frames)) if frames else None,
        "lazy": bool(transitions) and isinstance(transitions[0].state, LazyFrames),
        "states": torch.tensor(firsts, dtype=torch.int32),
        "last_states": torch.tensor([last or f for last, f in zip(lasts, firsts, strict=True)], dtype=torch.int32),
        "dones": torch.tensor([last is None for last in lasts]),
        "actions": torch.tensor([t.action for t in transitions], dtype=torch.int64),
        "rewards": torch.tensor([t.reward for t in transitions], dtype=torch.float64),
    }


def _unpack(packed: dict[str, Any]) -> list[ExperienceFirstLast]:
    if packed["frames"] is None:
        return []
    # Copies, not views: a view would keep the whole block alive until its last frame has left the ring.
    frames = [frame.copy() for frame in packed["frames"].numpy()]

    def state(rows: list[int]) -> Any:
        return LazyFrames(tuple(frames[row] for row in rows)) if packed["lazy"] else frames[rows[0]]

    columns = (packed[name].tolist() for name in ("states", "actions", "rewards", "last_states", "dones"))
    return [
        ExperienceFirstLast(state(first), action, reward, None if done else state(last))
        for first, action, reward, last, done in zip(*columns, strict=True)
    ]
