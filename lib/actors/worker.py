"""The actor's side: an actor, and what its learner may ask of it. All engines run a Worker."""

import dataclasses
import pickle
import socket
import traceback
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import cloudpickle
import torch

from lib.errors import Fault, UsageError
from lib.experience.interface import State
from lib.system.memory import shortage


class Weights(NamedTuple):
    """Weights of a model.

    Attributes:
        version: number that increases with every change of the weights.
        tensors: tensors by name, on the CPU.
        numbers: what an actor needs besides, such as epsilon.
    """

    version: int
    tensors: dict[str, torch.Tensor]
    numbers: Mapping[str, float] = MappingProxyType({})

    def packed(self) -> bytes:
        """Return a copy for `unpack`, as arrays, which other processes read faster than tensors.

        numpy has no bfloat16; float32 holds the same numbers.
        """
        arrays = {
            name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
            for name, tensor in self.tensors.items()
        }
        return pickle.dumps((self.version, arrays, dict(self.numbers)), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def unpack(cls, packed: bytes) -> "Weights":
        version, arrays, numbers = pickle.loads(packed)
        return cls(version, {name: torch.from_numpy(array) for name, array in arrays.items()}, numbers)


@dataclasses.dataclass
class Played:
    """A segment that an actor has played. Its subclasses hold the steps.

    Attributes:
        version: version of the weights that it was played with.
        steps: agent steps.
        seconds: time that it took.
        parts: seconds of it by activity, such as stepping the environment.
        restart: small state from which a replacement starts new episodes, with other seeds, if the actor is lost.
    """

    version: int
    steps: int
    seconds: float
    parts: dict[str, float]
    restart: State


class Actor(Protocol):
    """Interface of an actor, which plays trajectory segments.

    In error messages, str(actor) tells when the error occurred, such as "in block 3".
    """

    def set_model(self, model: Weights) -> None:
        """Copy these weights and act with them from now on."""

    def get_trajectory_segment(self) -> Played:
        """Return the next segment. It is never modified afterwards."""

    def state_dict(self) -> State:
        """Return the state. An actor that starts from it continues bit for bit."""


Make = Callable[[int, State | None], Actor]  # function (index, state); state None starts a new run


class Lost(NamedTuple):
    """Sent in place of an answer if the actor's process has died.

    Attributes:
        reason: what happened, such as "was killed by SIGKILL".
    """

    reason: str


class Worker:
    """An actor, and the methods that its learner may call by `answer`."""

    def __init__(self) -> None:
        self._actor: Any = None

    def answer(self, method: str, *arguments: object) -> object:
        """Call a method and return its result, or the error that ends the run."""
        try:
            return getattr(self, method)(*arguments)
        except UsageError as error:
            return error
        except Exception as error:  # noqa: BLE001 - reported to the learner
            when = "while it was made" if self._actor is None else str(self._actor)
            text = f" {error}" if isinstance(error, Fault) else f"\n{shortage(error) or traceback.format_exc()}"
            return Fault(f"failed {when}:{text}", getattr(error, "exit_code", Fault.exit_code))

    def hello(self) -> tuple[str, str]:
        """Return the machine's name, and the version of torch."""
        return socket.gethostname(), torch.__version__

    def start(self, make: bytes) -> None:
        """Make the actor with a function pickled by cloudpickle. Unpickling it may raise an error."""
        self._actor = cloudpickle.loads(make)()

    def play(self, weights: bytes) -> object:
        """Return the next segment, played with these packed weights."""
        self._actor.set_model(Weights.unpack(weights))
        return self._actor.get_trajectory_segment()

    def state(self) -> object:
        return self._actor.state_dict()
