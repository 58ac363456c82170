"""Acting: play rollouts with a model's policy in vector environments."""

import dataclasses
import math
from collections.abc import Iterator

import cv2
import numpy as np
import torch
from gymnasium.vector import VectorEnv

from lib.experience.stream import Stream
from lib.nets.distributions import distribution_of
from lib.ppo.model import ActorCritic
from lib.system.machine import to_device, torch_threads

STATES = 4096  # most states of a rollout by which a model's input is normalised


@dataclasses.dataclass
class Rollout:
    """T steps of N environments.

    Attributes:
        states: observations acted on, (T, N, ...), images and boards with the channels last.
        actions: sampled actions, (T, N, ...); see Distribution.
        log_probs: log-probabilities of the actions when they were chosen, (T, N) float32.
        values: predicted values of the states, (T, N) float32.
        next_values: predicted values of the next states, (T, N) float32. At a truncation, this is the value of the
            episode's last state. At a termination, it is undefined.
        rewards: (T, N) float32.
        terminated: the step terminated its episode, (T, N) bool.
        ended: the step terminated or truncated its episode, (T, N) bool.
    """

    states: torch.Tensor
    actions: torch.Tensor
    log_probs: torch.Tensor
    values: torch.Tensor
    next_values: torch.Tensor
    rewards: torch.Tensor
    terminated: torch.Tensor
    ended: torch.Tensor

    def __len__(self) -> int:
        return self.rewards.numel()

    def some_states(self, number: int = STATES) -> torch.Tensor:
        """Return the states for a model, (n, ...): at most about `number`, of evenly spaced steps."""
        return self.states[:: math.ceil(len(self) / number)].flatten(0, 1).movedim(-1, 1)

    def fill_next_values(self, bootstrap_values: torch.Tensor) -> None:
        """Copy the value of each next state from the following step, except at truncations, which have it already.

        Args:
            bootstrap_values: values of the states after the last step, (N,) float32.
        """
        following = torch.cat([self.values[1:], bootstrap_values[None]])
        truncated = self.ended & ~self.terminated
        self.next_values.copy_(torch.where(truncated, self.next_values, following))


class Sampler(Stream):
    """Play rollouts: step environments with the policy of a model, on its device.

    Actions are sampled with noise that is derived from the seed, the environment's index and the rollout's index. So
    the steps of an environment do not depend on how the environments are divided among samplers.

    Args:
        model: policy and value network.
        steps: steps of each environment in a rollout.
        envs, seed, part: arguments of a Stream.
    """

    PARTS = ("act", "environment", "store")

    def __init__(self, envs: VectorEnv, model: ActorCritic, steps: int, seed: int = 0, **part: int):
        super().__init__(envs, seed, **part)
        self.model = model
        self.device = next(model.parameters()).device
        self.steps = steps
        self._distribution = distribution_of(envs.single_action_space)

    def __iter__(self) -> Iterator[Rollout]:
        """Yield rollouts forever. Each rollout overwrites the tensors of the previous one."""
        rollout = self.empty()
        while True:
            self.sample(rollout)
            yield rollout

    @torch.no_grad()
    def outputs(self, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's parameters and values for the latest states, (N, ...), on its device."""
        outputs: tuple[torch.Tensor, torch.Tensor] = self.model(to_device(states, self.device))
        return outputs

    def values(self, states: torch.Tensor, truncated: torch.Tensor | None = None) -> torch.Tensor:
        """Predict the values of states.

        Args:
            states: (n, ...) states: the latest of all environments, or those that end the episodes of `truncated`.
            truncated: (N,) bool, environments whose episodes end. Only a model with a memory needs it.

        Returns:
            (n,) float32, on the CPU.
        """
        return self.outputs(states)[1].cpu()

    def empty(self) -> Rollout:
        """Return a rollout of uninitialised tensors for `sample` to fill. Its states are in pinned memory for a GPU."""
        self.begin()
        size = (self.steps, self.envs.num_envs)
        state = torch.from_numpy(self.states).movedim(1, -1)
        pinned = self.device.type == "cuda"
        return Rollout(
            states=torch.empty(*size, *state.shape[1:], dtype=state.dtype, pin_memory=pinned),
            actions=torch.empty(*size, *self._distribution.shape, dtype=self._distribution.dtype),
            log_probs=torch.empty(size),
            values=torch.empty(size),
            next_values=torch.empty(size),
            rewards=torch.empty(size),
            terminated=torch.empty(size, dtype=torch.bool),
            ended=torch.empty(size, dtype=torch.bool),
        )

    def sample(self, rollout: Rollout) -> None:
        """Play the next steps and store them in `rollout`, overwriting its contents."""
        self.begin()
        # One thread is enough for a small batch, and idle torch threads would spin on the emulators' cores. torch
        # clears its cache of cast weights when the outermost autocast context exits. This disabled one keeps the
        # cache for the whole rollout.
        with torch_threads(1), torch.autocast(self.device.type, enabled=False):
            self._play(rollout)

    def _play(self, rollout: Rollout) -> None:
        noise = to_device(self._noise(), self.device)
        # These stay on the device until the end of the rollout, because only actions are needed before.
        log_probs: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for t in range(self.steps):
            with self.clock("store"):
                self._store(rollout.states[t])
            with self.clock("act"):
                parameters, value = self.outputs(rollout.states[t].movedim(-1, 1))
                actions, log_prob = self._distribution.sample(parameters, noise[t])
                actions = actions.cpu()
                log_probs.append(log_prob)
                values.append(value)
            step = self.step(self._distribution.played(actions).numpy())
            with self.clock("store"):
                rollout.actions[t] = actions
                rollout.rewards[t] = torch.from_numpy(step.rewards)
                rollout.terminated[t] = torch.from_numpy(step.terminated)
                rollout.ended[t] = torch.from_numpy(step.terminated | step.truncated)
            if step.truncated.any():
                with self.clock("act"):
                    last_states = torch.from_numpy(step.final_states[step.truncated])
                    truncated = torch.from_numpy(step.truncated)
                    rollout.next_values[t, truncated] = self.values(last_states, truncated)
        with self.clock("act"):
            bootstrap_values = self.values(torch.from_numpy(self.states))
            rollout.log_probs.copy_(torch.stack(log_probs))
            rollout.values.copy_(torch.stack(values))
        rollout.fill_next_values(bootstrap_values)

    def _store(self, place: torch.Tensor) -> None:
        """Copy the latest states to `place`, (N, ...), with their channels last."""
        if self.states.dtype == np.uint8 and self.states.ndim == 4:
            for image, own_place in zip(self.states, place.numpy(), strict=True):
                cv2.merge(image, own_place)  # takes a sixth of torch's time
        else:
            place.copy_(torch.from_numpy(self.states).movedim(1, -1))

    def _noise(self) -> torch.Tensor:
        """Draw the next rollout's noise, (steps, num_envs, noise_size) float32, a generator per environment."""
        rollout_index = self.steps_done // (self.steps * self.envs.num_envs)
        noise = []
        for env_index in self.env_indices:
            generator = np.random.default_rng([self.seed, env_index, rollout_index])
            noise.append(self._distribution.noise(generator, self.steps))
        return torch.from_numpy(np.stack(noise, axis=1))
