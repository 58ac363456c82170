"""The data path of chapter 9's first scripts: a source of PTAN's transitions, and a replay buffer that lists them.

The source corrects ptan 0.8.1, which treats a truncated episode as terminated, yields a transition a round late, and
resets without a seed, or with the same one in every environment. It is resumable if it is saved after a whole round of
agent steps.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

import gymnasium as gym
import numpy as np
import ptan
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from ptan.experience import ExperienceFirstLast

from lib.envs.atari import counted, frame_skip
from lib.envs.frames import FrameStrip, LazyFrames
from lib.envs.masks import stacks_frames
from lib.envs.vector_env import Pausable
from lib.experience.interface import State
from lib.experience.stream import ExperienceStream, Step
from lib.system import memory
from lib.system.seeds import hashed_seed


class ExperienceSourceFirstLast(ExperienceStream):
    """One-step transitions (state, action, reward, last_state) of one agent in one or several environments.

    Args:
        env: one environment, or a list of them that step in turn.
        agent: ptan agent, called once per round with the states of all environments, (num_envs, ...). In a round, each
            environment makes one step.
        gamma: discount factor. It is only stored, because transitions have one step.
        seed: seed from which the seed of every episode is derived.
        first_env: index of the first environment in the run; episode seeds depend on it.

    Attributes:
        pool: the environments.
    """

    RESEED_EVERY = 0  # each episode has its own seed

    def __init__(
        self,
        env: gym.Env | Sequence[gym.Env],
        agent: ptan.agent.BaseAgent,
        gamma: float,
        seed: int = 0,
        first_env: int = 0,
    ):
        self.pool = [env] if isinstance(env, gym.Env) else list(env)
        self.gamma = gamma
        self._counted = list(map(counted, self.pool))
        made = [partial(Pausable, each) for each in self._counted]
        envs = SyncVectorEnv(made, autoreset_mode=AutoresetMode.DISABLED)
        super().__init__(envs, agent, seed, first_env)
        self.frame_skip = frame_skip(self.pool[0])

    def __iter__(self) -> Iterator[ExperienceFirstLast]:
        """Yield transitions forever, one of each environment in turn."""
        self.begin()
        transitions = Transitions(self.states, self.stacked)
        for step in self.steps():
            yield from transitions.add(step)

    def _return_and_length(self, env: int, infos: object) -> tuple[float, int]:
        # Not from the infos, because a wrapper outside of the counting one may have ended the episode.
        total = self._counted[env].get_wrapper_attr("episode_returns")
        return float(total), int(self._snapshot.length - self._snapshot.starts[env])

    def _reseed(self, which: np.ndarray) -> None:
        # A source in place of a lost one starts with its steps. A step ends at most one episode, so this number is new.
        resets = self._snapshot.resets
        self._snapshot.restart(self.steps_done // len(self.pool) if resets[0] < 0 else resets[which] + 1, which)
        self._reset(which)

    def _reset_seed(self, env: int, episode: int) -> int:
        """Return the seed of an episode of an environment; here, resets are numbered by episodes."""
        return hashed_seed(self.seed, self.env_indices[env], episode)


class Transitions:
    """Makes one-step transitions of the steps of several environments. Their states are LazyFrames.

    Args:
        states: (num_envs, ...) states in which the first actions are taken.
        stacked: whether states are stacks of frames; otherwise a state is one frame.
    """

    def __init__(self, states: np.ndarray, stacked: bool):
        self._strips = [FrameStrip(states.shape[1] if stacked else 0) for _ in states]
        first = states if stacked else states[:, None]
        self._states: list[LazyFrames | None] = [  # None after the end of an episode
            strip.start(frames) for strip, frames in zip(self._strips, first, strict=True)
        ]

    def add(self, step: Step) -> list[ExperienceFirstLast]:
        """Return the transitions of one step, in the order of the environments.

        The last state is None if the episode terminated. If it was truncated, the learner bootstraps from it.
        """
        frames, actions, rewards, terminated, truncated, final_frames = step
        transitions = []
        for env, strip in enumerate(self._strips):
            state = self._states[env]
            if state is None:
                state = strip.start([frames[env]] * strip.frames)
            last_state = None if terminated[env] else strip.append(final_frames[env])
            transitions.append(ExperienceFirstLast(state, int(actions[env]), float(rewards[env]), last_state))
            self._states[env] = None if truncated[env] else last_state
        return transitions


class TransitionSource(Protocol):
    """Endless source of transitions, ExperienceSourceFirstLast or Players. `pool` holds its environments."""

    @property
    def pool(self) -> Sequence[gym.Env]: ...

    def __iter__(self) -> Iterator[ExperienceFirstLast]: ...


class ReplayBuffer(ptan.experience.ExperienceReplayBuffer):
    """ptan's uniform replay buffer with a memory forecast and a state_dict.

    Args:
        experience_source: source from which `populate` takes transitions.
        buffer_size: number of transitions that are kept.

    Raises:
        UsageError: if the full buffer does not fit into free memory.
    """

    TRANSITION_BYTES = 700  # memory of a transition without its frame: numbers and object headers, measured

    def __init__(self, experience_source: TransitionSource, buffer_size: int):
        super().__init__(experience_source, buffer_size)
        self._round = len(experience_source.pool)
        space = experience_source.pool[0].observation_space
        assert isinstance(space, gym.spaces.Box)
        frame_bytes: int = math.prod(space.shape[stacks_frames(space) :]) * space.dtype.itemsize
        memory.require(buffer_size, buffer_size * (frame_bytes + self.TRANSITION_BYTES))

    def populate(self, samples: int) -> None:
        """Add transitions from the source, rounded up to whole rounds of its environments."""
        super().populate(-(-samples // self._round) * self._round)

    def state_dict(self) -> State:
        return {"pos": self.pos, "transitions": pack(self.buffer)}

    def load_state_dict(self, state: State) -> None:
        self.buffer, self.pos = unpack(state["transitions"]), state["pos"]


def pack(transitions: Iterable[ExperienceFirstLast]) -> State:
    """Return transitions as tensors that torch.load(weights_only=True) accepts. The tensors share their frames.

    "strips" are the arrays of frames to which the states refer, and "size" is the `size` of each state. "places",
    (transitions, 4), holds the strip of the state, its end in the strip, and the same of the last state. If there is no
    last state, its strip is -1.
    """
    transitions = list(transitions)
    strips: dict[int, tuple[int, torch.Tensor]] = {}  # number and frames, by the identity of the memory

    def place(state: LazyFrames | None) -> tuple[int, int]:
        if state is None:
            return -1, 0
        number, _ = strips.setdefault(id(state.strip), (len(strips), torch.from_numpy(state.strip)))
        return number, state.end

    places = [(*place(t.state), *place(t.last_state)) for t in transitions]
    return {
        "strips": tuple(frames for _, frames in strips.values()),
        "size": transitions[0].state.size if transitions else 0,
        "places": torch.tensor(places, dtype=torch.int32),
        "actions": torch.tensor([t.action for t in transitions], dtype=torch.int64),
        "rewards": torch.tensor([t.reward for t in transitions], dtype=torch.float64),
    }


def unpack(packed: State) -> list[ExperienceFirstLast]:
    """Return the transitions that were passed to `pack`. They do not refer to its tensors."""
    strips = [strip.numpy().copy() for strip in packed["strips"]]

    def state(strip: int, end: int) -> LazyFrames | None:
        return None if strip < 0 else LazyFrames(strips[strip], end, packed["size"])

    columns = (packed[name].tolist() for name in ("places", "actions", "rewards"))
    return [
        ExperienceFirstLast(state(strip, end), action, reward, state(last, last_end))
        for (strip, end, last, last_end), action, reward in zip(*columns, strict=True)
    ]
