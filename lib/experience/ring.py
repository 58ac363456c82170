"""Rings of the last steps of environments that step together: every frame once, states rebuilt when they are sampled.

    ring = Ring(capacity=100_000, num_envs=8, frame_shape=(84, 84), n_step=3, gamma=0.99)
    ring.add(frames, actions, rewards, terminated, truncated, final_frames)
    batch = ring.sample(256)

A state is the last `stack` frames of its episode; where the episode is younger than that, its first frame stands in.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from lib.errors import UsageError
from lib.system import memory

if TYPE_CHECKING:
    from lib.experience.stream import ExperienceStream


@dataclasses.dataclass
class Batch:
    """Transitions over up to n steps.

    Attributes:
        states, next_states: (batch, *frame_shape, stack), of the frames' type, or as `for_net` gives them. What
            follows a terminated episode is there too, and means nothing.
        actions: (batch,) int64.
        returns: (batch,) float32, the discounted rewards from the state to the next state.
        discounts: (batch,) float32, what the next state's value is multiplied by: 0 where the episode terminated.
        indices: (batch,) int64, where in the ring; for priorities.
        weights: (batch,) float32, of importance sampling; 1 where sampling is uniform.
    """

    states: torch.Tensor
    actions: torch.Tensor
    returns: torch.Tensor
    next_states: torch.Tensor
    discounts: torch.Tensor
    indices: torch.Tensor
    weights: torch.Tensor

    def __len__(self) -> int:
        return len(self.actions)

    def for_net(self, device: torch.device | str) -> Self:
        """The same on a device, with states as networks want them: stacks of frames (batch, stack, *frame_shape),
        and (batch, *frame_shape) where a state is one vector or board.

        On the way to a GPU the copies lie in page-locked memory, so that the CPU goes on while they travel.
        """
        pinned = torch.device(device).type == "cuda"
        moved = {
            name: (tensor.pin_memory() if pinned else tensor).to(device, non_blocking=pinned)
            for name, tensor in vars(self).items()
        }
        states, next_states = (moved[name].movedim(-1, 1) for name in ("states", "next_states"))
        if states.shape[1] == 1 and states.ndim != 4:  # vectors and boards, of which a state has one
            states, next_states = states.squeeze(1), next_states.squeeze(1)
        return dataclasses.replace(self, **moved | {"states": states, "next_states": next_states})


class Ring:
    """The last steps, sampled uniformly.

    Args:
        capacity: steps over all environments; rounded up to a multiple of them.
        num_envs: environments that step together.
        frame_shape: of one frame.
        stack: frames of a state.
        n_step: steps of a transition, fewer where its episode ends before, Sutton (1988).
        gamma: discount factor of a step.
        dtype: of the frames.
        seed: of the draws.
        source: of steps for `populate`: tuples of what `add` takes. If it has `last_frames`, these are asked for when a
            saved ring is brought back, see `cut` and ExperienceStream.

    Raises:
        UsageError: a number is out of its range, or the ring would not fit into the memory that is free, or hold a
            transition.
    """

    ARRAYS = ("frames", "actions", "rewards", "terminated", "ended", "older")
    BESIDES = 22  # bytes of a step besides its frame: action, reward, two ends, older frames

    def __init__(
        self,
        capacity: int,
        num_envs: int,
        frame_shape: tuple[int, ...],
        stack: int = 4,
        n_step: int = 1,
        gamma: float = 0.99,
        dtype: Any = np.uint8,
        seed: int = 0,
        source: Iterable[tuple[np.ndarray, ...]] = (),
    ):
        for name, number in (("num_envs", num_envs), ("stack", stack), ("n_step", n_step)):
            if number < 1:
                raise UsageError(f"{name} is {number}; it has to be at least 1")
        if not 0.0 <= gamma <= 1.0:
            raise UsageError(f"gamma is {gamma}; it has to be between 0 and 1")
        self._source = source
        self._steps = iter(source)
        self.length = -(-capacity // num_envs)
        self.num_envs = num_envs
        self.stack = stack
        self.n_step = n_step
        self.gamma = gamma
        if self.length < stack + n_step:
            raise UsageError(
                f"a replay of {capacity} steps has {self.length} for each of {num_envs} environments; states of "
                f"{stack} frames and transitions of n_step={n_step} need {stack + n_step} at least"
            )
        memory.require(
            f"a replay of {capacity:,} steps needs",
            capacity,
            self.forecast(capacity, frame_shape, dtype),
            lambda most: f"--set replay_size={most} would fit",
        )
        size = (self.length, num_envs)
        self._frames = np.zeros((*size, *frame_shape), dtype)
        self._actions = np.zeros(size, np.int64)
        self._rewards = np.zeros(size, np.float32)
        self._terminated = np.zeros(size, np.bool_)
        self._ended = np.zeros(size, np.bool_)
        self._older = np.zeros(size, np.int64)  # frames of the same episode before this one, stack - 1 at most
        self._final: dict[tuple[int, int], np.ndarray] = {}  # by place: what a truncated episode showed last
        self._begun = np.zeros(num_envs, np.int64)  # steps since each environment's reset
        self._added = 0  # steps of each environment so far
        self._generator = np.random.default_rng(seed)

    @classmethod
    def of(cls, source: "ExperienceStream", capacity: int, **options: Any) -> Self:
        """A ring that `populate` fills from environments whose states are stacks of frames, or else are one frame."""
        space, envs = source.envs.single_observation_space, source.envs.num_envs
        shape = space.shape or ()
        stack, frame_shape = (shape[0], shape[1:]) if source.stacked else (1, shape)
        return cls(capacity, envs, frame_shape, stack, dtype=space.dtype, seed=source.seed, source=source, **options)

    @classmethod
    def forecast(cls, capacity: int, frame_shape: tuple[int, ...], dtype: Any = np.uint8) -> int:
        """Bytes that a full ring takes."""
        return capacity * (int(np.prod(frame_shape)) * np.dtype(dtype).itemsize + cls.BESIDES)

    def __len__(self) -> int:
        """Steps that are kept, over all environments."""
        return min(self._added, self.length) * self.num_envs

    @property
    def drawable(self) -> int:
        """Transitions that can be drawn."""
        return max(0, self._last - self._first) * self.num_envs

    @property
    def _first(self) -> int:
        """The oldest step whose state's frames are all there."""
        return 0 if self._added <= self.length else self._added - self.length + self.stack - 1

    @property
    def _last(self) -> int:
        """One more than the newest step whose next state is there."""
        return self._added - self.n_step

    def add(
        self,
        frames: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final_frames: np.ndarray | None = None,
    ) -> None:
        """A step of every environment.

        Args:
            frames: (num_envs, *frame_shape), the newest frame of the states that were acted in.
            actions, rewards, terminated, truncated: (num_envs,), whole numbers, float32, bool, bool.
            final_frames: (num_envs, *frame_shape), what they showed last; looked at where one was truncated.

        Raises:
            ValueError: something has another shape, or an environment was truncated and there are no final_frames.
        """
        of_each, shape = (self.num_envs,), self._frames.shape[1:]
        for name, given, wanted in (
            *(("frames", frames, shape), ("final_frames", frames if final_frames is None else final_frames, shape)),
            *(("actions", actions, of_each), ("rewards", rewards, of_each)),
            *(("terminated", terminated, of_each), ("truncated", truncated, of_each)),
        ):
            if np.shape(given) != wanted:
                raise ValueError(f"the {name} have the shape {np.shape(given)}; it has to be {wanted}")
        truncated = truncated & ~terminated
        if truncated.any() and final_frames is None:
            raise ValueError("an environment was truncated; its final frame is needed, as its value is bootstrapped")
        row = self._added % self.length
        for index in range(self.num_envs):
            self._final.pop((row, index), None)
        for place in np.flatnonzero(truncated).tolist():
            assert final_frames is not None
            self._final[row, place] = final_frames[place].copy()
        self._frames[row] = frames
        self._actions[row] = actions
        self._rewards[row] = rewards
        self._terminated[row] = terminated
        self._ended[row] = terminated | truncated
        self._older[row] = np.minimum(self._begun, self.stack - 1)
        self._begun = np.where(terminated | truncated, 0, self._begun + 1)
        self._added += 1

    def cut(self, final_frames: np.ndarray) -> None:
        """Count the newest step of every environment as the end of its episode, a truncation if it was none before.

        Args:
            final_frames: (num_envs, *frame_shape), what the environments showed after it.
        """
        if not self._added:
            return
        row = (self._added - 1) % self.length
        for place in np.flatnonzero(~self._ended[row]).tolist():
            self._final[row, place] = final_frames[place].copy()
        self._ended[row] = True
        self._begun[:] = 0

    def populate(self, steps: int) -> None:
        """Add so many agent steps from the source, rounded up to whole steps of all environments."""
        for _ in range(0, steps, self.num_envs):
            self.add(*next(self._steps))

    def sample(self, batch_size: int) -> Batch:
        """Transitions drawn at random, with repetition.

        Raises:
            UsageError: there is none yet, or the batch is larger than what the ring keeps.
        """
        self.require(batch_size)
        steps = self._generator.integers(self._first, self._last, batch_size)
        return self._batch(steps, self._generator.integers(0, self.num_envs, batch_size), np.ones(batch_size))

    def require(self, batch_size: int, more: int = 0) -> None:
        """Refuse what cannot be drawn, or could not after so many more agent steps.

        Raises:
            UsageError: there would be no transition, or fewer steps than a batch has, or it has none.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; it has to be at least 1")
        added = self._added + -(-more // self.num_envs)
        if added <= self.n_step:
            smaller = f"n_step (-n) of {added - 1} at most, or " if added > 1 else ""
            raise UsageError(
                f"transitions of n_step={self.n_step} cannot be drawn from {added} steps of each of {self.num_envs} "
                f"environments, as one more has to follow; take {smaller}a larger replay_initial"
            )
        kept = min(added, self.length) * self.num_envs
        if batch_size > kept:
            raise UsageError(
                f"a batch of {batch_size} cannot be drawn from {kept} steps; batch_size, times the environments, "
                f"has to be at most that; or give a larger replay_initial and replay_size"
            )

    def spread(self, number: int) -> torch.Tensor:
        """So many states of the first environment, from its oldest step to its newest, as networks want them:
        (number, ...), see Batch.for_net.

        Raises:
            UsageError: nothing is in the ring yet.
        """
        self.require(1)
        steps = np.linspace(self._first, self._last - 1, number).astype(np.int64)
        return self._batch(steps, np.zeros(number, np.int64), np.ones(number)).for_net("cpu").states

    def _batch(self, steps: np.ndarray, envs: np.ndarray, weights: np.ndarray) -> Batch:
        returns = np.zeros(len(steps), np.float32)
        discounts = np.ones(len(steps), np.float32)
        goes_on = np.ones(len(steps), np.bool_)
        last = steps.copy()  # the last step of each transition
        for ahead in range(self.n_step):
            rows = (steps + ahead) % self.length
            last = np.where(goes_on, steps + ahead, last)
            returns += np.where(goes_on, discounts * self._rewards[rows, envs], 0.0).astype(np.float32)
            discounts = np.where(goes_on, discounts * np.float32(self.gamma), discounts)
            goes_on &= ~self._ended[rows, envs]
        rows = last % self.length
        discounts[self._terminated[rows, envs]] = 0.0
        return Batch(
            states=self._states(steps, envs),
            actions=torch.from_numpy(self._actions[steps % self.length, envs]),
            returns=torch.from_numpy(returns),
            next_states=self._next_states(last, envs),
            discounts=torch.from_numpy(discounts),
            indices=torch.from_numpy(steps % self.length * self.num_envs + envs),
            weights=torch.from_numpy(weights.astype(np.float32)),
        )

    def _states(self, steps: np.ndarray, envs: np.ndarray) -> torch.Tensor:
        older = self._older[steps % self.length, envs]
        back = np.minimum(np.arange(self.stack - 1, -1, -1), older[:, None])
        rows = (steps[:, None] - back) % self.length
        flat = torch.from_numpy(self._frames).flatten(0, 1)
        frames = flat.index_select(0, torch.from_numpy(rows * self.num_envs + envs[:, None]).flatten())
        frames = frames.unflatten(0, (len(steps), self.stack))
        states = frames.new_empty((len(steps), *frames.shape[2:], self.stack))
        for place in range(self.stack):  # takes half as long as all at once
            states[..., place] = frames[:, place]
        return states

    def _next_states(self, last: np.ndarray, envs: np.ndarray) -> torch.Tensor:
        ended = self._ended[last % self.length, envs]
        states = self._states(np.where(ended, last, last + 1), envs)
        for place in np.flatnonzero(ended):
            final = self._final.get((int(last[place] % self.length), int(envs[place])))
            if final is not None:
                states[place, ..., :-1] = states[place, ..., 1:].clone()
                states[place, ..., -1] = torch.from_numpy(final)
        return states

    def state_dict(self) -> dict[str, Any]:
        """What torch.load(weights_only=True) gives back."""
        rows = min(self._added, self.length)
        arrays = {name: torch.from_numpy(getattr(self, f"_{name}")[:rows]) for name in self.ARRAYS}
        final = [(row, index, torch.from_numpy(frame)) for (row, index), frame in self._final.items()]
        begun = torch.from_numpy(self._begun)
        return arrays | {
            "final": final,
            "begun": begun,
            "added": self._added,
            "draws": self._generator.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        rows = min(state["added"], self.length)
        for name in self.ARRAYS:
            getattr(self, f"_{name}")[:rows] = state[name].numpy()
        self._final = {(row, index): frame.numpy().copy() for row, index, frame in state["final"]}
        self._begun = state["begun"].numpy().copy()
        self._added = state["added"]
        self._generator.bit_generator.state = state["draws"]
        last_frames = getattr(self._source, "last_frames", None)
        if last_frames is not None:  # another episode follows than the one that was under way
            self.cut(last_frames)
