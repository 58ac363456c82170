"""Run a script in a terminal, and read its screen as a person does."""

import fcntl
import os
import pty
import select
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from running import start

ROWS = 40


class Terminal:
    """A finished script in a terminal.

    Attributes:
        code: exit code.
        bars: all progress bars that were seen, oldest first.
        lines: everything that was left on the screen, as lines of the terminal's width.
        raw: everything that was written.
        seconds: time that the script took.
    """

    def __init__(self, code: int, bars: Sequence[str], lines: Sequence[str], raw: str, seconds: float):
        self.code = code
        self.bars = bars
        self.lines = lines
        self.raw = raw
        self.seconds = seconds


def run_in_terminal(
    script: Path,
    options: Sequence[object],
    columns: int,
    env: Mapping[str, str],
    cwd: Path,
    interrupt: Callable[[str], bool] = lambda line: False,
) -> Terminal:
    """Run a script to its end.

    Args:
        script: path of the script in the project.
        options: its options.
        columns: width of the terminal.
        env: environment variables; TERM names the kind of terminal.
        cwd: current folder.
        interrupt: function that is called with the last line of the screen. The first time it returns True, Ctrl-C is
            typed.
    """
    began = time.monotonic()
    terminal, own = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, columns, 0, 0))
    process = start(script, *options, env=env, cwd=cwd, start_new_session=True, terminal=os.ttyname(own))
    screen = pyte.HistoryScreen(columns, ROWS, history=10_000)
    stream = pyte.ByteStream(screen)
    bars: list[str] = []
    written, interrupted = b"", False
    while not select.select([terminal], [], [], 0.1)[0] and process.poll() is None:
        pass
    os.close(own)  # the script has opened it
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
    process.communicate()
    assert process.returncode is not None
    history = ["".join(row[column].data for column in range(columns)) for row in screen.history.top]
    lines = [line.rstrip() for line in (*history, *screen.display)]
    return Terminal(process.returncode, bars, lines, written.decode(), time.monotonic() - began)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # the script has ended
        return b""
