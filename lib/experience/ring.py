"""Replay ring for environments that step together. It stores every frame once and rebuilds states when it samples."""

import dataclasses
import math
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from gymnasium import spaces
from torch import nn

from lib.errors import UsageError
from lib.experience.interface import State
from lib.experience.stream import ExperienceStream, Step
from lib.system import memory
from lib.system.machine import to_device


@dataclasses.dataclass
class Batch:
    """Sampled transitions over up to n steps."""

    states: torch.Tensor  # (batch, *frame_shape, stack) in the dtype of the frames; for networks, see `for_net`
    actions: torch.Tensor  # (batch, *action_shape) int64; float32 if the action space is a Box
    returns: torch.Tensor  # (batch,) float32, discounted rewards from the state to the next state
    next_states: torch.Tensor  # like states; undefined if the episode terminated
    discounts: torch.Tensor  # (batch,) float32, discount factors of the next state's value; 0 after a termination
    indices: torch.Tensor  # (batch,) int64, numbers of the steps since the ring was created, for update_priorities
    weights: torch.Tensor  # (batch,) float32, importance-sampling weights; 1 if sampling is uniform

    def __len__(self) -> int:
        return len(self.actions)

    def for_net(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device, with states in the layout of networks.

        Stacked frames become (batch, stack, *frame_shape). Vectors and boards, which are not stacked, become
        (batch, *frame_shape). The indices stay on the CPU. Copies to a GPU go through page-locked memory, so that the
        CPU does not wait for them.
        """
        move = partial(to_device, device=device)
        states, next_states = move(self.states).movedim(-1, 1), move(self.next_states).movedim(-1, 1)
        if states.shape[1] == 1 and states.ndim != 4:  # vectors and boards, which are not stacked
            states, next_states = states.squeeze(1), next_states.squeeze(1)
        numbers = {name: move(getattr(self, name)) for name in ("actions", "returns", "discounts", "weights")}
        return dataclasses.replace(self, states=states, next_states=next_states, **numbers)


class Ring:
    """Replay ring of the last steps, sampled uniformly.

    Args:
        source: stream from which `populate` takes steps.
        capacity: number of steps over all environments, rounded up to a multiple of their number.
        n_step: number of steps in a transition, Sutton (1988). A transition is shorter if its episode ends.
        gamma: discount factor per step.

    Raises:
        UsageError: if the ring does not fit into free memory, or is too small for a transition.
    """

    ARRAYS = ("frames", "actions", "rewards", "terminated", "ended", "older")  # (length, num_envs, ...) each
    STEP_BYTES = 22  # bytes of a step without its frame: action, reward, two flags and the number of previous frames

    def __init__(self, source: ExperienceStream, capacity: int, n_step: int = 1, gamma: float = 0.99):
        space = source.envs.single_observation_space
        assert isinstance(space, spaces.Box)
        self.stack, frame_shape = (space.shape[0], space.shape[1:]) if source.stacked else (1, space.shape)
        self.num_envs: int = source.envs.num_envs
        self.length = -(-capacity // self.num_envs)  # steps per environment
        self.n_step = n_step
        self.gamma = gamma
        if self.length < self.stack + n_step:
            raise UsageError(
                f"a replay buffer of {capacity} steps has {self.length} for each of {self.num_envs} environments; "
                f"states of {self.stack} frames and transitions of n_step={n_step} need at least {self.stack + n_step}"
            )
        memory.require(capacity, capacity * (math.prod(frame_shape) * space.dtype.itemsize + self.STEP_BYTES))
        self._source = source
        self._source_steps = source.steps()
        size = (self.length, self.num_envs)
        self._frames = np.zeros((*size, *frame_shape), space.dtype)
        actions = source.envs.single_action_space
        dtype = np.float32 if isinstance(actions, spaces.Box) else np.int64
        self._actions = np.zeros((*size, *(actions.shape or ())), dtype)
        self._rewards = np.zeros(size, np.float32)
        self._terminated = np.zeros(size, np.bool_)
        self._ended = np.zeros(size, np.bool_)  # terminated or truncated
        self._older = np.zeros(size, np.int64)  # number of older frames in a state, 0 to stack - 1
        # Final frames of truncated episodes, by (row, environment).
        self._final_frames: dict[tuple[int, int], np.ndarray] = {}
        self._episode_steps = np.zeros(self.num_envs, np.int64)  # steps of each environment since its reset
        self._steps_added = 0  # steps of each environment since the ring was created
        self._generator = np.random.default_rng(source.seed)

    def __len__(self) -> int:
        """Return the number of steps in the ring, over all environments."""
        return min(self._steps_added, self.length) * self.num_envs

    @property
    def num_transitions(self) -> int:
        """Number of transitions that can be sampled."""
        return max(0, self._end - self._start) * self.num_envs

    @property
    def _start(self) -> int:
        """Oldest step that can be sampled, because all frames of its state are in the ring."""
        if self._steps_added <= self.length:
            return 0
        return self._steps_added - self.length + self.stack - 1

    @property
    def _end(self) -> int:
        """One more than the newest step that can be sampled. The next states of newer steps are not in the ring yet."""
        return self._steps_added - self.n_step

    def add(self, step: Step) -> None:
        """Add one step of every environment, with the newest frames of its states."""
        frames, actions, rewards, terminated, truncated, final_frames = step
        row = self._steps_added % self.length
        for env in range(self.num_envs):
            self._final_frames.pop((row, env), None)
        self._keep_final_frames(row, truncated, final_frames)
        self._frames[row] = frames
        self._actions[row] = actions
        self._rewards[row] = rewards
        self._terminated[row] = terminated
        self._ended[row] = terminated | truncated
        self._older[row] = np.minimum(self._episode_steps, self.stack - 1)
        self._episode_steps = np.where(terminated | truncated, 0, self._episode_steps + 1)
        self._steps_added += 1

    def _keep_final_frames(self, row: int, truncated: np.ndarray, final_frames: np.ndarray) -> None:
        for env in np.flatnonzero(truncated).tolist():
            self._final_frames[row, env] = final_frames[env].copy()

    def truncate_episodes(self, final_frames: np.ndarray) -> None:
        """Truncate all unfinished episodes after their newest step.

        Args:
            final_frames: (num_envs, *frame_shape), frames after the newest step.
        """
        self._episode_steps[:] = 0
        if self._steps_added == 0:
            return
        row = (self._steps_added - 1) % self.length
        self._keep_final_frames(row, ~self._ended[row], final_frames)
        self._ended[row] = True

    def populate(self, steps: int) -> None:
        """Add a number of agent steps from the source, rounded up to a multiple of num_envs."""
        for _ in range(0, steps, self.num_envs):
            self.add(next(self._source_steps))

    def sample(self, batch_size: int) -> Batch:
        """Sample transitions uniformly, with replacement. If there is none yet, a UsageError is raised."""
        self._require_transitions()
        steps = self._generator.integers(self._start, self._end, batch_size)
        envs = self._generator.integers(0, self.num_envs, batch_size)
        return self._make_batch(steps, envs, np.ones(batch_size))

    def _require_transitions(self) -> None:
        if self._end <= self._start:
            raise UsageError(
                f"transitions of n_step={self.n_step} cannot be drawn from {self._steps_added} steps of each of "
                f"{self.num_envs} environments; use a larger replay_initial, or reduce n_step (-n) or the number of "
                "environments"
            )

    def _make_batch(self, steps: np.ndarray, envs: np.ndarray, weights: np.ndarray) -> Batch:
        """Return the transitions that start at the given steps, (batch,), of the given environments, (batch,)."""
        returns = np.zeros(len(steps), np.float32)
        discounts = np.ones(len(steps), np.float32)
        continues = np.ones(len(steps), np.bool_)
        last_steps = steps.copy()
        for ahead in range(self.n_step):
            rows = (steps + ahead) % self.length
            last_steps = np.where(continues, steps + ahead, last_steps)
            returns += np.where(continues, discounts * self._rewards[rows, envs], 0.0).astype(np.float32)
            discounts = np.where(continues, discounts * np.float32(self.gamma), discounts)
            continues &= ~self._ended[rows, envs]
        discounts[self._terminated[last_steps % self.length, envs]] = 0.0
        rows = steps % self.length
        return Batch(
            states=self._states(steps, envs),
            actions=torch.from_numpy(self._actions[rows, envs]),
            returns=torch.from_numpy(returns),
            next_states=self._next_states(last_steps, envs),
            discounts=torch.from_numpy(discounts),
            indices=torch.from_numpy(steps * self.num_envs + envs),
            weights=torch.from_numpy(weights.astype(np.float32)),
        )

    def _states(self, steps: np.ndarray, envs: np.ndarray) -> torch.Tensor:
        """Return the states at given steps, (batch, *frame_shape, stack)."""
        previous = self._older[steps % self.length, envs]
        frames_back = np.minimum(np.arange(self.stack - 1, -1, -1), previous[:, None])
        rows = (steps[:, None] - frames_back) % self.length
        indices = torch.from_numpy(rows * self.num_envs + envs[:, None])
        all_frames = torch.from_numpy(self._frames).flatten(0, 1)
        frames = all_frames.index_select(0, indices.flatten()).reshape(len(steps), self.stack, *all_frames.shape[1:])
        states = frames.new_empty((len(steps), *frames.shape[2:], self.stack))
        for place in range(self.stack):  # takes half as long as copying all stack positions at once
            states[..., place] = frames[:, place]
        return states

    def _next_states(self, last_steps: np.ndarray, envs: np.ndarray) -> torch.Tensor:
        """Return the states after the given steps. At truncations they end with the episode's final frame."""
        done = self._ended[last_steps % self.length, envs]
        states = self._states(np.where(done, last_steps, last_steps + 1), envs)
        for index in np.flatnonzero(done):
            final_frame = self._final_frames.get((int(last_steps[index] % self.length), int(envs[index])))
            if final_frame is not None:
                states[index, ..., :-1] = states[index, ..., 1:].clone()
                states[index, ..., -1] = torch.from_numpy(final_frame)
        return states

    def evenly_spaced(self, number: int) -> Batch:
        """Return transitions at even distances from the oldest to the newest one, without drawing random numbers.

        If the ring holds too few, some are repeated. An empty ring raises a UsageError, as in `sample`.
        """
        self._require_transitions()
        places = np.linspace(0, self.num_transitions - 1, number).astype(np.int64)
        steps, envs = np.divmod(places, self.num_envs)
        return self._make_batch(self._start + steps, envs, np.ones(number))

    def state_dict(self) -> State:
        """Return the state for a checkpoint. torch.load(weights_only=True) can read it."""
        rows = min(self._steps_added, self.length)
        state: State = {name: torch.from_numpy(getattr(self, f"_{name}")[:rows]) for name in self.ARRAYS}
        state["final"] = [(row, env, torch.from_numpy(frame)) for (row, env), frame in self._final_frames.items()]
        state["begun"] = torch.from_numpy(self._episode_steps)
        state["added"] = self._steps_added
        state["draws"] = self._generator.bit_generator.state
        return state

    def load_state_dict(self, state: State) -> None:
        """Restore the ring. If the source had to reset its environments, their unfinished episodes are truncated."""
        rows = min(state["added"], self.length)
        for name in self.ARRAYS:
            getattr(self, f"_{name}")[:rows] = state[name].numpy()
        self._final_frames = {(row, env): frame.numpy().copy() for row, env, frame in state["final"]}
        self._episode_steps = state["begun"].numpy().copy()
        self._steps_added = state["added"]
        self._generator.bit_generator.state = state["draws"]
        if self._source.interrupted_states is not None:
            self.truncate_episodes(self._source.newest_frames(self._source.interrupted_states))


class HeldOutStates:
    """Fixed states, evenly spaced in the replay ring. They stay the same for the whole run, as in the book.

    They are taken at the first use, soon after the warm-up, without random numbers. They stay in the ring, so training
    may sample them, too. `device` is that of the network.
    """

    def __init__(self, ring: Ring, device: torch.device | str = "cpu", number: int = 256):
        self._ring = ring
        self._device = device
        self._number = number
        self._states: torch.Tensor | None = None

    @property
    def states(self) -> torch.Tensor:
        """The states, (number, ...) in the layout of networks, on the device."""
        if self._states is None:
            self._states = self._ring.evenly_spaced(self._number).for_net(self._device).states
        return self._states

    @torch.no_grad()
    def mean(self, function: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """Return the mean of a function of the states."""
        return function(self.states).mean().item()

    def best_value(self, net: nn.Module) -> float:
        return self.mean(lambda states: net(states).max(1).values)

    def state_dict(self) -> State:
        return {"states": self._states}

    def load_state_dict(self, state: State) -> None:
        self._states = None if state["states"] is None else state["states"].to(self._device)
