"""Actors, and engines, which only start them, send, receive and end; see fleet.py for everything else."""

import dataclasses
import pickle
import socket
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import cloudpickle
import torch

from lib.errors import Fault, UsageError
from lib.experience.interface import State
from lib.system.memory import shortage


class Weights(NamedTuple):
    """Weights of a model."""

    version: int  # increases with every change of the weights
    tensors: dict[str, torch.Tensor]  # by name, on the CPU
    numbers: dict[str, float]  # what an actor needs besides, such as epsilon

    def packed(self) -> bytes:
        """Return a copy for `unpack`, as arrays, which other processes read faster than tensors.

        numpy has no bfloat16; float32 holds the same numbers.
        """
        arrays = {
            name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).detach().numpy()
            for name, tensor in self.tensors.items()
        }
        return pickle.dumps((self.version, arrays, self.numbers), pickle.HIGHEST_PROTOCOL)

    @classmethod
    def unpack(cls, packed: bytes) -> "Weights":
        version, arrays, numbers = pickle.loads(packed)
        return cls(version, {name: torch.from_numpy(array) for name, array in arrays.items()}, numbers)


@dataclasses.dataclass
class Played:
    """A segment that an actor has played. Its subclasses hold the steps."""

    version: int  # of the weights that it was played with
    steps: int  # agent steps
    steps_done: int  # agent steps of the actor up to the end of the segment
    seconds: float  # time that it took
    parts: dict[str, float]  # seconds of it by activity, such as stepping the environment


class Actor(Protocol):
    """Interface of an actor, which plays trajectory segments.

    In error messages, str(actor) tells when the error occurred, such as "after 300 steps of its own".
    """

    def set_model(self, model: Weights) -> None:
        """Copy these weights and act with them from now on."""

    def get_trajectory_segment(self) -> Played:
        """Return the next segment. It is never modified afterwards."""

    def state_dict(self) -> State:
        """Return the state. An actor that starts from it continues bit for bit.

        One that starts from {"steps_done": Played.steps_done} replaces a lost actor, and starts other episodes.
        """


Make = Callable[[int, State | None], Actor]  # function (index, state); state None starts a new run


class Lost(Exception):
    """Sent in place of an answer if the actor's process has died. It says how, such as "was killed by SIGKILL"."""


class Worker:
    """An actor, and the methods that its learner may call by `answer`."""

    _actor: Any = None

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


class Engine(Protocol):
    """Interface of the engines. Actors are numbered from 0; each answers its messages in order."""

    def start(self, index: int) -> None:
        """Start the Worker of an actor, or one in place of a lost one."""

    def share(self, weights: bytes) -> object:
        """Return packed weights in the form in which `send` takes them, once for all actors."""
        return weights

    def send(self, index: int, method: str, *arguments: object) -> None:
        """Call a method of an actor's Worker. If the actor is lost, `receive` says so later. This never waits."""

    def receive(self, timeout: float) -> list[tuple[int, object]]:
        """Wait up to `timeout` seconds for answers. Return (index, answer).

        One Lost stands for all pending answers of a lost actor. It sends nothing more until it is started again.
        """

    def kill(self, index: int) -> None:
        """Kill an actor. `receive` says nothing about it until it is started again."""

    def close(self) -> None:
        """End all actors. This can be called twice."""


class InlineEngine(Engine):
    """Actors in the learner's own process, one after the other. The other engines are tested against it."""

    def __init__(self) -> None:
        self._workers: dict[int, Worker] = {}
        self._asked: deque[tuple[int, str, tuple[object, ...]]] = deque()

    def start(self, index: int) -> None:
        self._workers[index] = Worker()

    def send(self, index: int, method: str, *arguments: object) -> None:
        self._asked.append((index, method, arguments))

    def receive(self, timeout: float) -> list[tuple[int, object]]:
        if not self._asked:
            return []
        index, method, arguments = self._asked.popleft()
        return [(index, self._workers[index].answer(method, *arguments))]

    def kill(self, index: int) -> None:
        """Do nothing, because the learner waits while an inline actor plays."""

    def close(self) -> None:
        self._workers.clear()
        self._asked.clear()
