"""Scripts run to their end as a shell would run them, but for the four seconds that every one of them takes to import.

A server imports what scripts need, once, and forks a process for each; what that says goes into files.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path

# The first step of an optimizer imports torch._dynamo.
IMPORTED = ("lib.common", "lib.dqn_extra", "lib.options", "lib.parallel", "lib.ppo", "lib.precision", "torch._dynamo")


class Server:
    """Forks one script after the other."""

    def __init__(self):
        self._process = None
        self._lock = threading.Lock()

    def run(self, script, options, cwd, env):
        """(exit code, standard output, standard error) of a script."""
        with self._lock, tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
                )
                atexit.register(self._process.kill)
            files = [f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in (stdout, stderr)]
            request = {"script": script, "options": options, "cwd": str(cwd), "env": dict(env), "files": files}
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            code = json.loads(self._process.stdout.readline())
            return code, stdout.read(), stderr.read()


def serve():
    """Fork what standard input asks for, and tell its exit code."""
    for module in IMPORTED:
        __import__(module)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            become(**request)
        _, status = os.waitpid(pid, 0)
        print(json.dumps(os.waitstatus_to_exitcode(status)), flush=True)


def become(script, options, cwd, env, files):
    """Be a script; does not return."""
    for number, path in enumerate([os.devnull, *files]):
        os.dup2(os.open(path, os.O_RDWR), number)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    sys.argv = [script, *options]
    sys.path[0] = str(Path(cwd, script).parent)
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    finally:  # what is forked has to end here, whatever became of the script
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
