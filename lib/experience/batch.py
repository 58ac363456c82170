"""Batches of transitions, sampled from a replay ring."""

import dataclasses
from functools import partial

import torch

from lib.system.machine import to_device


@dataclasses.dataclass
class Batch:
    """Transitions over up to n steps."""

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
