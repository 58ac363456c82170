"""The actor's side: an actor, and the messages of its learner. All engines run a Worker."""

import platform
import socket
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import cloudpickle
import numpy as np
import torch

from lib.errors import Fault, UsageError
from lib.system.memory import shortage

Result = TypeVar("Result")


class Weights(NamedTuple):
    """Weights of a model.

    Attributes:
        version: number that grows whenever the learner has new weights.
        tensors: tensors by name, on the CPU.
    """

    version: int
    tensors: dict[str, torch.Tensor]


class Actor(Protocol):
    """Interface of an actor, which plays trajectory segments.

    In error messages, str(actor) tells when the error occurred, such as "in block 3".
    """

    def set_model(self, model: Weights) -> None:
        """Copy these weights and act with them from now on."""

    def get_trajectory_segment(self) -> Any:
        """Return the next segment, which nothing changes later.

        A fleet reads these attributes of it: `steps`, its agent steps; `seconds`, the time that it took; `version`, of
        the weights that played it; and `restart`, a small state from which a replacement starts new episodes, with
        other seeds, if this actor is lost.
        """

    def state_dict(self) -> Any:
        """Return the state from which another actor continues as this one would, bit for bit."""


Make = Callable[[int, Any], Actor]  # function (index, state); state None starts a new run


class Hello(NamedTuple):
    """First message of an actor's process: where it runs."""

    node: str
    python: str
    torch: str

    @classmethod
    def here(cls) -> "Hello":
        """Describe this process."""
        return cls(socket.gethostname(), platform.python_version(), torch.__version__)


class Ready(NamedTuple):
    """The actor has been made, and its environments have been restored."""


class State(NamedTuple):
    """Answer to `state`."""

    content: Any


class Failed(NamedTuple):
    """The actor has raised an error.

    Attributes:
        text: when the actor failed, and the error with its traceback. For a UsageError, only its message.
        usage: whether the error is a UsageError.
        exit_code: exit code of a run that ends with the error.
    """

    text: str
    usage: bool = False
    exit_code: int = Fault.exit_code


class Lost(NamedTuple):
    """The actor's process is gone.

    Attributes:
        reason: what happened, such as "was killed by SIGKILL".
    """

    reason: str


class Worker:
    """An actor and what a learner may ask of it. Each method returns an answer, never raises.

    Args:
        index: index of the actor.
    """

    def __init__(self, index: int):
        self._index = index
        self._actor: Actor | None = None

    def hello(self) -> Hello:
        """Say that the process has started."""
        return Hello.here()

    def start(self, payload: bytes) -> Ready | Failed:
        """Make the actor of (make, state), pickled by cloudpickle, which may raise an error when it reads them."""

        def make_it() -> Actor:
            make, state = cloudpickle.loads(payload)
            actor: Actor = make(self._index, state)
            return actor

        made = attempt(make_it, lambda: "while it was made")
        if isinstance(made, Failed):
            return made
        self._actor = made
        return Ready()

    def play(self, packed: Any) -> Any:
        """Return the next segment. `packed` are new weights (see `pack`), or None to go on with those that it has."""
        actor = self._actor
        assert actor is not None
        if packed is not None:
            version, arrays = packed
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            given = attempt(lambda: actor.set_model(Weights(version, tensors)), lambda: "when it was given new weights")
            if isinstance(given, Failed):
                return given
        return attempt(actor.get_trajectory_segment, lambda: str(actor))

    def state(self) -> State | Failed:
        """Return the actor's state."""
        assert self._actor is not None
        content = attempt(self._actor.state_dict, lambda: "when its state was saved")
        return content if isinstance(content, Failed) else State(content)


def pack(weights: Weights) -> tuple[int, dict[str, np.ndarray]]:
    """Return weights as arrays, which other processes read faster than tensors. They may share the tensors' memory.

    numpy has no bfloat16; float32 holds the same numbers.
    """
    arrays = {}
    for name, tensor in weights.tensors.items():
        plain = tensor.detach().float() if tensor.dtype == torch.bfloat16 else tensor.detach()
        arrays[name] = plain.numpy()
    return weights.version, arrays


def attempt(call: Callable[[], Result], describe: Callable[[], str]) -> Result | Failed:
    """Call a function of an actor, or describe its error to the learner.

    Args:
        call: function to call.
        describe: function that returns when the call was made, such as "in block 3".
    """
    try:
        return call()
    except UsageError as error:
        return Failed(str(error), usage=True)
    except Fault as fault:
        return Failed(f"{describe()}: {fault}", exit_code=fault.exit_code)
    except Exception as error:  # noqa: BLE001 - reported to the learner
        return Failed(f"{describe()}:\n{shortage(error) or traceback.format_exc()}")
