"""Watch a run from another process: its own code cannot run while native code holds the GIL, Python's global lock.

This file is a program of its own, started by lib.run.watchdog, and uses only the standard library. Its standard input
is a stream of three kinds:

- lines of JSON, one a second: the run is alive. "limit" is the seconds left of its time limit or null, "environment"
  names the environment that was called last, "ray" tells whether it uses Ray
- bytes of signals that the run has received
- lines that start with "  File": where the run is, innermost first, after SIGUSR2
"""

import contextlib
import json
import math
import os
import re
import select
import signal
import sys
import time
from typing import Any

SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
REPEAT = 5.0  # seconds in which a signal that comes again counts as the same, because launchers repeat theirs
STOP = re.compile(b"[" + re.escape(bytes(SIGNALS)) + b"]")

HEADER = b"(most recent call first):"
FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')  # as faulthandler writes it


class Watcher:
    """Report a run whose Python code does not run, and kill it after its time limit or a signal.

    A run kills its watcher before it ends. So if the watcher sees the end of the run, the run has died.

    Args:
        pid: process id of the run.
        patience: seconds of silence after which the run is reported.
        grace: seconds. A silent run is killed 2 * grace after its time limit, 3 * grace after a first signal, and grace
            after a second one. It is reported grace after the first one.
        interval: seconds between two looks.
        reports_end: whether to report the end of the run.
    """

    def __init__(self, pid: int, patience: float, grace: float, interval: float, reports_end: bool):
        self.pid = pid
        self.patience = patience
        self.grace = grace
        self.interval = interval
        self.reports_end = reports_end
        self.silent = 0.0  # seconds in which the run was not stopped, but sent nothing
        self.deadline = math.inf
        self.signals = 0  # that the run has received since it went silent
        self.silent_at_signal = 0.0  # at the first or second of them
        self.environment = ""
        self.uses_ray = False
        self.place = ""
        self.reported = False
        self._rest = self._previous = b""

    def watch(self) -> None:
        """Watch until the run ends."""
        while True:
            if select.select([0], [], [], self.interval)[0]:
                data = os.read(0, 65536)
                if not data:
                    return self._report_end()
                self._read(data)
            elif os.getppid() != self.pid:
                return self._report_end()  # a child that it forked keeps the stream open
            elif not is_stopped(self.pid):
                self.silent += self.interval
            self._look()

    def _look(self) -> None:
        ignored = self.silent - self.silent_at_signal if self.signals else 0.0  # seconds
        if not self.reported and (self.silent > self.patience or ignored > self.grace):
            self.reported = True
            self._say("warning", "")
        if ignored > self.grace * (3 if self.signals == 1 else 1):
            self._end("after a signal")
        if time.monotonic() > self.deadline + 2 * self.grace and self.silent > self.grace:
            self._end("at its time limit")

    def _read(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            text = self._without_signals(line).decode(errors="replace")
            if text.startswith("{"):
                self._alive(json.loads(text))
            elif (frame := FRAME.match(text)) and self._previous.endswith(HEADER):  # the innermost frame
                self.place = f", at line {frame['line']} of {frame['file']} ({frame['function']})"
            self._previous = line
        self._rest = self._without_signals(self._rest)

    def _without_signals(self, line: bytes) -> bytes:
        for [number] in STOP.findall(line):
            is_soon = self.signals == 1 and self.silent - self.silent_at_signal < REPEAT
            if is_soon and number != signal.SIGINT:
                continue
            self.signals += 1
            if self.signals <= 2:
                self.silent_at_signal = self.silent
        return STOP.sub(b"", line)

    def _alive(self, message: dict[str, Any]) -> None:
        """Handle a sign of life: the run is not silent, and has handled all signals so far, or is about to."""
        self.deadline = math.inf if message["limit"] is None else time.monotonic() + message["limit"]
        self.environment = message["environment"]
        self.uses_ray = message["ray"]
        self.silent, self.signals, self.reported, self.place = 0.0, 0, False, ""

    def _end(self, when: str) -> None:
        if self._say("error", f". The process is killed {when}. Files that were saved before are kept"):
            self._send(signal.SIGKILL)
            sys.exit()

    def _report_end(self) -> None:
        if not self.reports_end:
            return
        reason = "it was killed, perhaps for lack of memory, or the code of an environment ended it"
        if self.uses_ray:
            reason = f"Ray was stopped on this machine and ended it, or {reason}"
        kept = "Files that were saved before are kept; a run with a checkpoint continues with --resume"
        write(f"error: the process ended early: {reason}{self._newest()}. {kept}")

    def _newest(self) -> str:
        if not self.environment:
            return ""
        return f". The last environment call, up to a second earlier, was in {self.environment}"

    def _send(self, number: int) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            sys.exit()

    def _say(self, level: str, end: str) -> bool:
        """Write where the run is, and return true, unless it has just come back."""
        if not self.place:
            self._send(signal.SIGUSR2)
        while not self.place and select.select([0], [], [], 1.0)[0]:  # the answer comes in pieces
            self._read(os.read(0, 65536) or sys.exit())
        if not self.silent:
            return False
        text = f"{level}: no Python code has run for {self.silent:.0f} seconds; native code probably holds the GIL"
        write(f"{text} (Python's global lock){self.place}{self._newest()}{end}")
        return True


def write(line: str) -> None:
    """Write a line to standard error. "^C" may stand on the current one."""
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(2, f"\n{line}\n".encode(errors="replace"))


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped, as by Ctrl-Z; false where there is no /proc."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in b"Tt"
    except OSError:
        return False


if __name__ == "__main__":
    for ignored in SIGNALS:  # a terminal sends them to both processes
        signal.signal(ignored, signal.SIG_IGN)
    run_id, patience, grace, interval, reports_end = map(float, sys.argv[1:])
    Watcher(int(run_id), patience, grace, interval, bool(reports_end)).watch()
