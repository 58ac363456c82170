"""Actors on Ray, on this machine or on an existing cluster. Ray is an optional package.

Each version of the weights is put into the object store once, and each node fetches it once. Segments come back through
the object store, and their arrays are read in place.
"""

import atexit
import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import cloudpickle
import numpy as np
import psutil
import torch

from lib.actors.contract import (
    Actor,
    Actors,
    Failed,
    Lost,
    Weights,
    capitalised,
    make_actor,
    next_segment,
    with_weights,
)
from lib.actors.ray_package import (
    Reaper,
    check_cluster,
    import_ray,
    initialise_ray,
    initialised,
    require_listener,
)
from lib.errors import Fault, UsageError
from lib.system.machine import cores
from lib.system.processes import pickled, signals_blocked
from lib.system.shared_memory import TensorLayout

log = logging.getLogger(__name__)

REPORT_AFTER = 10  # seconds after which an actor that cannot start is reported
HEAD_PATIENCE = 20  # seconds to wait for a cluster's head; Ray ends this process a minute after losing it
HEAD_INTERVAL = 5.0  # seconds between looks at the head
MIN_OBJECT_STORE = 256 * 2**20  # bytes of a local object store


class RayActors(Actors):
    """Actors on Ray; see Actors.

    Args:
        address: HOST:PORT of a cluster's head, or None to start a local Ray that listens on this machine only. If this
            process has initialised Ray before, that Ray is used and left running.
        cpus: CPUs per actor. None means 1, or on this machine a share of a core if there are more actors than cores.
        room: bytes of the arrays of a segment, from which the size of a local object store is computed.

    Raises:
        UsageError: if Ray is not installed, nothing answers at the address, the cluster asks for another token, runs
            another version of Ray or Python, or has too few CPUs.
    """

    TRANSFER = 5.0  # seconds within which a segment that is ready has to come from another node

    def __init__(
        self, *arguments: Any, address: str | None = None, cpus: float | None = None, room: int = 2**20, **options: Any
    ):
        super().__init__(*arguments, **options)
        if address is not None and not initialised():
            check_cluster(address)
        self._ray = import_ray(local_only=address is None)
        self._address = address
        self._head_lost = False
        self._head_seen = time.monotonic()
        self._reported = False  # whether a waiting actor was reported
        self._actors: dict[int, Any] = {}
        self._started: dict[int, Any] = {}  # references that are ready when the process has started
        # References to the segments of open orders, by actor, and to the weights that open orders use, by version.
        self._references: dict[int, deque[Any]] = {index: deque() for index in range(self.count)}
        self._published: dict[int, Any] = {}
        self._own = not self._ray.is_initialized()
        self._reaper: Reaper | None = None
        atexit.register(self.close)  # without this, Ray crashes if the process exits during a wait
        try:
            self._connect(address, room)
            nodes = [node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]]
            cpus = self._share(nodes, cpus if address is None or cpus is not None else 1.0)
            if cpus < 1.0:
                log.info("%d processes on %g CPUs: each gets %g CPU.", self.count, sum(nodes), cpus)
            self._cpus = cpus
            self._layout = TensorLayout(self.weights.tensors.values())
            self._remote = self._ray.remote(num_cpus=cpus, max_restarts=0)(RemoteActor)
            self._broadcast()
            for index in range(self.count):
                self._start(index)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        atexit.unregister(self.close)
        super().close()
        if not self._head_lost:  # otherwise these calls would not return
            for actor in self._actors.values():
                self._ray.kill(actor)
            if self._own:
                self._ray.shutdown()
        self._actors.clear()
        if self._reaper is not None:
            self._reaper.close()

    def _connect(self, address: str | None, room: int) -> None:
        if self._own and address is not None:
            self._init(address=address)
        elif self._own:
            store = max(MIN_OBJECT_STORE, 4 * self.depth * room * self.count)
            children_before = _children()
            # A closing terminal or a batch system signals Ray's processes, too. This one must outlive them to save.
            with signals_blocked():
                self._init(address="local", num_cpus=cores(), object_store_memory=store, include_dashboard=False)
            # Some of Ray's processes would outlive this one by a minute.
            self._reaper = Reaper(_children() - children_before)

    def _init(self, **options: Any) -> None:
        initialise_ray(self._ray, "use --engine process", **options)

    def _share(self, nodes: Sequence[float], requested: float | None) -> float:
        """Return the CPUs of each actor: the requested ones, or else 1, or the largest fraction that fits.

        Args:
            nodes: CPUs of each node.
            requested: CPUs per actor, or None to choose.

        Raises:
            UsageError: if the actors do not fit.
        """
        fractions = {_rounded_down(min(1.0, node / k)) for node in nodes for k in range(1, self.count + 1)}
        fitting = max((share for share in fractions if share and _capacity(nodes, share) >= self.count), default=0.0)
        kind = self.name_of(0).split()[0]  # "actor" or "player"
        if not fitting:
            raise UsageError(f"Ray has no CPUs for {self.count} {kind}s; give it some, or use --engine process")
        if requested is None:
            return fitting
        share = _rounded_down(requested)
        capacity = _capacity(nodes, share) if share else 0
        if capacity < self.count:
            available = " + ".join(f"{node:g}" for node in nodes)
            remedies = [f"at most --{kind}s {capacity}"] if capacity else []
            remedies += [f"--actor-cpus {fitting:g}"] if kind == "actor" else []
            raise UsageError(
                f"{self.count} {kind}s with {requested:g} CPU each do not fit: Ray has {available}; "
                f"use {', or '.join(remedies) or 'more CPUs'}"
            )
        return share

    def _start(self, index: int) -> None:
        payload = pickled((self.make, self.state_of(index)), self.name_of(index), "Use --engine inline")
        self._references[index].clear()
        self._actors[index] = self._remote.remote(payload, index, list(self.weights.tensors), self._layout)
        self._started[index] = self._actors[index].started.remote()

    def _kill(self, index: int) -> None:
        self._ray.kill(self._actors[index])

    def _why_not_started(self, index: int) -> str:
        started, _ = self._ray.wait([self._started[index]], timeout=0)
        free = self._free_cpus()
        if started or _capacity(free, self._cpus):
            return ""
        return (
            f"Ray's nodes have {' + '.join(f'{node:g}' for node in free)} free CPUs, and each process needs "
            f"{self._cpus:g} on one node. See what else uses the cluster (`ray status`), and wait, or start fewer"
        )

    def _free_cpus(self) -> list[float]:
        """Return the free CPUs of each node."""
        nodes = self._ray._private.state.available_resources_per_node().values()
        return [node.get("CPU", 0.0) for node in nodes]

    def _report_waiting(self, indices: Iterable[int]) -> None:
        """Say once that an actor cannot start, if it has waited for REPORT_AFTER seconds."""
        late = [index for index in indices if self._records[index].waited > REPORT_AFTER]
        if late and not self._reported and (reason := self._why_not_started(late[0])):
            self._reported = True
            log.warning("%s waits: %s.", capitalised(self.name_of(late[0])), reason)

    def _require_head(self) -> None:
        """Wait until the head of the cluster answers.

        Raises:
            Fault: if it does not answer within HEAD_PATIENCE seconds.
        """
        end = time.monotonic() + HEAD_PATIENCE
        while self._address is not None:
            try:
                require_listener(self._address)
                self._head_seen = time.monotonic()
                return
            except UsageError as error:
                if time.monotonic() > end or self.stop_asked():
                    self._head_lost = True
                    raise Fault(
                        f"the Ray cluster at {self._address} does not answer any more. Perhaps it was stopped, or the "
                        "network failed. Continue on a cluster with --resume and --address, or with --engine process"
                    ) from error
            time.sleep(0.5)

    def _broadcast(self) -> None:
        memory = np.empty(self._layout.size, np.uint8)
        for view, tensor in zip(self._layout.views(memory), self.weights.tensors.values(), strict=True):
            view.copy_(tensor)
        needed = {version for record in self._records for version in record.orders}
        self._published = {version: kept for version, kept in self._published.items() if version in needed}
        self._published[self.weights.version] = self._ray.put(memory)

    def _order(self, index: int, version: int) -> None:
        reference = self._actors[index].segment.remote(version, self._published[version])
        self._references[index].append(reference)

    def _results(self, timeout: float, wanted: int) -> Iterable[tuple[int, Any]]:
        index_of = {references[0]: index for index, references in self._references.items() if references}
        with interruptible():
            # Ray transfers a segment from another node only while `wait` waits for it.
            wanted = min(wanted, len(index_of))
            ready, _ = self._ray.wait(list(index_of), num_returns=wanted, timeout=max(1.0, timeout))
            if ready and wanted < len(index_of):
                # The learner may have been away for longer than the patience, with segments ready on other nodes.
                transfer = self.TRANSFER if time.monotonic() > min(self._deadlines().values()) else 0.0
                ready, _ = self._ray.wait(list(index_of), num_returns=len(index_of), timeout=transfer)
        if not ready or time.monotonic() > self._head_seen + HEAD_INTERVAL:  # segments come without the head as well
            self._require_head()
        if ready:
            self._reported = False
        else:
            self._report_waiting(index_of.values())
        for reference in ready:
            index = index_of[reference]
            self._references[index].popleft()
            try:
                with interruptible():
                    segment = self._ray.get(reference)
                yield index, segment
            except self._ray.exceptions.RayTaskError as error:
                yield index, Failed(f"on Ray:\n{error}")
            except self._ray.exceptions.RayError as error:  # the actor or its node died, and the segment is lost
                if getattr(error, "actor_init_failed", False):
                    needs = "Every node needs this project and its packages in the same folders"
                    yield index, Failed(f"to start on its node. {needs}:\n{error}")
                    continue
                self._require_head()
                self._ray.kill(self._actors[index])
                # The first line names the actor, and the last line the cause.
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                summary = " ... ".join(dict.fromkeys(lines[:1] + lines[-1:]))
                yield index, Lost(f"was lost ({type(error).__name__}: {summary})")


class RemoteActor:
    """An actor in a Ray worker process.

    Args:
        payload: `make` and the actor's state, pickled.
        index: index of the actor.
        names: names of the weights.
        layout: layout of the weights.
    """

    def __init__(self, payload: bytes, index: int, names: Sequence[str], layout: TensorLayout):
        torch.set_num_threads(1)
        self._names, self._layout = names, layout
        self._index, self._payload = index, payload
        self._actor: Actor | Failed | None = None

    def started(self) -> None:
        """Do nothing. Ray runs this when the actor's process has started."""

    def segment(self, version: int, weights: np.ndarray) -> Any:
        """Return a segment that is played with these weights. The first call makes the environments."""
        if self._actor is None:  # not in the constructor, so that a slow environment does not look like a missing CPU
            self._actor = make_actor(self._index, lambda: cloudpickle.loads(self._payload))
            self._payload = b""
        tensors = self._layout.views(weights)
        self._actor = with_weights(self._actor, Weights(version, dict(zip(self._names, tensors, strict=True))))
        return next_segment(self._actor)


def _rounded_down(cpus: float) -> float:
    """Round down to ten-thousandths of a CPU, the unit in which Ray counts."""
    return math.floor(1e4 * cpus + 1e-6) / 1e4


def _capacity(nodes: Iterable[float], share: float) -> int:
    """Return the number of actors with `share` CPUs each that fit on the nodes."""
    return sum(math.floor(node / share + 1e-6) for node in nodes)


def _children() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise the exception of a signal handler, such as KeyboardInterrupt, that Ray has turned into a SystemError."""
    try:
        yield
    except SystemError as error:
        cause = error.__cause__ or error.__context__
        if cause is None or isinstance(cause, Exception):
            raise
        raise cause from None
