"""The console: log lines between progress bars, output streams whose errors do not end a run, and shell quoting."""

import logging
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import Any

from tqdm import tqdm

from lib.system.files import PROJECT

# From Python 3.14 on, tqdm's own lock starts a process, which imports modules from the current folder.
tqdm.set_lock(threading.RLock())


class FaultTolerantStream:
    """Text stream that discards its output after the first write error.

    Characters that its encoding lacks are written as escapes.

    Args:
        stream: standard output or standard error.
    """

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            self._stream.write(text)
        except UnicodeEncodeError as error:
            self.write(text.encode(error.encoding, "backslashreplace").decode(error.encoding))
        except (OSError, ValueError):  # a closed pipe, a terminal that is gone, or a closed file
            self._discard()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self) -> None:
        """Redirect the stream to /dev/null, for C libraries and for Python's last flush as well."""
        try:
            number = self._stream.fileno()
        except (OSError, ValueError):  # closed, or no file of the system
            self._stream = open(os.devnull, "w")  # noqa: SIM115 - it stays open
            return
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, number)
        os.close(null)


class Console(logging.Handler):
    """Write log lines to standard output without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode(file=sys.stdout):
            print(self.format(record), flush=True)


def start_console() -> None:
    """Send this package's log lines to the console. A second call has no effect.

    A run goes on if its console is lost. Streams that were closed when the process started are redirected to /dev/null,
    so that no file of the run gets their file descriptors.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - it stays open
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115 - it stays open
        if not isinstance(stream, FaultTolerantStream):
            setattr(sys, name, FaultTolerantStream(stream))
    logger = logging.getLogger("lib")
    if not any(isinstance(handler, Console) for handler in logger.handlers):
        logger.addHandler(Console())
    logger.setLevel(logging.INFO)
    # ignite logs an exception twice before it raises it. The caller that catches it reports it once.
    logging.getLogger("ignite").setLevel(logging.CRITICAL)


def without_folder(word: str) -> str:
    """Return a word of a command line. An absolute path, also one after "--option=", loses its folder."""
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    return f"{option}{equals}{Path(value).name if Path(value).is_absolute() else value}"


def quoted(word: str) -> str:
    """Return a word as a shell reads it. One that standard output cannot encode is written as bytes: $'\\xc3\\xa4'."""
    try:
        word.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        bytes_of = (
            chr(byte) if byte < 128 and chr(byte) not in "'\\" else f"\\x{byte:02x}" for byte in os.fsencode(word)
        )
        return f"$'{''.join(bytes_of)}'"
    return shlex.quote(word)


def install_command(extra: str) -> str:
    """Return the command that installs one of the project's extras, from any folder."""
    return f"pip install -e {quoted(f'{PROJECT}[{extra}]')}"
