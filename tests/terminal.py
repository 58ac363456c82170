"""Run a command in a terminal, and read its screen as a person does."""

import fcntl
import os
import pty
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

ROWS = 40


class Terminal:
    """A finished command in a terminal.

    Attributes:
        code: exit code.
        bars: all progress bars that were seen, oldest first.
        lines: everything that was left on the screen, as lines of the terminal's width.
        raw: everything that was written.
        seconds: time that the command took.
    """

    def __init__(self, code: int, bars: Sequence[str], lines: Sequence[str], raw: str, seconds: float):
        self.code = code
        self.bars = bars
        self.lines = lines
        self.raw = raw
        self.seconds = seconds


def run_in_terminal(
    command: Sequence[object],
    columns: int,
    env: Mapping[str, str],
    cwd: Path,
    interrupt: Callable[[str], bool] = lambda line: False,
) -> Terminal:
    """Run a command to its end.

    Args:
        command: the command.
        columns: width of the terminal.
        env: environment variables; TERM names the kind of terminal.
        cwd: current folder.
        interrupt: function that is called with the last line of the screen. The first time it returns True, Ctrl-C is
            typed.
    """
    words = [str(word) for word in command]
    start = time.monotonic()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(cwd)
        os.execvpe(words[0], words, env)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    screen = pyte.HistoryScreen(columns, ROWS, history=10_000)
    stream = pyte.ByteStream(screen)
    bars: list[str] = []
    written, interrupted = b"", False
    while data := _read(terminal):
        written += data
        stream.feed(data)
        [*_, last] = [line.rstrip() for line in screen.display if line.strip()] or [""]
        if "%|" in last and last not in bars:
            bars.append(last)
        if not interrupted and interrupt(last):
            interrupted = True
            os.write(terminal, b"\x03")
    os.close(terminal)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    history = ["".join(row[column].data for column in range(columns)) for row in screen.history.top]
    lines = [line.rstrip() for line in (*history, *screen.display)]
    return Terminal(code, bars, lines, written.decode(), time.monotonic() - start)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # the command has ended
        return b""
