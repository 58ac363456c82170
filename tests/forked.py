"""Fork server for scripts under test.

Importing torch, ignite and lib costs a new Python process about four seconds. When a test process has collected its
tests, it forks a server that has their imports. The server forks a process for each script, and that process forks
another one that becomes the fork server of the script's actors. The script's standard output and standard error go into
files.
"""

import atexit
import faulthandler
import fcntl
import gc
import json
import logging
import multiprocessing.process
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import util
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn, cast

# What scripts import sooner or later, beside what the collection of the tests has imported.
PRELOADED = (
    "lib.common",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "torch._dynamo",  # imported by the first step of an optimizer
    "torch.utils.serialization",
)
STREAMS = ("stdout", "stderr")
_server: Connection  # set by `start`


class ForkedProcess:
    """A running script, with the part of subprocess.Popen's interface that the tests use.

    Args:
        script: path relative to `cwd`.
        options: command-line options.
        cwd: working directory.
        env: all environment variables.
        start_new_session: make the script the leader of a new session, as a terminal does.
    """

    def __init__(
        self, script: str, options: Sequence[str], cwd: Path, env: Mapping[str, str], start_new_session: bool = False
    ) -> None:
        self.args = [script, *options]
        self.returncode: int | None = None
        self._output = tempfile.TemporaryDirectory()
        for stream in STREAMS:
            Path(self._output.name, stream).touch()
        request = (script, list(options), str(cwd), dict(env), self._output.name, start_new_session)
        self.pid = cast(int, ask(request))

    def poll(self) -> int | None:
        """Return the exit code, or None while the script runs."""
        if self.returncode is None:
            self.returncode = ask(self.pid)
        return self.returncode

    def read(self, stream: str) -> str:
        """Return what the script has printed so far; `stream` is stdout or stderr."""
        return Path(self._output.name, stream).read_text()

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        """Wait for the end of the script and return its standard output and standard error.

        Raises:
            subprocess.TimeoutExpired: if the script still runs after `timeout` seconds.
        """
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.02)
        with self._output as folder:
            stdout, stderr = (Path(folder, name).read_text() for name in STREAMS)
            return stdout, stderr

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(preload: bool) -> None:
    """Fork the server. No test may have run before. `preload`: this process imports PRELOADED, too."""
    global _server
    if preload:
        import_preloaded()
    _server, theirs = multiprocessing.Pipe()
    if os.fork() == 0:
        try:
            close_all_but(theirs.fileno())
            serve(theirs)
        finally:
            os._exit(0)
    theirs.close()


def close_all_but(number: int) -> None:
    """Close all files except standard ones and this one: others must see the end of the process that has them."""
    os.closerange(3, number)
    os.closerange(number + 1, 4096)


def ask(request: Any) -> int | None:
    """Send a request to the server, and return its answer; see `serve`."""
    _server.send(request)
    return cast("int | None", _server.recv())


def restore_default_signals() -> None:
    """Install Python's default handlers for Ctrl-C, SIGTERM and SIGHUP.

    The tests may have been started with these signals ignored, by nohup for example, and child processes inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def serve(client: Connection) -> None:
    """Answer the requests of the test process until it has ended.

    A number asks for the exit code of a script: None while it runs. Anything else starts a script, and its process id
    is the answer.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # some tests interrupt the whole process group
    # Undo what pytest has changed.
    faulthandler.disable()
    logging.getLogger().handlers.clear()
    sys.unraisablehook, threading.excepthook = sys.__unraisablehook__, threading.__excepthook__
    # curve.png takes a third of a short run. tests/run/test_curve.py draws it.
    Figure = import_module("matplotlib.figure").Figure
    Figure.really_savefig, Figure.savefig = Figure.savefig, save_pixel
    gc.freeze()  # the collector of a forked process would copy all that was imported
    with suppress(EOFError):
        while True:
            request = client.recv()
            if isinstance(request, int):
                pid, status = os.waitpid(request, os.WNOHANG)
                client.send(os.waitstatus_to_exitcode(status) if pid else None)
                continue
            import_preloaded()  # for the first script
            script = os.fork()
            if script == 0:
                client.close()
                run_forked(*request)
            client.send(script)


def import_preloaded() -> None:
    for module in PRELOADED:
        import_module(module)


def save_pixel(figure: Any, file: Any, **options: Any) -> None:
    """Replace matplotlib's Figure.savefig: save a PNG of one pixel."""
    from PIL import Image

    Image.new("RGB", (1, 1)).save(file, "png")


def fork_server_of_actors() -> None:
    """Fork a process that becomes multiprocessing's fork server when the script starts one for the first time."""
    ours, theirs = socket.socketpair()
    server = os.fork()
    if server == 0:
        become_server_of_actors(theirs)
    theirs.close()
    start_process = util.spawnv_passfds

    def start_forked(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
        if "forkserver" not in args[-1]:
            return start_process(path, args, passfds)
        util.spawnv_passfds = start_process  # a server that replaces a killed one is a new Python process
        blocked = list(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
        request = {"code": args[-1], "descriptors": list(passfds), "env": dict(os.environ), "blocked": blocked}
        with ours:
            socket.send_fds(ours, [json.dumps(request).encode()], passfds)
        return server

    util.spawnv_passfds = start_forked


def become_server_of_actors(connection: socket.socket) -> NoReturn:
    """Wait for the request of `fork_server_of_actors`, and serve. Exit if the script ends without a request."""
    try:
        close_all_but(connection.fileno())
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        message, received, *_ = socket.recv_fds(connection, 2**20, 9)
        if message:
            request = json.loads(message)
            received = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 100) for descriptor in received]  # out of the way
            for descriptor, number in zip(received, request["descriptors"], strict=True):
                os.dup2(descriptor, number)
            os.environ.clear()
            os.environ.update(request["env"])
            signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
            exec(request["code"], {})
    finally:
        os._exit(0)


def run_forked(
    script: str, options: list[str], cwd: str, env: dict[str, str], output: str, start_new_session: bool
) -> NoReturn:
    """Run a script in this forked process and exit with its exit code."""
    code = 1
    try:
        restore_default_signals()
        if start_new_session:
            os.setsid()
        for number, path in enumerate([os.devnull, *(Path(output, name) for name in STREAMS)]):
            os.dup2(os.open(path, os.O_RDWR), number)
        sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.chdir(cwd)
        multiprocessing.process.ORIGINAL_DIR = cwd  # type: ignore[attr-defined]  # its children look for the script here
        os.environ.clear()
        os.environ.update(env)
        tempfile.tempdir = None  # the script's TMPDIR decides
        sys.argv = [script, *options]
        sys.path.insert(0, str(Path(cwd, script).parent))
        fork_server_of_actors()
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:  # the forked process must not return to the server's loop
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
