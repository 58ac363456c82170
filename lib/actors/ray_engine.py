"""Actors on Ray, on this machine or on an existing cluster. Ray is an optional package.

Ray keeps an actor pending until a CPU is free; an autoscaler adds nodes for pending actors. A lost actor is
replaced by a new one, because Ray rejects calls to an actor that it is restarting. Each version of the weights is put
into the object store once.
"""

import atexit
import importlib.util
import logging
import os
import signal
from types import ModuleType
from typing import Any

from lib.actors.engines import Engine, Lost, Worker
from lib.errors import Fault, UsageError
from lib.system.files import PROJECT
from lib.system.log import install_command, silent_stderr
from lib.system.machine import cores
from lib.system.processes import signals_blocked

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
# With Ray's default niceness of 15 for actors, the learner leaves them hardly any processor time on this machine.
os.environ.setdefault("RAY_worker_niceness", "0")

# With these, Ray gives up after 30 seconds at the latest, if nothing listens or a cluster refuses the token. With its
# defaults, it would try for up to 14 minutes.
JOINING = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_py_gcs_connect_timeout_s": "5"}
EXCLUDES = [".git", ".venv", "docs", "models", "runs", "tests"]  # of the project, which a cluster's nodes get


class RayEngine(Engine):
    """Actors on Ray; see Engine.

    Args:
        count: number of actors.
        address: HOST:PORT, auto or ray://HOST:PORT of a cluster; None for a local Ray. If this process has initialised
            Ray before, that Ray is used and left running.
        cpus: CPUs of an actor.

    Raises:
        UsageError: if Ray is not installed, or the cluster cannot be joined.
    """

    def __init__(self, count: int, address: str | None = None, cpus: float = 1.0):
        if address is not None:
            os.environ.update(JOINING | dict(os.environ))  # Ray reads them when it is imported
        self._ray = import_ray(is_local=address is None)
        self._own = not self._ray.is_initialized()
        self._actors: dict[int, Any] = {}
        self._asked: dict[object, int] = {}  # references to answers, oldest first
        if self._own:
            _initialise(self._ray, count, address, cpus)
        self._remote = self._ray.remote(num_cpus=cpus)(Worker)  # torch gets as many threads
        atexit.register(self.close)  # without this, Ray crashes if the process exits during a wait

    def start(self, index: int) -> None:
        self._actors[index] = self._remote.remote()

    def share(self, weights: bytes) -> object:
        return self._ray.put(weights)

    def send(self, index: int, method: str, *arguments: object) -> None:
        self._asked[self._actors[index].answer.remote(method, *arguments)] = index

    def receive(self, timeout: float) -> list[tuple[int, object]]:
        first = {index: reference for reference, index in reversed(self._asked.items())}  # of each actor
        if not first:
            return []
        references = list(first.values())
        ready, _ = self._ray.wait(references, timeout=timeout)
        if ready:
            ready, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        return [(index, self._answer(reference)) for index, reference in first.items() if reference in ready]

    def _answer(self, reference: object) -> object:
        index = self._asked.pop(reference)
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:  # the actor or its node has died, or it could not be made
            self.kill(index)  # it may live on a node that has not answered for a while
            return Lost(f"was lost: {first_lines(error)}")

    def kill(self, index: int) -> None:
        self._asked = {reference: each for reference, each in self._asked.items() if each != index}
        self._ray.kill(self._actors[index])

    def close(self) -> None:
        atexit.unregister(self.close)
        self._asked.clear()
        for index in list(self._actors):
            self._ray.kill(self._actors.pop(index))
        if self._own and self._ray.is_initialized():
            self._ray.shutdown()


def import_ray(is_local: bool) -> ModuleType:
    """Import Ray, or raise a UsageError if it is not installed. A local Ray then listens on this machine only."""
    if is_local:  # read by Ray on every system when it is imported, in spite of its name
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"--engine ray needs Ray, which is not installed; run {install_command('ray')}")
    import ray

    return ray


def _initialise(ray: ModuleType, count: int, address: str | None, cpus: float) -> None:
    """Start a local Ray with room for all actors, or join a cluster."""
    options: dict[str, object] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        options |= {"address": "local", "num_cpus": max(cores(), round(count * cpus)), "include_dashboard": False}
    else:
        options["address"] = address
        if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:  # a job brings its own code
            options["runtime_env"] = {"working_dir": str(PROJECT), "excludes": EXCLUDES}
    handler = signal.getsignal(signal.SIGTERM)  # Ray installs its own, and crashes if a signal interrupts its start
    try:
        with signals_blocked(), silent_stderr():  # Ray logs a line for each attempt to join a cluster
            ray.init(**options)
    except Exception as error:
        ray.shutdown()
        reason = first_lines(error)
        if address is None:
            raise Fault(f"Ray could not be started: {reason}. Try again, or use --engine process") from error
        raise UsageError(
            f"this process cannot join the Ray cluster at {address}: {reason}. It needs the cluster's versions of Ray "
            f"and Python, RAY_AUTH_MODE=token and its ~/.ray/auth_token if it asks for one, and has to run on one of "
            f"its nodes (`ray start --address {address}` adds this machine), unless --address is ray://HEAD:10001"
        ) from error
    finally:
        signal.signal(signal.SIGTERM, handler)


def first_lines(error: BaseException) -> str:
    """Return the first lines of one of Ray's messages, joined into one. Some have sixty lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if any("Traceback (" in line for line in lines[:2]):  # the error is its last line
        lines = lines[-1:]
    return " ".join(lines[:2]).rstrip(".")
