"""Optional Ray: import it, and check that a cluster accepts this process."""

import functools
import importlib.util
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from lib.errors import Fault, UsageError
from lib.system.log import install_command

log = logging.getLogger(__name__)

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # send no usage statistics
# Niceness of the actors if this process starts Ray. With Ray's default of 15, the learner and other programs leave the
# actors hardly any processor time.
os.environ.setdefault("RAY_worker_niceness", "0")

CONNECT_TIMEOUT = 3  # time limit in seconds for a connection to the cluster's port
IMPORT_TIMEOUT = 60  # time limit in seconds for a new process to import Ray
INIT_TIMEOUT = 11  # time limit in seconds for Ray to connect to the cluster
IMPORTED = "imported"  # what the process that tries to join a cluster writes when it has imported Ray
REFUSED = "InvalidAuthToken"  # what Ray writes if a cluster refuses its token


def import_ray(local_only: bool) -> Any:
    """Import Ray.

    Args:
        local_only: whether Ray listens on this machine only.

    Raises:
        UsageError: if Ray is not installed.
    """
    # Ray reads this variable when it is imported, on every system. It is named after the systems that default to 0.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if local_only else "1"
    require_ray()
    import ray

    if constants := sys.modules.get("ray._private.ray_constants"):  # a script may have imported Ray before
        constants.ENABLE_RAY_CLUSTER = not local_only  # type: ignore[attr-defined]
    return ray


def require_ray() -> None:
    """Raise a UsageError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError(f"--engine ray needs Ray, which is not installed; run {install_command('ray')}")


def initialised() -> bool:
    """Return whether this process has initialised Ray before."""
    return "ray" in sys.modules and bool(sys.modules["ray"].is_initialized())


class Reaper:
    """Kill processes as soon as this process ends for any reason.

    A process that has got the number of an ended one is not killed, if the system has file descriptors of processes
    (Linux).

    Args:
        processes: processes, such as those of Ray, that would outlive this one.
    """

    CODE = """
import os, signal, sys
kills = []
for number in map(int, sys.argv[1:]):
    try:
        kills.append((signal.pidfd_send_signal, os.pidfd_open(number)))
    except ProcessLookupError:
        pass
    except (OSError, AttributeError):  # the system has none, or does not allow them
        kills.append((os.kill, number))
sys.stdin.read()
for kill, target in kills:
    try:
        kill(target, signal.SIGKILL)
    except OSError:
        pass
"""

    def __init__(self, processes: Iterable[psutil.Process]):
        command = [sys.executable, "-I", "-S", "-c", self.CODE, *(str(process.pid) for process in processes)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)

    def close(self) -> None:
        """End the reaper without killing anything."""
        self._process.kill()
        self._process.communicate()


@contextmanager
def signals_postponed(*numbers: signal.Signals) -> Iterator[None]:
    """Postpone signals to the end of the block, and restore their handlers.

    Ray crashes if a signal interrupts its start, and it installs its own handler for SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    before = {number: signal.signal(number, lambda which, frame: received.append(which)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for which in received[:1]:
            signal.raise_signal(which)


def initialise_ray(ray: Any, remedy: str, **options: Any) -> None:
    """Start Ray on this machine, or join a cluster. Try twice, because a start may fail beside that of another Ray.

    Args:
        ray: the imported package.
        remedy: what else the user may do if Ray does not start, for the error message.
        options: arguments of ray.init.

    Raises:
        Fault: if both attempts fail.
    """
    failure: Exception | None = None
    with signals_postponed(signal.SIGINT, signal.SIGTERM):
        for _ in range(2):
            if failure is not None:
                log.warning("Ray could not be started; trying once more.")
            try:
                ray.init(logging_level=logging.ERROR, **options)
                return
            except Exception as error:  # noqa: BLE001 - Ray raises no narrower one
                failure = error
                ray.shutdown()
    raise Fault(
        f"Ray could not be started: {failure}. Try again when the machine is less busy, or {remedy}"
    ) from failure


@functools.cache
def check_cluster(address: str) -> None:
    """Check that a cluster answers and accepts this process. If it asks for a token, set RAY_AUTH_MODE to send it.

    Other processes make the attempts, so that they can be ended early. Ray itself would try for two minutes. Ray reads
    RAY_AUTH_MODE when it is imported, so call this before. The result is kept, because the command line asks before it
    makes a run folder, and the actors ask again.

    Raises:
        UsageError: if Ray is not installed, or the cluster does not answer, asks for another token or rejects the
            attempt.
    """
    require_ray()
    require_listener(address)
    refused = _refused(address, os.environ)
    if refused and _token_source() and "RAY_AUTH_MODE" not in os.environ:
        # Only after a refusal, because actors do not start on a cluster that expects no token.
        refused = _refused(address, os.environ | {"RAY_AUTH_MODE": "token"})
        if not refused:
            os.environ["RAY_AUTH_MODE"] = "token"
    if refused:
        raise UsageError(_about_token(address))


def _refused(address: str, environment: Mapping[str, str]) -> bool:
    """Try to join a cluster, and return whether it asks for another token.

    Raises:
        UsageError: if the cluster does not answer or rejects the attempt for another reason.
    """
    attempt = f"import sys, ray; print({IMPORTED!r}, file=sys.stderr); ray.init(address=sys.argv[1], logging_level=40)"
    command = [sys.executable, "-P", "-c", attempt, address]
    output, imported = "", False
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        timer = _started_timer(IMPORT_TIMEOUT, process.kill)
        for line in process.stderr:
            if line.strip() == IMPORTED:
                imported = True
                timer.cancel()
                timer = _started_timer(INIT_TIMEOUT, process.kill)
                continue
            output += line
            if REFUSED in line:  # Ray would try again for twenty seconds
                process.kill()
        late = not timer.is_alive()
        timer.cancel()
    if REFUSED in output or "AuthenticationError" in output:
        return True
    if late and not imported:
        raise UsageError(f"Ray could not be imported within {IMPORT_TIMEOUT} seconds; try again when the disk is idle")
    if late:
        raise UsageError(f"something listens at {address}, but no Ray cluster answers there")
    if process.returncode:
        reason = output.strip().rpartition("Error: ")[2]
        raise UsageError(f"the cluster at {address} does not accept this process:\n{reason}")
    return False


def _started_timer(seconds: float, call: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(seconds, call)
    timer.daemon = True  # so that Ctrl-C does not wait for it
    timer.start()
    return timer


def _token_source() -> str:
    """Return where Ray finds this user's token for clusters, or "" if there is none."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN"
    file = _token_file()
    return str(file) if file.exists() else ""


def _token_file() -> Path:
    return Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")


def _about_token(address: str) -> str:
    """Say why a cluster refused this process's token, or that it has none."""
    source, mode = _token_source(), os.environ.get("RAY_AUTH_MODE", "token")
    if mode != "token":
        problem = f"RAY_AUTH_MODE is {mode!r}, so none is sent"
    else:
        problem = f"it refused the one from {source}" if source else f"there is none in {_token_file()}"
    return (
        f"the cluster at {address} asks for a token, and {problem}. Copy ~/.ray/auth_token from the cluster's head to "
        "this machine, or name its copy with RAY_AUTH_TOKEN_PATH"
    )


def require_listener(address: str) -> None:
    """Check that something listens at an address.

    Raises:
        UsageError: if the address is not HOST:PORT, or nothing answers.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()):
        raise UsageError(f"--address is {address!r}; it has to be HOST:PORT, such as 10.0.0.1:6379")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UsageError(
            f"nothing answers at {address}: {error}. `ray start --head` prints a cluster's address"
        ) from error
