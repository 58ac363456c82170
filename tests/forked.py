"""Scripts run as a shell would run them, but for the four seconds that every one of them takes to import.

A server imports what scripts need, once, and forks a process for each; what that says goes into files.
"""

import atexit
import json
import multiprocessing.process
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

# The first step of an optimizer imports torch._dynamo.
IMPORTED = (
    "lib.common",
    "lib.dqn_extra",
    "lib.cli",
    "lib.actors.players",
    "lib.ppo.segments",
    "lib.nets.precision",
    "torch._dynamo",
)
STREAMS = ("stdout", "stderr")


class Server:
    """Forks scripts, and tells how they have ended."""

    def __init__(self):
        self._process = None
        self._lock = threading.Lock()

    def start(self, script, options, cwd, env, start_new_session=False):
        """A script that has just been started."""
        said = tempfile.TemporaryDirectory()
        request = {"script": script, "options": options, "cwd": str(cwd), "env": dict(env), "said": said.name}
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
                )
                atexit.register(self._process.kill)
            pid = self._ask(request | {"start_new_session": start_new_session})
        return Forked(self, [script, *options], pid, said)

    def poll(self, pid):
        """The exit code, as subprocess.Popen has it; none while it runs."""
        with self._lock:
            return self._ask(pid)

    def _ask(self, what):
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


class Forked:
    """What subprocess.Popen would be for it."""

    def __init__(self, server, args, pid, said):
        self.args = args
        self.pid = pid
        self.returncode = None
        self._server = server
        self._said = said

    def poll(self):
        if self.returncode is None:
            self.returncode = self._server.poll(self.pid)
        return self.returncode

    def communicate(self, timeout=300):
        """Its standard output and standard error, once it has ended."""
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.02)
        with self._said as folder:
            return tuple(Path(folder, name).read_text() for name in STREAMS)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def signals_as_in_a_terminal():
    """Whoever starts the tests may ignore them, as nohup and background jobs do, and programs inherit it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def serve():
    """Fork what standard input asks for and tell its process, or how a process has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # some tests interrupt all processes that this one's parent has
    for module in IMPORTED:
        __import__(module)
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, int):
            pid, status = os.waitpid(request, os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                become(**request)
        print(json.dumps(answer), flush=True)


def become(script, options, cwd, env, said, start_new_session):
    """Be a script; does not return."""
    code = 1
    try:
        signals_as_in_a_terminal()
        if start_new_session:
            os.setsid()
        for number, path in enumerate([os.devnull, *(Path(said, name) for name in STREAMS)]):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
        os.chdir(cwd)
        multiprocessing.process.ORIGINAL_DIR = cwd  # where the processes that it starts look for it
        os.environ.clear()
        os.environ.update(env)
        sys.argv = [script, *options]
        sys.path[0] = str(Path(cwd, script).parent)
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    finally:  # what is forked has to end here, whatever became of the script
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
