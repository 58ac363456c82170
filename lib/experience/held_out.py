"""Fixed states, on which a run tracks the values that its network predicts."""

from collections.abc import Callable

import torch
from torch import nn

from lib.experience.interface import State
from lib.experience.ring import Ring


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
