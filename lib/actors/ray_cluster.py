"""Actors on Ray: on this machine, or on a cluster that is there. Imported only where it is asked for; ray is an extra.

Weights go once into the object store, from where each node fetches them once; segments come back through it, and their
arrays are read where they lie.
"""

import atexit
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np
import psutil
import torch

from lib.actors.contract import Actor, Actors, Failed, Lost, Weights, make_actor, next_segment
from lib.errors import UsageError
from lib.system.machine import cores
from lib.system.parent import Reaper
from lib.system.shared_memory import TensorLayout

log = logging.getLogger(__name__)


os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nobody is told that this was run


# Of a Ray of our own. Ray's 15 leaves actors next to no time beside anything else that this machine does, the learner
# included; the other engines' actors are not so modest.
os.environ.setdefault("RAY_worker_niceness", "0")


REACHING, KNOCKING = 3, 11  # seconds in which a cluster's port has to answer, and then the cluster


STORE = 256 * 2**20  # bytes of a local object store at least


class RayActors(Actors):
    """See Actors.

    Args:
        address: of a cluster's head, HOST:PORT; None for a Ray of its own, that listens on this machine alone. Where
            this process has Ray already, that is taken, and left as it is.
        cpus: of each actor; None for 1, or on this machine for its share of the cores where these are fewer.
        room: bytes that a segment's arrays take.

    Raises:
        UsageError: ray is not installed, nothing answers at the address, the cluster has another version of Ray or
            Python, or too few CPUs.
    """

    def __init__(
        self, *arguments: Any, address: str | None = None, cpus: float | None = None, room: int = 2**20, **options: Any
    ):
        super().__init__(*arguments, **options)
        self._ray = ray_package(alone=address is None)
        self._actors: dict[int, Any] = {}
        self._segments: dict[int, Any] = {}  # references, of actors that owe one
        self._own = not self._ray.is_initialized()
        self._reaper: Reaper | None = None
        atexit.register(self.close)  # Ray itself crashes where it ends in the middle of a wait
        try:
            if self._own and address is not None:
                knock(address)
                self._init(address=address)
            elif self._own:
                self._begin_alone(room)
            nodes = [node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]]
            cpus = self._share(nodes, cpus if address is None or cpus is not None else 1.0)
            if cpus < 1.0:
                log.info("%d actors on %g CPUs: each has %g of one.", self.number, sum(nodes), cpus)
            self._layout = TensorLayout(self.model.tensors.values())
            self._remote = self._ray.remote(num_cpus=cpus, max_restarts=0)(RemoteActor)
            self._broadcast()
            for index in range(self.number):
                self._start(index)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        if self._own:
            self._ray.shutdown()
        if self._reaper is not None:
            self._reaper.close()

    def _begin_alone(self, room: int) -> None:
        store = max(STORE, 4 * room * self.number)
        others = _children()
        self._init(address="local", num_cpus=cores(), object_store_memory=store, include_dashboard=False)
        self._reaper = Reaper(_children() - others)  # some of Ray's own live on for a minute

    def _init(self, **options: Any) -> None:
        with _heard_later(signal.SIGINT, signal.SIGTERM):
            self._ray.init(logging_level=logging.ERROR, **options)

    def _share(self, nodes: list[float], asked: float | None) -> float:
        """The CPUs of each actor: those asked for, or else one, or the largest part of one that fits.

        Args:
            nodes: how many CPUs each has.
            asked: of each actor; None where that is ours to say.

        Raises:
            UsageError: so many actors do not fit.
        """
        fractions = {_down(min(1.0, node / k)) for node in nodes for k in range(1, self.number + 1)}
        fitting = max((share for share in fractions if share and _room(nodes, share) >= self.number), default=0.0)
        share = fitting if asked is None else _down(asked)
        if asked is None and not share:
            raise UsageError(f"Ray has no CPUs for {self.number} actors; give it some, or take --engine process")
        if asked is not None and (not share or _room(nodes, share) < self.number):
            there = f"Ray has {' + '.join(f'{node:g}' for node in nodes)}"
            most = f"--actors {_room(nodes, share)} at most, or " if share and _room(nodes, share) else ""
            raise UsageError(
                f"{self.number} actors with {asked:g} CPU each do not fit: {there}; take {most}--actor-cpus {fitting:g}"
            )
        return share

    def _start(self, index: int) -> None:
        moved = cloudpickle.dumps((self.make, self.state_of(index)))
        self._actors[index] = self._remote.remote(moved, index, list(self.model.tensors), self._layout)

    def _kill(self, index: int) -> None:
        self._ray.kill(self._actors[index])
        self._segments.pop(index, None)

    def _broadcast(self) -> None:
        memory = np.empty(self._layout.size, np.uint8)
        for view, tensor in zip(self._layout.views(memory), self.model.tensors.values(), strict=True):
            view.copy_(tensor)
        self._weights = self._ray.put(memory)

    def _order(self, index: int) -> None:
        self._segments[index] = self._actors[index].segment.remote(self.model.version, self._weights)

    def _hear(self, patience: float, least: int) -> Iterable[tuple[int, Any]]:
        owing = {reference: index for index, reference in self._segments.items()}
        with interruptible():
            # A segment on another node begins to come only when it is waited for.
            least = min(least, len(owing))
            ready, _ = self._ray.wait(list(owing), num_returns=least, timeout=max(1.0, patience))
            if ready and least < len(owing):
                ready, _ = self._ray.wait(list(owing), num_returns=len(owing), timeout=0)  # and all else that is there
        for reference in ready:
            index = owing[reference]
            del self._segments[index]
            try:
                with interruptible():
                    said = self._ray.get(reference)
                yield index, said
            except self._ray.exceptions.RayTaskError as error:
                yield index, Failed(str(error))
            except self._ray.exceptions.RayError as error:  # it died, or its node did, with the segment
                self._ray.kill(self._actors[index])
                # The first line names it, the last has the cause.
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                ends = " ... ".join(dict.fromkeys(lines[:1] + lines[-1:]))
                yield index, Lost(f"was lost ({type(error).__name__}: {ends})")


class RemoteActor:
    """An actor as Ray has it.

    Args:
        moved: make and the actor's state, pickled.
        number: the actor's.
        names, layout: of the weights.
    """

    def __init__(self, moved: bytes, number: int, names: list[str], layout: TensorLayout):
        torch.set_num_threads(1)
        self._names, self._layout = names, layout
        self._actor: Actor | Failed = make_actor(number, lambda: cloudpickle.loads(moved))

    def segment(self, version: int, weights: np.ndarray) -> Any:
        """A segment made with these weights."""
        if not isinstance(self._actor, Failed):
            tensors = self._layout.views(weights)
            self._actor.set_model(Weights(version, dict(zip(self._names, tensors, strict=True))))
        return next_segment(self._actor)


def ray_package(alone: bool) -> Any:
    """Ray itself.

    Args:
        alone: whether it is to listen on this machine only. Ray reads this when it is imported, under a name that it
            has for two systems on which that is always so.
    """
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if alone else "1"
    try:
        import ray
    except ImportError as error:
        raise UsageError("--engine ray needs Ray, which is not installed; pip install '.[ray]' brings it") from error
    return ray


def _down(cpus: float) -> float:
    """Rounded down to what Ray counts in, ten-thousandths."""
    return math.floor(1e4 * cpus + 1e-6) / 1e4


def _room(nodes: Iterable[float], share: float) -> int:
    """How many actors with so many CPUs each the nodes have room for."""
    return sum(math.floor(node / share + 1e-6) for node in nodes)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@contextmanager
def _heard_later(*numbers: signal.Signals) -> Iterator[None]:
    """Signals that come meanwhile are heard afterwards, by who hears them now.

    Ray crashes where its start is interrupted, and takes SIGTERM, which would end the process before anything is saved.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda which, frame: came.append(which)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for which in came[:1]:
            signal.raise_signal(which)


@contextmanager
def interruptible() -> Iterator[None]:
    """Within it a signal's exception comes through Ray's compiled code, which makes a SystemError of it."""
    try:
        yield
    except SystemError as error:
        cause = error.__cause__ or error.__context__
        if cause is None or isinstance(cause, Exception):
            raise
        raise cause from None


def knock(address: str) -> None:
    """See whether a cluster answers, and lets us in; by another process, as Ray's own attempt takes two minutes.

    Raises:
        UsageError: it does not.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise UsageError(f"--address {address!r} is no HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACHING).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"nothing answers at {address}: {error}. `ray status` on a node tells a cluster's address"
        ) from error
    attempt = "import sys, ray; ray.init(address=sys.argv[1], logging_level=40)"
    try:
        said = subprocess.run(
            [sys.executable, "-c", attempt, address], capture_output=True, text=True, timeout=KNOCKING
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"something listens at {address}, but no Ray cluster answers there") from error
    if said.returncode:
        why = said.stderr.strip().rpartition("Error: ")[2]
        raise UsageError(f"the cluster at {address} does not let us in:\n{why}")
