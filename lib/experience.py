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

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import ptan
import torch
from ptan.experience import ExperienceFirstLast

from lib import memory, packing
from lib.atari_wrappers import FrameStack, frame_skip
from lib.errors import UsageError
from lib.timing import Stopwatch, since_process_start

log = logging.getLogger(__name__)


class Again(NamedTuple):
    """What a finished episode is played again from, in another environment of its kind.

    Attributes:
        seed: of the environment's last reset that had one.
        actions: since that reset.
        last_state: in which the last of them was taken; it tells whether the same was played.
        begins: how many of the actions are of episodes before this one.
        no_ops: frames with which a native Atari game began, which draws their number itself, those of its start-up
            included; None where the seed decides it.
    """

    seed: int
    actions: Sequence[int]
    last_state: Any
    begins: int = 0
    no_ops: int | None = None


class Episode(NamedTuple):
    """One finished episode.

    Attributes:
        total: the undiscounted return, as the game counts it.
        length: agent steps in the episode.
        step: the source's agent steps, over all environments, when it ended.
        clock: seconds since this process started, when it ended.
        again: tells how it is played again; None where nobody knows any more.
    """

    total: float
    length: int
    step: int
    clock: float
    again: Callable[[], Again] | None = None


def hashed_seed(*numbers: int) -> int:
    """A seed of 32 bits, hashed from numbers that name what it is for."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def episode_seed(seed: int, environment: int, episode: int) -> int:
    """The reset seed of an environment's n-th episode: 32 bits hashed from all three."""
    return hashed_seed(seed, environment, episode)


def pack_episodes(episodes: Sequence[Episode]) -> list[list[float]]:
    """Episodes that nobody has asked for yet, for a checkpoint."""
    return [[episode.total, episode.length, episode.step] for episode in episodes]


def unpack_episodes(packed: list[list[float]]) -> list[Episode]:
    """The same in a resumed run, as if they had ended now."""
    return [Episode(total, int(length), int(step), since_process_start()) for total, length, step in packed]


def pack_place(episode: int, actions: Sequence[int], state: Any) -> dict[str, Any]:
    """Where an environment stands, for a checkpoint: its episode, the actions since the reset, what it shows now."""
    return {
        "episode": episode,
        "actions": torch.tensor(actions, dtype=torch.int64),
        "state": None if state is None else torch.from_numpy(np.array(state)),
    }


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
        first_env: number of the first environment; seeds are derived from an environment's number, too.

    Attributes:
        steps_done: agent steps so far, over all environments.
        clock: seconds spent in "act" and in "environment".
        frame_skip: frames of the emulator in an agent step; 1 for what is no Atari game.
        on_step: called after every agent step, those included that bring an environment back; None for nothing.
    """

    PARTS = ("act", "environment")

    def __init__(self, env: gym.Env | Sequence[gym.Env], agent: Any, gamma: float, seed: int = 0, first_env: int = 0):
        super().__init__(env, agent, gamma, steps_count=1)
        self.agent_states: list[Any]
        self.seed = seed
        self.first_env = first_env
        self.steps_done = 0
        self.clock = Stopwatch()
        self.on_step: Callable[[], Any] | None = None
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
            self.on_step()
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
                self.on_step()
            if terminated or truncated:
                break


class ReplayBuffer(ptan.experience.ExperienceReplayBuffer):
    """ptan's uniform ring of the last `buffer_size` transitions, with a memory forecast and a state_dict.

    Args:
        experience_source: where `populate` takes transitions from.
        buffer_size: how many are kept.
        saved: whether checkpoints will hold the ring, which takes a copy of its frames for a moment.

    Raises:
        UsageError: the full ring would not fit into the memory that is free.
    """

    # Measured: a transition's numbers and the headers of its objects, beside its frame.
    OVERHEAD = 700

    def __init__(self, experience_source: ExperienceSourceFirstLast, buffer_size: int, saved: bool = True):
        super().__init__(experience_source, buffer_size)
        self._added = 0  # by a call of populate that has not come to its end
        needed = self.forecast(experience_source.pool[0], buffer_size, saved)
        wanted = f"a replay of {buffer_size:,} transitions needs"
        memory.require(wanted, buffer_size, needed, lambda most: f"try --set replay_size={most}")
        log.info("Memory: %s up to %.1f GB; %.1f GB are free.", wanted, needed / 1e9, memory.free() / 1e9)

    @classmethod
    def forecast(cls, env: gym.Env, buffer_size: int, saved: bool) -> int:
        """Bytes that the full ring takes, a new frame a transition, with the copy of the frames made while saving."""
        space = env.observation_space
        assert space.shape is not None
        assert space.dtype is not None
        shape = space.shape[1:] if isinstance(env, FrameStack) else space.shape
        frame = int(np.prod(shape)) * space.dtype.itemsize
        return buffer_size * (frame * (2 if saved else 1) + cls.OVERHEAD)

    def populate(self, samples: int) -> None:
        """Add so many transitions; of a call that failed half-way, the next adds only what it has left."""
        for _ in range(samples - self._added):
            self._add(next(self.experience_source_iter))
            self._added += 1
        if samples > 0:
            self._added = 0

    def sample(self, batch_size: int) -> list[ExperienceFirstLast]:
        """Transitions drawn at random, with repetition.

        Raises:
            UsageError: the ring has fewer transitions than the batch.
        """
        self.require(batch_size)
        return super().sample(batch_size)

    def require(self, batch_size: int, more: int = 0) -> None:
        """Refuse a batch that cannot be drawn, or could not after so many more transitions.

        Raises:
            UsageError: there would be fewer transitions than the batch has.
        """
        kept = min(len(self.buffer) + more, self.capacity)
        if kept < batch_size:
            raise UsageError(
                f"a batch of {batch_size} cannot be drawn from {kept} transitions; "
                f"give --set replay_initial={batch_size} at least, and no smaller replay_size"
            )

    def state_dict(self) -> dict[str, Any]:
        return {"pos": self.pos, "added": self._added, "transitions": packing.pack(self.buffer)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.buffer = packing.unpack(state["transitions"])
        self.pos = state["pos"]
        self._added = state["added"]
